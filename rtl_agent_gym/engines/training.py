"""Trains weights: losses, gradients, optimizer steps, checkpoints. Everything here runs in the engine's thread.

The losses are those of Tinker's service, each summed over all tokens.

A checkpoint is a folder with the weights, the name of the base model, and optionally the optimizer. Weights are saved
in the format of transformers (all weights) or of peft (adapters), so they can be read without this package. Most bytes
that a disk damages would be other valid weights, so a checkpoint has a checksum of each file.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from ..errors import NotFinite, SandboxError, UsageError, cannot_write
from . import models
from .config import LocalEngineConfig
from .models import Base, ModelStore, Weights

METADATA = "engine.json"
OPTIMIZER = "optimizer.pt"
MASTERS = "masters.safetensors"
"""File of the float32 copies of the model's half-precision weights."""
_INPUTS: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
}
_PPO_OPTIONS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
LEAST_SHARED = 32
"""Minimum length, in tokens, of a common prefix of a batch for it to be computed only once."""
SCORED = 4096
"""Tokens whose logits are in memory at once: those of a long text would need more memory than the model."""
_LEAST_FREE = 1 << 20
"""A disk with fewer free bytes counts as full, if an error does not say why writing failed."""
_OF_TORCH = ("inline_container", "iostream error")
_UNWRITTEN = (*_OF_TORCH, "(os error ")
"""What the messages of torch and tokenizers contain if a file cannot be written."""


class Training:
    """One model and its optimizer.

    The optimizer updates float32 master copies of the model's bfloat16 weights. In bfloat16 there is no number between
    0.02 and 0.0201, so smaller updates would all be rounded away.

    The parameters of `module` that require a gradient are trained: adapters, or all weights if the LoRA rank is 0.
    """

    def __init__(self, base: Base, rank: int, module: Any, config: LocalEngineConfig) -> None:
        self.base, self.rank, self.module, self._config = base, rank, module, config
        if config.gradient_checkpointing:
            models.checkpoint_gradients(module)
        self._named = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        half = {name: weight for name, weight in self._named.items() if weight.dtype == torch.bfloat16}
        self._copies = {name: weight.detach().float().requires_grad_(True) for name, weight in half.items()}
        self._masters = self._named | self._copies
        self._parameters = list(self._masters.values())
        self._optimizer = torch.optim.AdamW(self._parameters)

    @classmethod
    def fresh(cls, base: Base, rank: int, seed: int, config: LocalEngineConfig) -> Training:
        """Train new adapters, or if the rank is 0 a copy of all weights. Raises `UsageError` if that is impossible."""
        if rank < 0:
            raise UsageError(f"a LoRA rank must be at least 1, or 0 to train all weights; got {rank}")
        base.check_trainable(rank)
        module = models.with_adapters(base, rank, seed) if rank else copy.deepcopy(base.module).requires_grad_(True)
        return cls(base, rank, module, config)

    @classmethod
    def restored(cls, store: ModelStore, path: str, optimizer: bool, config: LocalEngineConfig) -> Training:
        """Continue from a checkpoint, with its optimizer if requested.

        Raises `UsageError` if the optimizer was not saved, if a file is damaged, or if the weights cannot be trained.
        """
        base, rank, module = load_checkpoint(store, path)
        base.check_trainable(rank)
        training = cls(base, rank, module, config)
        masters, file, state = training._masters, Path(path) / MASTERS, Path(path) / OPTIMIZER
        if file.is_file():
            with _reading(path):
                saved = load_file(file)
        elif not training.rank and training._copies and models.are_full(path):  # the model's weights are rounded
            saved = models.full_weights(path)
        else:
            saved = {}
        with torch.no_grad():
            for name in saved.keys() & masters.keys():
                masters[name].copy_(saved[name])
        if optimizer:
            if not state.is_file():
                raise UsageError(f"the checkpoint at {path!r} has weights only; save_state also saves the optimizer")
            # On the CPU first: the optimizer moves it to the parameters' device, which may be another than before.
            with _reading(path, RuntimeError):
                found = torch.load(state, map_location="cpu", weights_only=True)
            training._optimizer.load_state_dict(found)
        return training

    def forward(
        self, data: Sequence[tinker.Datum], loss_fn: str, config: Mapping[str, float | str] | None, backward: bool
    ) -> tinker.ForwardBackwardOutput:
        """Compute the loss; with `backward`, add its gradient to the accumulated one.

        With `backward`, the log-probabilities of tokens that are not trained on are not computed, and are 0.
        """
        examples = read_data(data, loss_fn)
        options = read_options(loss_fn, config)
        total, outputs = 0.0, []
        with torch.set_grad_enabled(backward):
            for batch in batches(examples, self._config.batch_tokens):
                wanted = [example.trained for example in batch] if backward else None
                logprobs = target_logprobs(self.module, batch, self.base.device.name, wanted)
                pairs = zip(logprobs, batch, strict=True)
                loss = torch.stack([loss_of(loss_fn, found, example, options) for found, example in pairs]).sum()
                if backward:
                    loss.backward()  # type: ignore[no-untyped-call]
                    self._move_gradients_to_masters()
                total += loss.item()
                found = [tinker.TensorData.from_torch(part.detach().float().cpu()) for part in logprobs]
                outputs += [{"logprobs": part} for part in found]
        return tinker.ForwardBackwardOutput(
            loss_fn_output_type="TorchLossReturn", loss_fn_outputs=outputs, metrics={"loss:sum": total}
        )

    def step(self, params: tinker.AdamParams) -> tinker.OptimStepResponse:
        """One step of AdamW; ``metrics`` has the gradient's norm before clipping.

        Raises `NotFinite` if the gradient is not finite: then weights and optimizer stay as they are, and the gradient
        is cleared.
        """
        if not (gradients := self.gradients()):
            raise UsageError("there is no gradient: call forward_backward before optim_step")
        # A finite norm also means that Adam's squares do not overflow, which would freeze a weight permanently.
        norm = torch.nn.utils.get_total_norm(gradients.values())
        if not norm.isfinite():
            self._optimizer.zero_grad(set_to_none=True)
            raise NotFinite(f"the gradient is not finite{_first_bad(gradients)}")
        if params.grad_clip_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, params.grad_clip_norm, norm)
        for group in self._optimizer.param_groups:
            group["lr"], group["betas"] = params.learning_rate, (params.beta1, params.beta2)
            group["eps"], group["weight_decay"] = params.eps, params.weight_decay
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, master in self._copies.items():
                self._named[name].copy_(master)
        return tinker.OptimStepResponse(metrics={"unclipped_grad_l2:mean": float(norm)})

    def gradients(self) -> dict[str, Tensor]:
        """The accumulated gradient by parameter name; empty if there is none."""
        return {name: master.grad for name, master in self._masters.items() if master.grad is not None}

    def snapshot(self) -> Weights:
        """The weights as they are now. Raises `NotFinite` if they are not."""
        self._check_weights()
        return Weights(self.base, models.copy_sharing_frozen(self.module).requires_grad_(False).eval())

    def save(self, folder: Path, optimizer: bool) -> str:
        """Write a checkpoint atomically, with or without the optimizer. Returns its path.

        Raises `NotFinite` if a weight is not finite; then nothing is written.
        """
        self._check_weights()
        with _new_folder(folder) as scratch:
            with models.without_progress_bars():
                if self.rank:
                    self.module.save_pretrained(scratch, save_embedding_layers=False)
                else:
                    self.module.save_pretrained(scratch)
                    self.base.tokenizer.save_pretrained(scratch)
            if optimizer:
                torch.save(self._optimizer.state_dict(), scratch / OPTIMIZER)
                if self._copies:
                    saved = {name: master.detach().contiguous().cpu() for name, master in self._copies.items()}
                    save_file(saved, scratch / MASTERS)
            files = sorted(file for file in scratch.rglob("*") if file.is_file())
            digests = {str(file.relative_to(scratch)): _digest(file) for file in files}
            metadata = {"base_model": self.base.path, "lora": {"rank": self.rank}, "sha256": digests}
            (scratch / METADATA).write_text(json.dumps(metadata, indent=1) + "\n")
        return str(folder)

    def _check_weights(self) -> None:
        """Raise `NotFinite` unless every trained weight is finite, so that only finite weights leave the trainer."""
        if bad := _first_bad(self._named):
            raise NotFinite(f"the weights are not finite{bad}")

    def _move_gradients_to_masters(self) -> None:
        """Accumulate half-precision gradients in the float32 master copies, where sums are not rounded away."""
        for name, master in self._copies.items():
            half = self._named[name]
            if half.grad is not None:
                grad = half.grad.float()
                master.grad = grad if master.grad is None else master.grad.add_(grad)
                half.grad = None


def _first_bad(tensors: Mapping[str, Tensor]) -> str:
    """A note on the first tensor that is not finite; empty if all are."""
    name = next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)
    return "" if name is None else f" (in {name})"


def _flush(*paths: Path) -> None:
    """Flush files and folders to disk, so that after a power failure no record names files that were lost."""
    for path in paths:
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder to write to; it replaces `folder` when the block ends without an error.

    Raises `SandboxError` if the disk is full or fails. After an error the scratch folder is deleted.
    """
    scratch, old = folder.with_name(f".{folder.name}.{os.getpid()}"), folder.with_name(f".{folder.name}.old")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        yield scratch
        _flush(*scratch.rglob("*"), scratch)
        if folder.exists():
            os.replace(folder, old)
        os.replace(scratch, folder)
        _flush(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except Exception as error:  # tokenizers and torch have no exception class for a full disk
        full = is_disk_full(error, folder)
        if full or any(sign in str(error) for sign in _UNWRITTEN):
            why = "the disk is full" if full else "the disk failed, or a quota is reached"
            raise SandboxError(f"checkpoint {folder} cannot be written: {why}; make room, and resume") from error
        if isinstance(error, OSError) and error.filename is None:
            raise cannot_write("checkpoint", folder, error) from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_disk_full(error: Exception, folder: Path) -> bool:
    """Whether `folder` could not be written because the disk is full."""
    reasons = ("No space left on device", "Disk quota exceeded")
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(why in str(error) for why in reasons):
        return True
    place = next(parent for parent in folder.absolute().parents if parent.exists())
    return any(sign in str(error) for sign in _OF_TORCH) and shutil.disk_usage(place).free < _LEAST_FREE


def is_checkpoint(path: str) -> bool:
    """Whether this engine saved the folder. Raises `UsageError` if it does not exist."""
    if not Path(path).is_dir():
        raise UsageError(f"there is no checkpoint at {path!r}; give the path that save_state returned")
    return (Path(path) / METADATA).is_file()


@contextmanager
def _reading(path: str, *more: type[Exception]) -> Iterator[None]:
    """Raise `UsageError` in place of errors of a damaged file in a checkpoint: those of its format, and `more`."""
    of_format = OSError, EOFError, LookupError, TypeError, ValueError, SafetensorError, pickle.UnpicklingError
    damaged: tuple[type[Exception], ...] = (*of_format, *more)
    try:
        yield
    except damaged as error:
        reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise UsageError(
            f"the checkpoint at {path!r} is damaged or was not copied completely ({reason}); restore it, or give "
            "another one"
        ) from error


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_metadata(path: str) -> tuple[str, int]:
    """The name of a checkpoint's base model, and its LoRA rank.

    Raises `UsageError` if they cannot be read, or if a file differs from what was saved.
    """
    with _reading(path):
        metadata = json.loads((Path(path) / METADATA).read_text())
        found = str(metadata["base_model"]), int(metadata["lora"]["rank"])
        for name, digest in dict(metadata.get("sha256", {})).items():  # earlier versions recorded none
            if (file := Path(path) / name).is_file() and _digest(file) != digest:
                raise ValueError(f"{name} has changed since it was saved")
        return found


def load_checkpoint(store: ModelStore, path: str) -> tuple[Base, int, Any]:
    """The base model, the LoRA rank and the module saved in a checkpoint.

    Raises `UsageError` if it is not one, or if a file is damaged.

    A checkpoint of all weights is complete, so it is its own base model if the folder of the base model is missing.
    """
    if not is_checkpoint(path):
        raise UsageError(f"{path!r} is not a checkpoint of a trainer; give the path that save_state returned")
    name, rank = read_metadata(path)
    missing = Path(name).is_absolute() and not Path(name).is_dir()  # other names are of models on the hub
    base = store.base(path if missing and not rank else name)
    if rank:
        with _reading(path):
            return base, rank, models.with_saved_adapters(base, Path(path))
    return base, rank, store.load(path).requires_grad_(True).eval()


@dataclass(frozen=True)
class CheckedDatum:
    """A checked datum: `targets` and each of `inputs` have one value per token, or K values for K targets per token."""

    tokens: Sequence[int]
    targets: Tensor
    inputs: dict[str, Tensor]

    @property
    def trained(self) -> Tensor:
        """Which tokens are trained on, as bool: those for which any input is not 0."""
        trained = torch.stack([value != 0 for value in self.inputs.values()]).any(0)
        return trained.any(-1) if trained.ndim > 1 else trained


def read_data(data: Sequence[tinker.Datum], loss_fn: str) -> list[CheckedDatum]:
    """Check and convert the data of a request. Raises `UsageError` that names the wrong datum and key."""
    if loss_fn not in _INPUTS:
        raise UsageError(f"the local engine has no loss {loss_fn!r}; it has {', '.join(_INPUTS)}")
    if not data:
        raise UsageError("there is no data to train on")
    return [_read_datum(datum, loss_fn, f"datum {number}") for number, datum in enumerate(data)]


def read_options(loss_fn: str, config: Mapping[str, float | str] | None) -> dict[str, float]:
    """The options of a loss with its defaults. Raises `UsageError` for an unknown one."""
    known = _PPO_OPTIONS if loss_fn == "ppo" else {}
    unknown = set(config or ()) - set(known)
    if unknown:
        raise UsageError(f"{loss_fn} has no option {', '.join(sorted(unknown))}")
    return known | {name: float(value) for name, value in (config or {}).items()}


def _read_datum(datum: tinker.Datum, loss_fn: str, name: str) -> CheckedDatum:
    wanted = ("target_tokens", *_INPUTS[loss_fn])
    tokens = datum.model_input.to_ints()
    values = {key: value.to_torch() for key, value in datum.loss_fn_inputs.items()}
    if loss_fn == "cross_entropy":
        values.setdefault("weights", torch.ones(values["target_tokens"].shape if "target_tokens" in values else 0))
    missing = [key for key in wanted if key not in values]
    extra = [key for key in values if key not in wanted]
    if missing or extra:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(extra)}"
        raise UsageError(f"{name}: loss_fn_inputs {what}; {loss_fn} takes exactly {', '.join(wanted)}")
    shape = tuple(values["target_tokens"].shape)
    if shape[:1] != (len(tokens),) or len(shape) > (2 if loss_fn == "cross_entropy" else 1) or 0 in shape[1:]:
        raise UsageError(f"{name}: target_tokens has the shape {shape}; the input has {len(tokens)} tokens")
    for key, value in values.items():
        if tuple(value.shape) != shape:
            raise UsageError(f"{name}: {key} has the shape {tuple(value.shape)}, and target_tokens {shape}")
    if not tokens:
        raise UsageError(f"{name}: the input has no tokens")
    return CheckedDatum(tokens, values.pop("target_tokens").long(), values)


def batches(examples: Sequence[CheckedDatum], max_tokens: int) -> Iterator[list[CheckedDatum]]:
    """Split examples, in order, into batches of at most `max_tokens` tokens with padding, but at least one example."""
    batch: list[CheckedDatum] = []
    for example in examples:
        longest = max(len(each.tokens) for each in [*batch, example])
        if batch and longest * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch


def target_logprobs(
    module: Any, batch: Sequence[CheckedDatum], device: str, wanted: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """The log-probability of each target, differentiable: per example, a float32 tensor of the targets' shape.

    Padding is on the right, which causal attention ignores. The prefix that all examples share, up to the first wanted
    target, is computed once.

    `wanted` says which targets to compute, with one bool tensor per example; the others get 0. None: all. The output
    layer is most of the work of a small model with a large vocabulary.
    """
    ids, chosen = _padded(batch, wanted)
    several = max(example.targets[0].numel() for example in batch)
    targets = torch.zeros(*ids.shape, several, dtype=torch.long)
    for row, example in enumerate(batch):
        columns = example.targets.reshape(len(example.tokens), -1)
        targets[row, : len(columns), : columns.shape[1]] = columns
    # At least one token of each row is not shared, so that its output is computed.
    shared = _shared(ids, chosen, min(len(example.tokens) for example in batch) - 1)
    chosen = chosen.to(device)
    found = _logprobs(module, ids.to(device), chosen, shared, targets.to(device)[chosen])
    logprobs = torch.zeros(targets.shape, device=device).masked_scatter(chosen.unsqueeze(-1), found)
    return [
        logprobs[row, : len(example.tokens), : example.targets[0].numel()].reshape(example.targets.shape)
        for row, example in enumerate(batch)
    ]


def _padded(batch: Sequence[CheckedDatum], wanted: Sequence[Tensor] | None) -> tuple[Tensor, Tensor]:
    """The padded ids of a batch, and which of its positions are wanted; both have shape (rows, width)."""
    ids = torch.zeros(len(batch), max(len(example.tokens) for example in batch), dtype=torch.long)
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    for row, example in enumerate(batch):
        length = len(example.tokens)
        ids[row, :length] = torch.tensor(example.tokens)
        chosen[row, :length] = True if wanted is None else wanted[row]
    return ids, chosen


def _shared(ids: Tensor, chosen: Tensor, limit: int) -> int:
    """How many leading tokens, at most `limit`, are the same in all rows and not chosen; 0 if they are few."""
    alike = (ids == ids[0]).all(0) & ~chosen.any(0)
    found = int(alike[:limit].int().cumprod(0).sum())
    return found if len(ids) > 1 and found >= LEAST_SHARED else 0


def _logprobs(module: Any, ids: Tensor, chosen: Tensor, shared: int, targets: Tensor) -> Tensor:
    """The log-probabilities of the targets, positions × targets per position; for the rest see `_logits`.

    The logits of more than `SCORED` positions are computed in pieces, and recomputed in the backward pass.
    """

    def compute(places: Tensor, wanted: Tensor, computed: list[Any] | None = None) -> Tensor:
        logits = _logits(module, ids, places, shared, computed)
        return logits.gather(-1, wanted) - logits.logsumexp(-1, keepdim=True)

    if len(targets) > SCORED:
        computed: list[Any] = []
        _logits(module, ids, torch.zeros_like(chosen), shared, computed)
        if computed:  # otherwise `body_once` does nothing for this model
            number, starts = chosen.flatten().cumsum(0).view_as(chosen), range(0, len(targets), SCORED)
            pieces = [(chosen & (number > at) & (number <= at + SCORED), targets[at : at + SCORED]) for at in starts]
            found = [checkpoint(compute, *piece, computed, use_reentrant=False) for piece in pieces]
            return torch.cat(found)
    return compute(chosen, targets)


def _logits(module: Any, ids: Tensor, chosen: Tensor, shared: int = 0, computed: list[Any] | None = None) -> Tensor:
    """The logits at the chosen positions, float32 of shape (positions, vocabulary).

    Args:
        module: The model.
        ids: Rows × width.
        chosen: Which positions, bool; rows × width.
        shared: How many leading tokens, none of them chosen, are the same in all rows.
        computed: For `body_once`, if there are further calls for other positions.
    """
    places = chosen[:1, :shared]

    def select(layer: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0][places].unsqueeze(0), *inputs[1:])

    cache: dict[str, Any] = {}
    hook = module.get_output_embeddings().register_forward_pre_hook(select)
    try:
        # With gradient checkpointing, layers neither fill a cache nor read one.
        if shared and not getattr(module, "is_gradient_checkpointing", False):
            if not computed:
                cache = {models.cache_argument(module): DynamicCache()}
                module(input_ids=ids[:1, :shared], use_cache=True, **cache)
                for known in cache.values():
                    known.batch_repeat_interleave(len(ids))
            ids, chosen = ids[:, shared:], chosen[:, shared:]
        places = chosen
        with nullcontext() if computed is None else models.body_once(module, computed):
            logits: Tensor = module(input_ids=ids, use_cache=bool(cache), **cache).logits
        return logits.squeeze(0).float()
    finally:
        hook.remove()


def loss_of(loss_fn: str, logprobs: Tensor, example: CheckedDatum, options: Mapping[str, float]) -> Tensor:
    """The loss of one example, summed over its tokens; see `Trainer.forward_backward` for the formulas.

    An importance weight that overflows (above about e^88) is not clamped: it means that `logprobs` are not those of the
    policy that sampled, and clamping would hide that. The loss is then infinite, and the step is refused.
    """
    inputs = {key: value.to(logprobs.device) for key, value in example.inputs.items()}
    if loss_fn == "cross_entropy":
        weights = inputs["weights"]
        return -torch.where(weights != 0, weights * logprobs, 0.0).sum()  # 0 · −inf is NaN
    advantages = inputs["advantages"]
    # Tokens that were not sampled have no sampling log-probability to compare with; their advantage is 0.
    log_ratio = torch.where(advantages != 0, logprobs - inputs["logprobs"], 0.0)
    if loss_fn == "importance_sampling":
        return -(torch.exp(log_ratio) * advantages).sum()
    # Where the ratio is clipped, the gradient is 0; but for an infinite ratio, autograd would compute 0 · ∞.
    ratio = torch.exp(torch.where(advantages > 0, log_ratio.clamp(max=80.0), log_ratio))
    clipped = ratio.clamp(options["clip_low_threshold"], options["clip_high_threshold"])
    return -torch.minimum(ratio * advantages, clipped * advantages).sum()


@dataclass(frozen=True)
class Scores:
    """A model's scores of a prompt: per token, given the tokens before it, so None for the first."""

    logprobs: list[float | None]
    top: list[list[tuple[int, float]] | None] | None = None
    """The most likely tokens with their log-probabilities; None if not requested."""


def score(weights: Weights, tokens: Sequence[int], top: int = 0) -> Scores:
    """The log-probabilities of a prompt's tokens, and of the `top` most likely ones at each position."""
    weights.base.check_prompt(tokens, weights.base.context)
    example = CheckedDatum(tokens[:-1], torch.tensor(tokens[1:]), {})
    device, places = weights.base.device.name, torch.arange(len(example.tokens))
    own: list[float] = []
    best: list[list[tuple[int, float]]] = []
    with torch.inference_mode(), models.body_once(weights.module):
        for start in range(0, len(places), SCORED):
            piece = (places >= start) & (places < start + SCORED)
            if not top:
                own += target_logprobs(weights.module, [example], device, [piece])[0][piece].tolist()
                continue
            ids, chosen = (tensor.to(device) for tensor in _padded([example], [piece]))
            found = _logits(weights.module, ids, chosen).log_softmax(-1)
            likely = found.topk(min(top, found.shape[-1]), dim=-1)
            own += found.gather(-1, example.targets[piece].to(device).unsqueeze(-1)).squeeze(-1).tolist()
            pairs = zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
            best += (list(zip(*pair, strict=True)) for pair in pairs)
    return Scores([None, *own], [None, *best] if top else None)
