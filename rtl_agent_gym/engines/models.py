"""Models in memory: loaded once, shared by all that build on them, adapted with LoRA, copied for sampling.

A copy of a model shares the tensors that are not trained. So the base of a student and of its teacher is in memory
once, each sampler of a LoRA student costs its adapters only, and no switch has to be thrown between them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import UsageError

_keys = count()

ADAPTER = "default"


@dataclass(frozen=True)
class Device:
    """Where models live and in which precision."""

    name: str
    dtype: torch.dtype


def choose_device(device: str, dtype: str) -> Device:
    """``auto`` takes a GPU in bfloat16 if there is one, otherwise the CPU in float32."""
    name = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        return Device(name, torch.bfloat16 if name.startswith("cuda") else torch.float32)
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"dtype is 'auto' or a floating-point type of torch such as 'float32', not {dtype!r}")
    return Device(name, found)


@dataclass
class Base:
    """A published model, as loaded."""

    path: str
    module: Any
    device: Device

    @cached_property
    def tokenizer(self) -> Any:
        """Its tokenizer, a fast one of transformers."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path)

    @cached_property
    def weights(self) -> Weights:
        """It as it is, to sample from."""
        return Weights(self, self.module)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a text when nothing else is said."""
        for config in (getattr(self.module, "generation_config", None), self.module.config):
            found = getattr(config, "eos_token_id", None)
            if found is not None:
                return (found,) if isinstance(found, int) else tuple(found)
        return ()

    @property
    def context(self) -> int:
        """The tokens that fit, prompt and answer together."""
        return int(getattr(self.module.config, "max_position_embeddings", None) or 1 << 20)


@dataclass(frozen=True, eq=False)
class Weights:
    """A model that does not change any more."""

    base: Base
    module: Any
    key: int = field(default_factory=lambda: next(_keys))
    """Tells these weights from all others."""


class Shelf:
    """The bases that are in memory."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bases: dict[str, Base] = {}

    def base(self, path: str) -> Base:
        """The model in that folder, or of that name on the hub. Raises `UsageError` when it cannot be had."""
        known = str(Path(path).resolve()) if Path(path).is_dir() else path
        if known not in self._bases:
            self._bases[known] = Base(known, self._load(known), self._device)
        return self._bases[known]

    def _load(self, path: str) -> Any:
        from transformers import AutoModelForCausalLM

        try:
            with quiet():
                module = AutoModelForCausalLM.from_pretrained(
                    path, dtype=self._device.dtype, attn_implementation="sdpa"
                )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no causal language model can be read from {path!r}: {error}\n"
                "Give a folder as transformers saves them, or a name on the Hugging Face hub."
            ) from error
        unknown = set(getattr(module.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
        if unknown:
            raise UsageError(f"the local engine knows no layers of kind {', '.join(sorted(unknown))}, as {path} has")
        made: Any = module
        return made.to(self._device.name).requires_grad_(False).eval()


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars, which would break into the caller's own display."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def copy_sharing_frozen(module: nn.Module) -> Any:
    """A copy that shares every tensor which is not trained, and has its own of the others."""
    tensors = chain(module.parameters(), module.buffers())
    frozen = {id(tensor): tensor for tensor in tensors if not tensor.requires_grad}
    return copy.deepcopy(module, frozen)


def freeze_copy(base: Base, module: nn.Module) -> Weights:
    """The weights of a model under training as they are now."""
    made = copy_sharing_frozen(module)
    return Weights(base, made.requires_grad_(False).eval())


@dataclass(frozen=True)
class LoraSpec:
    """Which adapters a trainer trains; rank 0 stands for all weights and no adapters."""

    rank: int = 32
    alpha: float = 32.0
    """The adapter's output is scaled by alpha / rank, as Tinker's is."""
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


def trainable(base: Base, spec: LoraSpec) -> Any:
    """A model to be trained: a peft model with fresh adapters, or a full copy for rank 0."""
    if spec.rank < 0:
        raise UsageError(f"a LoRA rank is at least 1, or 0 to train all weights; got {spec.rank}")
    if spec.rank == 0:
        return copy.deepcopy(base.module).requires_grad_(True)
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]  # the library multiplies with it; a float serves
        lora_dropout=0.0,
        target_modules=_targets(base.module, spec),
        task_type="CAUSAL_LM",
    )
    devices = [torch.cuda.current_device()] if base.device.name.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        # Adapters of a tied output layer leave the input embedding alone, which is wanted; and peft finds out by itself
        # how a layer stores its weights. Neither is worth a warning.
        warnings.filterwarnings("ignore", message=".*tie.*")
        warnings.filterwarnings("ignore", message="fan_in_fan_out.*")
        if spec.seed is not None:
            torch.manual_seed(spec.seed)
        else:
            torch.seed()
        return get_peft_model(copy_sharing_frozen(base.module), config).eval()


def _targets(module: nn.Module, spec: LoraSpec) -> list[str]:
    """The full names of the layers to adapt."""
    from transformers.pytorch_utils import Conv1D

    output = module.get_output_embeddings()  # type: ignore[operator]
    found = []
    for name, layer in module.named_modules():
        if not isinstance(layer, (nn.Linear, Conv1D)):
            continue
        attention = "attn" in name or "attention" in name
        wanted = spec.train_unembed if layer is output else spec.train_attn if attention else spec.train_mlp
        if wanted:
            found.append(name)
    if not found:
        raise UsageError("these options leave no layer to train; turn on train_mlp, train_attn or train_unembed")
    return found
