"""Checkpoints of the local engine: a folder with the weights, the name of their base model, and maybe the optimizer.

Weights are saved in the format of transformers (all weights) or of peft (adapters), so they can be read without this
package. Folders are written atomically.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from ..errors import UsageError
from .models import Base, ModelStore, with_saved_adapters, without_progress_bars

METADATA = "engine.json"
OPTIMIZER = "optimizer.pt"
MASTERS = "masters.safetensors"
"""The float32 copies of weights that the model holds in half precision."""


class TrainableModel(NamedTuple):
    """A model in training."""

    base: Base
    rank: int
    """LoRA rank; 0 if all weights are trained."""
    module: Any


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder to write to; it replaces `folder` when the block ends without an error."""
    scratch, old = folder.with_name(f".{folder.name}.{os.getpid()}"), folder.with_name(f".{folder.name}.old")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    if folder.exists():
        os.replace(folder, old)
    os.replace(scratch, folder)
    shutil.rmtree(old, ignore_errors=True)


def save_weights(folder: Path, model: TrainableModel) -> None:
    """Write the weights, and from which base model they come."""
    with without_progress_bars():
        if model.rank:
            model.module.save_pretrained(folder, save_embedding_layers=False)
        else:
            model.module.save_pretrained(folder)
            model.base.tokenizer.save_pretrained(folder)
    metadata = {"base_model": model.base.path, "lora": {"rank": model.rank}}
    (folder / METADATA).write_text(json.dumps(metadata, indent=1) + "\n")


def save_optimizer(folder: Path, optimizer: torch.optim.Optimizer, masters: Mapping[str, torch.Tensor]) -> None:
    """Write the optimizer's state and, if there are any, the float32 master copies that it updates."""
    torch.save(optimizer.state_dict(), folder / OPTIMIZER)
    if masters:
        save_file({name: one.detach().contiguous().cpu() for name, one in masters.items()}, folder / MASTERS)


def is_checkpoint(path: str) -> bool:
    """Whether this engine saved the folder. Raises `UsageError` if it does not exist."""
    if not Path(path).is_dir():
        raise UsageError(f"there is no checkpoint at {path!r}; give the path that save_state returned")
    return (Path(path) / METADATA).is_file()


def load(models: ModelStore, path: str) -> TrainableModel:
    """Load saved weights for further training. Raises `UsageError` if the folder is not a checkpoint."""
    if not is_checkpoint(path):
        raise UsageError(f"{path!r} is not a checkpoint of a trainer; give the path that save_state returned")
    metadata = json.loads((Path(path) / METADATA).read_text())
    base, rank = models.base(metadata["base_model"]), int(metadata["lora"]["rank"])
    module = with_saved_adapters(base, Path(path)) if rank else models.load(path).requires_grad_(True).eval()
    return TrainableModel(base, rank, module)


def read_masters(path: str) -> dict[str, torch.Tensor]:
    """The saved master copies by parameter name; empty if the checkpoint has none."""
    file = Path(path) / MASTERS
    return dict(load_file(file)) if file.is_file() else {}


def read_optimizer(path: str) -> dict[str, Any]:
    """The saved state of the optimizer. Raises `UsageError` if only weights were saved."""
    file = Path(path) / OPTIMIZER
    if not file.is_file():
        raise UsageError(f"the checkpoint at {path!r} has weights only; save_state also saves the optimizer")
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found
