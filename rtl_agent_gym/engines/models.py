"""Models in memory: loaded once, adapted with LoRA, copied for sampling.

Copies of a model share the tensors that are not trained. So a base model is in memory once, even if it is both student
and teacher, and each sampler of a LoRA student only costs the memory of its adapters.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging as transformers_logging

from ..errors import UsageError

LORA_ALPHA = 32.0
"""The output of an adapter is scaled by this over its rank, as in Tinker's service."""
ATTENTION = "rtl_agent_gym"
"""The name of `grouped_attention`, for ``attn_implementation``."""

_keys = count()


@dataclass(frozen=True)
class Device:
    """Where models are, and in which precision."""

    name: str
    dtype: torch.dtype


def choose_device(device: str, dtype: str) -> Device:
    """``auto`` takes a GPU if there is one, in bfloat16 if the GPU supports it, else float32. Raises `UsageError`."""
    name = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        what = str(error).partition("\n")[0]
        raise UsageError(f"device: torch cannot use {device!r} here ({what}); choose 'auto' or 'cpu'") from error
    if dtype == "auto":
        if not name.startswith("cuda"):
            return Device(name, torch.float32)
        with torch.cuda.device(name):
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return Device(name, torch.bfloat16 if has_bfloat16 else torch.float32)
    found = getattr(torch, dtype, None)
    if found not in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        raise UsageError(f"dtype must be 'auto', 'bfloat16', 'float16', 'float32' or 'float64', not {dtype!r}")
    return Device(name, found)


def precision_of(device: str, dtype: str) -> str:
    """The name of the precision that `choose_device` chooses, such as ``float32``. Raises like it."""
    return str(choose_device(device, dtype).dtype).removeprefix("torch.")


@dataclass
class Base:
    """A published model, as loaded."""

    path: str
    module: Any
    device: Device

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer: a fast tokenizer of transformers."""
        return AutoTokenizer.from_pretrained(self.path)

    @cached_property
    def weights(self) -> Weights:
        """The model as published, to sample from."""
        return Weights(self, self.module)

    @cached_property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.module.parameters())

    @property
    def config(self) -> Any:
        """The configuration of the text part; a model that also reads images has other parts."""
        return self.module.config.get_text_config()

    @property
    def end_ids(self) -> tuple[int, ...]:
        for config in (getattr(self.module, "generation_config", None), self.module.config, self.config):
            found = getattr(config, "eos_token_id", None)
            if found is not None:
                return (found,) if isinstance(found, int) else tuple(found)
        return ()

    @property
    def context(self) -> int:
        """The context length in tokens, prompt and answer together."""
        return int(getattr(self.config, "max_position_embeddings", None) or 1 << 20)

    def check_trainable(self, rank: int) -> None:
        """Raise `UsageError` if, with this LoRA rank (0: all weights), some gradients would be missing or 0."""
        if self.device.dtype == torch.float16:
            raise UsageError(
                "weights in float16 cannot be trained, as small gradients would become 0; choose bfloat16 or float32 "
                "(local_dtype)"
            )
        quantizer = getattr(self.module, "hf_quantizer", None)
        if quantizer is not None and not (rank and quantizer.is_trainable):
            raise UsageError(f"the quantised weights of {self.path} cannot be trained; give the model unquantised")
        for name, layer in self.module.named_modules() if rank else ():
            has_experts = "experts" in f"{name} {type(layer).__name__}".lower()
            # Since transformers 5, the experts of most models are not linear layers but one joint tensor.
            if has_experts and any(weight.ndim == 3 for weight in layer.parameters(recurse=False)):
                raise UsageError(f"the experts of {self.path} would get no adapters; use lora_rank=0 or a service")

    def check_prompt(self, tokens: Sequence[int], limit: int) -> None:
        """Raise `UsageError` if a prompt is empty or has more than `limit` tokens."""
        if not tokens:
            raise UsageError("a prompt needs at least one token")
        if len(tokens) > limit:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens; the context length of {self.path} is {self.context}"
            )


@dataclass(frozen=True, eq=False)
class Weights:
    """A model whose weights no longer change."""

    base: Base
    module: Any
    key: int = field(default_factory=lambda: next(_keys))


class ModelStore:
    """Loads base models on a device, and keeps them in memory. `on_load` is called with each model after loading."""

    def __init__(self, device: Device, on_load: Callable[[Base], None] = lambda base: None) -> None:
        self._device, self._on_load = device, on_load
        self._bases: dict[str, Base] = {}

    def base(self, path: str) -> Base:
        """The model in a folder, or with a name on the hub. Raises `UsageError` if it cannot be loaded."""
        known = str(Path(path).resolve()) if Path(path).is_dir() else path
        if known not in self._bases:
            self._bases[known] = Base(known, self.load(known).eval(), self._device)
            self._on_load(self._bases[known])
        return self._bases[known]

    def load(self, path: str) -> Any:
        """Load a model of transformers, frozen, on the device. Raises `UsageError` if it cannot be loaded."""
        try:
            with without_progress_bars():
                module: Any = AutoModelForCausalLM.from_pretrained(
                    path, dtype=self._device.dtype, attn_implementation=ATTENTION
                )
        # ImportError: the package of a quantisation is missing. SafetensorError: for example, a Git LFS pointer.
        except (OSError, ValueError, ImportError, SafetensorError) as error:
            raise UsageError(
                f"no causal language model can be read from {path!r}: {error}\n"
                "Give a folder in the format of transformers, or a name on the Hugging Face hub."
            ) from error
        if not module._supports_sdpa:  # such as gpt-oss, whose attention has sinks
            raise UsageError(f"the local engine does not support the attention of {type(module).__name__} ({path})")
        layers = set(getattr(module.config.get_text_config(), "layer_types", None) or ())
        if unknown := layers - {"full_attention", "sliding_attention"}:
            raise UsageError(f"the local engine does not support layers of type {', '.join(sorted(unknown))} ({path})")
        _make_savable(module)
        return module.to(self._device.name).requires_grad_(False)


def _make_savable(module: Any) -> None:
    """If transformers would refuse to write the generation configuration, keep only its token ids."""
    if (config := getattr(module, "generation_config", None)) is None:
        return
    try:
        config.validate(strict=True)
    except ValueError:
        module.generation_config = type(config)(
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=None if (config.pad_token_id or 0) < 0 else config.pad_token_id,
        )


def are_full(path: str) -> bool:
    """Whether the weights in a model's folder are in full precision, by its configuration."""
    return AutoConfig.from_pretrained(path).dtype not in (torch.bfloat16, torch.float16)


def full_weights(path: str) -> dict[str, Tensor]:
    """The float32 weights of a model's folder by name, on the CPU. Raises like `ModelStore.load`."""
    return dict(ModelStore(Device("cpu", torch.float32)).load(path).named_parameters())


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars, which would disturb the caller's display."""
    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def copy_sharing_frozen(module: nn.Module) -> Any:
    """A copy that shares the tensors that are not trained with the original."""
    tensors = chain(module.parameters(), module.buffers())
    frozen = {id(tensor): tensor for tensor in tensors if not tensor.requires_grad}
    return copy.deepcopy(module, frozen)


def with_adapters(base: Base, rank: int, seed: int) -> Any:
    """A peft model with new adapters on all linear layers, including the output layer."""
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    config = LoraConfig(
        r=rank,
        lora_alpha=LORA_ALPHA,  # type: ignore[arg-type]  # peft multiplies by it, so a float works
        lora_dropout=0.0,
        target_modules=[name for name, layer in base.module.named_modules() if isinstance(layer, (nn.Linear, Conv1D))],
        task_type="CAUSAL_LM",
    )
    devices = [torch.cuda.current_device()] if base.device.name.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices), _quiet_peft():
        torch.manual_seed(seed)
        return get_peft_model(copy_sharing_frozen(base.module), config).eval()


def checkpoint_gradients(module: Any) -> None:
    """Let each layer recompute its activations in the backward pass. Raises `UsageError` if the model cannot."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    if not getattr(module, "supports_gradient_checkpointing", True):
        raise UsageError(f"gradient checkpointing: models of type {module.config.model_type} do not support it")
    enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
    enable({"use_reentrant": False})  # the second is its name in older versions of transformers
    for layer in module.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True  # required for checkpointing; inner modules, such as dropout, stay in evaluation mode


def cache_argument(module: Any) -> str:
    """The name of a model's cache argument, which depends on the version of transformers."""
    model = module.get_base_model() if hasattr(module, "get_base_model") else module  # peft's takes any name
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@contextmanager
def body_once(module: Any, computed: list[Any] | None = None) -> Iterator[None]:
    """Within the block, the first pass computes everything before the output layer, and later passes reuse the result.

    All passes must be over the same tokens. A model whose body contains its output layer recomputes everything each
    time. The first pass's result is added to `computed`; another block with the same list reuses it.
    """
    computed = [] if computed is None else computed
    model = module.get_base_model() if hasattr(module, "get_base_model") else module
    body, head = model.base_model, model.get_output_embeddings()
    if any(layer is head for layer in body.modules()):
        yield
        return
    compute = body.forward

    def forward(*args: Any, **named: Any) -> Any:
        if not computed:
            computed.append(compute(*args, **named))
        return computed[0]

    body.forward = forward
    try:
        yield
    finally:
        del body.forward


def with_saved_adapters(base: Base, folder: Path) -> Any:
    """A peft model with the adapters saved in a folder, for further training."""
    from peft import PeftModel

    with _quiet_peft():
        # Without a device, peft loads them onto the first GPU, wherever the model is.
        return PeftModel.from_pretrained(
            copy_sharing_frozen(base.module), folder, is_trainable=True, torch_device=base.device.name
        ).eval()


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """Hide three harmless warnings of peft.

    Adapters of a tied output layer do not change the input embedding, which is intended; peft itself detects how a
    layer stores its weights; and peft uses a name that transformers has deprecated.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tie.*")
        warnings.filterwarnings("ignore", message="fan_in_fan_out.*")
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated.*")
        yield


_lengths: ContextVar[Sequence[int] | None] = ContextVar("_lengths", default=None)


@contextmanager
def own_lengths(lengths: Sequence[int]) -> Iterator[None]:
    """Within the block, each sequence's query attends to its first `lengths` keys, without a mask; with 0, to none.

    Only for one query per sequence. On a CPU, the cost of a sampling step then depends on the lengths of the running
    sequences, not on the longest in every row; transformers' ``sdpa`` is also slow there for single queries.
    """
    token = _lengths.set(lengths)
    try:
        yield
    finally:
        _lengths.reset(token)


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Like transformers' ``sdpa``, without copies of keys and values in a sampling step; see also `own_lengths`.

    With grouped queries, several heads read the same keys and values. If there is a mask, transformers copies these
    once per head, which is most of the work of a sampling step (one token for each of many sequences). Here the heads
    of a group instead become the queries of one head, which gives the same result.

    Args:
        module: The attention layer.
        query: sequences × heads × tokens × size.
        key: sequences × groups × length × size.
        value: sequences × groups × length × value size.
        attention_mask: Added to the scores; sequences × 1 × tokens × length.
        options: Other options of transformers.

    Returns:
        sequences × tokens × heads × value size.
    """
    rows, heads, tokens, size = query.shape
    groups = key.shape[1]
    if tokens == 1 and (lengths := _lengths.get()) is not None:
        queries = (query.float() * (options.get("scaling") or size**-0.5)).view(rows, groups, heads // groups, size)
        result = queries.new_zeros(rows, groups, heads // groups, value.shape[-1])
        for row, length in enumerate(lengths):
            if length:
                scores = torch.bmm(queries[row], key[row, :, :length].float().transpose(1, 2))
                torch.bmm(scores.softmax(-1), value[row, :, :length].float(), out=result[row])
        return result.view(rows, 1, heads, -1).to(query.dtype), None
    if tokens > 1 or groups == heads or attention_mask is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output
    together = query.reshape(rows, groups, heads // groups, size)
    mask = attention_mask.expand(rows, 1, heads // groups, -1)
    found = functional.scaled_dot_product_attention(together, key, value, attn_mask=mask, scale=options.get("scaling"))
    return found.reshape(rows, 1, heads, -1), None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
