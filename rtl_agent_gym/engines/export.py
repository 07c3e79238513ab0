"""Exports a checkpoint of the local engine for other programs: as a transformers model or a peft adapter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from torch import nn
from transformers import AutoConfig, AutoTokenizer

from ..errors import RTLGymError, SandboxError, UsageError, cannot_write
from .models import ModelStore, choose_device, without_progress_bars
from .training import MASTERS, METADATA, OPTIMIZER, is_checkpoint, is_disk_full, load_checkpoint, read_metadata

Exported = Literal["model", "adapter"]
"""What was written: a complete model, or an adapter that needs its base model."""


def export_checkpoint(checkpoint: str, out: Path, *, merge: bool = False) -> Exported:
    """Write a checkpoint in the format of transformers or peft, with the tokenizer and its chat template.

    With `merge`, the adapters are added to the base model's weights, in the base model's data type; this has no effect
    if all weights were trained.

    Raises:
        UsageError: `checkpoint` was not saved by the local engine, the base model cannot be loaded, or `out` is not
            empty.
        SandboxError: The disk is full.
    """
    if not is_checkpoint(checkpoint):
        raise UsageError(f"{checkpoint!r} is not a checkpoint of the local engine; give a run or a checkpoint of one")
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"--out: {out} exists and is not an empty folder; choose another")
        out.mkdir(parents=True, exist_ok=True)
        return _export(Path(checkpoint), out, merge)
    except RTLGymError:
        raise
    except OSError as error:
        raise cannot_write("--out", out, error) from error
    except Exception as error:  # tokenizers and safetensors have no exception class for a full disk
        if not is_disk_full(error, out):
            raise
        raise SandboxError(f"--out: {out} cannot be written: the disk is full; make room") from error


def _export(checkpoint: Path, out: Path, merge: bool) -> Exported:
    base, rank = read_metadata(str(checkpoint))
    if not rank:
        for file in checkpoint.iterdir():
            if file.name not in (METADATA, OPTIMIZER, MASTERS):
                shutil.copy2(file, out / file.name)
        return "model"
    try:
        tokenizer = AutoTokenizer.from_pretrained(base)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"the model that was trained, {base}, is needed and cannot be loaded: {reason}") from error
    tokenizer.save_pretrained(out)
    if merge:
        with without_progress_bars():
            _merged(checkpoint).save_pretrained(out)
        return "model"
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    config |= {  # as other programs expect it: layers by the last part of their names, an integer alpha
        "base_model_name_or_path": base,
        "target_modules": sorted({str(name).rpartition(".")[2] for name in config["target_modules"]}),
        "lora_alpha": int(config["lora_alpha"]),
        "inference_mode": True,
    }
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy2(checkpoint / "adapter_model.safetensors", out)
    return "adapter"


def _merged(checkpoint: Path) -> Any:
    """The base model with the adapters added: computed in float32, returned in the base model's data type."""
    base, _, module = load_checkpoint(ModelStore(choose_device("cpu", "float32")), str(checkpoint))
    inner = module.get_base_model()
    head = inner.get_output_embeddings()
    layer = getattr(head, "base_layer", head)
    if layer.weight is inner.get_input_embeddings().weight:
        # The adapter of the output layer must not change the input embedding, so the two are no longer tied.
        layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
    merged = module.merge_and_unload()
    merged.config.tie_word_embeddings = layer.weight is merged.get_input_embeddings().weight
    dtype = AutoConfig.from_pretrained(base.path).dtype
    return merged if dtype is None else merged.to(dtype)
