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
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ..errors import UsageError
from .models import Base, ModelStore, with_saved_adapters, without_progress_bars

METADATA = "engine.json"
OPTIMIZER = "optimizer.pt"
MASTERS = "masters.safetensors"
"""The float32 copies of weights that the model holds in half precision."""


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


def save_weights(folder: Path, base: Base, rank: int, module: Any) -> None:
    """Write the weights, and from which base model they come; `rank` is the LoRA rank, 0 if all are trained."""
    with without_progress_bars():
        if rank:
            module.save_pretrained(folder, save_embedding_layers=False)
        else:
            module.save_pretrained(folder)
            base.tokenizer.save_pretrained(folder)
    metadata = {"base_model": base.path, "lora": {"rank": rank}}
    (folder / METADATA).write_text(json.dumps(metadata, indent=1) + "\n")


def is_checkpoint(path: str) -> bool:
    """Whether this engine saved the folder. Raises `UsageError` if it does not exist."""
    if not Path(path).is_dir():
        raise UsageError(f"there is no checkpoint at {path!r}; give the path that save_state returned")
    return (Path(path) / METADATA).is_file()


def load_weights(models: ModelStore, path: str) -> tuple[Base, int, Any]:
    """The base model, the LoRA rank and the module saved in a checkpoint. Raises `UsageError` if it is none."""
    if not is_checkpoint(path):
        raise UsageError(f"{path!r} is not a checkpoint of a trainer; give the path that save_state returned")
    metadata = json.loads((Path(path) / METADATA).read_text())
    base, rank = models.base(metadata["base_model"]), int(metadata["lora"]["rank"])
    return base, rank, with_saved_adapters(base, Path(path)) if rank else models.load(path).requires_grad_(True).eval()


def save_optimizer(folder: Path, optimizer: torch.optim.Optimizer, masters: Mapping[str, torch.Tensor]) -> None:
    """Write the optimizer's state and, if there are any, the float32 master copies that it updates."""
    torch.save(optimizer.state_dict(), folder / OPTIMIZER)
    if masters:
        save_file({name: one.detach().contiguous().cpu() for name, one in masters.items()}, folder / MASTERS)


def restore_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimizer's state. Raises `UsageError` if only weights were saved."""
    if not (folder / OPTIMIZER).is_file():
        raise UsageError(f"the checkpoint at '{folder}' has weights only; save_state also saves the optimizer")
    optimizer.load_state_dict(torch.load(folder / OPTIMIZER, weights_only=True))


def restore_masters(folder: Path, masters: Mapping[str, torch.Tensor]) -> None:
    """Restore the master copies, if the checkpoint has any."""
    saved = load_file(folder / MASTERS) if (folder / MASTERS).is_file() else {}
    with torch.no_grad():
        for name in saved.keys() & masters.keys():
            masters[name].copy_(saved[name])
