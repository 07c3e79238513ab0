"""What a local trainer saves: a folder with the weights, a note on their base, and, if asked for, the optimizer.

Weights are in the form of transformers (all weights) or of peft (adapters), so either can be read without this package.
A folder appears under its name complete or not at all.
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
from .models import Base, Shelf, with_saved_adapters, without_progress_bars

NOTE = "engine.json"
OPTIMIZER = "optimizer.pt"
MASTERS = "masters.safetensors"
"""Weights in float32 that the model holds rounded."""


class Adapted(NamedTuple):
    """A model under training."""

    base: Base
    rank: int
    """Of its adapters; 0 where all weights are trained."""
    module: Any


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A scratch folder to write to, which then takes the place of `folder`."""
    scratch, old = folder.with_name(f".{folder.name}.{os.getpid()}"), folder.with_name(f".{folder.name}.old")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    if folder.exists():
        os.replace(folder, old)
    os.replace(scratch, folder)
    shutil.rmtree(old, ignore_errors=True)


def save_weights(folder: Path, model: Adapted) -> None:
    """Write weights into a folder."""
    with without_progress_bars():
        if model.rank:
            model.module.save_pretrained(folder, save_embedding_layers=False)
        else:
            model.module.save_pretrained(folder)
            model.base.tokenizer.save_pretrained(folder)
    note = {"base_model": model.base.path, "lora": {"rank": model.rank}}
    (folder / NOTE).write_text(json.dumps(note, indent=1) + "\n")


def save_optimizer(folder: Path, optimizer: torch.optim.Optimizer, masters: Mapping[str, torch.Tensor]) -> None:
    """Write the optimizer, and the master copies it works on where these are not the model's own weights."""
    torch.save(optimizer.state_dict(), folder / OPTIMIZER)
    if masters:
        save_file({name: one.detach().contiguous().cpu() for name, one in masters.items()}, folder / MASTERS)


def is_checkpoint(path: str) -> bool:
    """Whether a trainer of this engine saved the folder. Raises `UsageError` where there is no folder."""
    if not Path(path).is_dir():
        raise UsageError(f"there is no checkpoint at {path!r}; give the path that save_state returned")
    return (Path(path) / NOTE).is_file()


def load(shelf: Shelf, path: str) -> Adapted:
    """The weights saved there, to be trained further. Raises `UsageError` where no trainer saved any."""
    if not is_checkpoint(path):
        raise UsageError(f"{path!r} holds no trainer's checkpoint; give the path that save_state returned")
    note = json.loads((Path(path) / NOTE).read_text())
    base, rank = shelf.base(note["base_model"]), int(note["lora"]["rank"])
    module = with_saved_adapters(base, Path(path)) if rank else shelf.load(path).requires_grad_(True).eval()
    return Adapted(base, rank, module)


def read_masters(path: str) -> dict[str, torch.Tensor]:
    """The master copies saved there by parameter name; empty where the model's own weights are exact."""
    file = Path(path) / MASTERS
    return dict(load_file(file)) if file.is_file() else {}


def read_optimizer(path: str) -> dict[str, Any]:
    """The state of the optimizer saved there. Raises `UsageError` where only weights were model."""
    file = Path(path) / OPTIMIZER
    if not file.is_file():
        raise UsageError(f"the checkpoint at {path!r} has weights only; one of save_state has the optimizer too")
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found
