"""What a local trainer saves: a folder with the weights, who made them, and, if asked for, the optimizer.

Weights are in the form of transformers (all weights) or of peft (adapters), so either can be read without this package.
A folder appears under its name whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from .models import ADAPTER, Base, LoraSpec, Shelf, quiet, trainable

NOTE = "engine.json"
OPTIMIZER = "optimizer.pt"
MASTERS = "masters.safetensors"
"""Weights in float32 that the model holds rounded."""

Optimizer = tuple[torch.optim.Optimizer, Mapping[str, torch.Tensor]]
"""An optimizer, and the master copies it works on where these are not the model's own weights."""


@dataclass(frozen=True)
class Note:
    """What a saved folder is."""

    base_model: str
    lora: LoraSpec


def save(folder: Path, base: Base, lora: LoraSpec, module: Any, optimizer: Optimizer | None) -> None:
    """Write a checkpoint, in place of one that is there."""
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with quiet():
        if lora.rank == 0:
            module.save_pretrained(scratch)
            base.tokenizer.save_pretrained(scratch)
        else:
            module.save_pretrained(scratch, save_embedding_layers=False)
    if optimizer is not None:
        from safetensors.torch import save_file

        made, masters = optimizer
        torch.save(made.state_dict(), scratch / OPTIMIZER)
        if masters:
            save_file({name: one.detach().contiguous().cpu() for name, one in masters.items()}, scratch / MASTERS)
    (scratch / NOTE).write_text(json.dumps({"base_model": base.path, "lora": asdict(lora)}, indent=1) + "\n")
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(scratch, folder)
    shutil.rmtree(old, ignore_errors=True)


def read_note(path: str) -> Note | None:
    """What was saved there; None where a model lies that no trainer of this engine saved.

    Raises:
        UsageError: There is no such folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"there is no checkpoint at {path!r}; give the path that save_state returned")
    if not (folder / NOTE).is_file():
        return None
    found = json.loads((folder / NOTE).read_text())
    return Note(found["base_model"], LoraSpec(**found["lora"]))


def load_into(module: Any, folder: Path, note: Note) -> None:
    """Put saved weights into a trainable model made by the same `LoraSpec`."""
    from safetensors.torch import load_file

    if note.lora.rank:
        from peft import set_peft_model_state_dict

        state = load_file(folder / "adapter_model.safetensors")
        outcome: Any = set_peft_model_state_dict(module, state, adapter_name=ADAPTER)
        if outcome.unexpected_keys:
            raise UsageError(f"{folder} does not fit its base model, which has no {outcome.unexpected_keys[0]}")
        return
    from transformers import AutoModelForCausalLM

    with quiet():
        saved = AutoModelForCausalLM.from_pretrained(folder, dtype=next(module.parameters()).dtype)
    module.load_state_dict(saved.state_dict())


def load(shelf: Shelf, path: str) -> tuple[Base, LoraSpec, Any]:
    """A trainable model with the weights saved there. Raises `UsageError` where no trainer saved any."""
    note = read_note(path)
    if note is None:
        raise UsageError(f"{path!r} holds no trainer's checkpoint; give the path that save_state returned")
    base = shelf.base(note.base_model)
    module = trainable(base, note.lora)
    load_into(module, Path(path), note)
    return base, note.lora, module


def read_masters(path: str) -> dict[str, torch.Tensor]:
    """The master copies saved there by parameter name; empty where the model's own weights are exact."""
    from safetensors.torch import load_file

    file = Path(path) / MASTERS
    return dict(load_file(file)) if file.is_file() else {}


def read_optimizer(path: str) -> dict[str, Any]:
    """The state of the optimizer saved there. Raises `UsageError` where only weights were saved."""
    file = Path(path) / OPTIMIZER
    if not file.is_file():
        raise UsageError(f"the checkpoint at {path!r} has weights only; one of save_state has the optimizer too")
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found
