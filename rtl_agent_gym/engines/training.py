"""Weights under training: gradients, steps, checkpoints. Everything here runs in the engine's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tinker
import torch
from torch import Tensor

from ..errors import UsageError
from . import checkpoints
from .losses import batches, loss_of, read_data, read_options, target_logprobs
from .models import Base, LoraSpec, Weights, freeze_copy


class Training:
    """One model and its optimizer.

    The optimizer works on float32 copies of what is trained in a smaller type: bfloat16 knows no number between 0.02
    and 0.0201, so that smaller updates would be rounded away, one after the other. The model holds the copies rounded.

    Args:
        base: What it started from.
        lora: How it was adapted.
        module: The model; its parameters that require a gradient are trained.
        batch_tokens: Tokens, padding included, that go through the model at once.
    """

    def __init__(self, base: Base, lora: LoraSpec, module: Any, batch_tokens: int) -> None:
        self.base, self.lora, self.module = base, lora, module
        self._batch_tokens = batch_tokens
        self._named = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self._start()

    def _start(self) -> None:
        """Master copies of the weights as they are, and an optimizer that has seen nothing."""
        self._masters = {
            name: one.detach().float().requires_grad_(True) if _small(one) else one for name, one in self._named.items()
        }
        self._parameters = list(self._masters.values())
        self._optimizer = torch.optim.AdamW(self._parameters)

    def forward(
        self,
        data: Sequence[tinker.Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        backward: bool,
    ) -> tinker.ForwardBackwardOutput:
        """The loss, and its gradient added to the accumulated one."""
        examples = read_data(data, loss_fn)
        options = read_options(loss_fn, config)
        total, outputs = 0.0, []
        with torch.set_grad_enabled(backward):
            for batch in batches(examples, self._batch_tokens):
                logprobs = target_logprobs(self.module, batch, self.base.device.name)
                losses = [loss_of(loss_fn, one, example, options) for one, example in zip(logprobs, batch, strict=True)]
                loss = torch.stack(losses).sum()
                if backward:
                    loss.backward()  # type: ignore[no-untyped-call]
                    self._gather()
                total += loss.item()
                outputs += [{"logprobs": _data(one)} for one in logprobs]
        return tinker.ForwardBackwardOutput(
            loss_fn_output_type="TorchLossReturn", loss_fn_outputs=outputs, metrics={"loss:sum": total}
        )

    def step(self, params: tinker.AdamParams) -> tinker.OptimStepResponse:
        """One step of AdamW; ``metrics`` has the gradient's norm before clipping."""
        if all(one.grad is None for one in self._parameters):
            raise UsageError("there is no gradient to step along: call forward_backward before optim_step")
        limit = params.grad_clip_norm if params.grad_clip_norm > 0 else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        for group in self._optimizer.param_groups:
            group["lr"], group["betas"] = params.learning_rate, (params.beta1, params.beta2)
            group["eps"], group["weight_decay"] = params.eps, params.weight_decay
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._round()
        return tinker.OptimStepResponse(metrics={"unclipped_grad_l2:mean": float(norm)})

    def gradients(self) -> dict[str, Tensor]:
        """A copy of the accumulated gradient by parameter name; empty before the first."""
        return {name: one.grad.detach().clone() for name, one in self._masters.items() if one.grad is not None}

    def snapshot(self) -> Weights:
        """The weights as they are now."""
        return freeze_copy(self.base, self.module)

    def save(self, folder: Path, optimizer: bool) -> None:
        """Write a checkpoint; see `checkpoints`."""
        masters = {name: one for name, one in self._masters.items() if one is not self._named[name]}
        kept = (self._optimizer, masters) if optimizer else None
        checkpoints.save(folder, self.base, self.lora, self.module, kept)

    def load(self, path: str, optimizer: bool) -> None:
        """Take weights, and the optimizer's state or none."""
        note = checkpoints.read_note(path)
        if note is None or note.lora.rank != self.lora.rank:
            found = "no trainer's checkpoint" if note is None else f"adapters of rank {note.lora.rank}"
            raise UsageError(f"{path!r} holds {found}; this trainer has rank {self.lora.rank}")
        checkpoints.load_into(self.module, Path(path), note)
        self.restore(path, optimizer)

    def restore(self, path: str, optimizer: bool) -> None:
        """Take what was saved beside the weights, which the model has already: masters, and the optimizer's state."""
        self._start()
        exact = checkpoints.read_masters(path)
        with torch.no_grad():
            for name, one in self._masters.items():
                if one is not self._named[name] and name in exact:
                    one.copy_(exact[name])
        if optimizer:
            self._optimizer.load_state_dict(checkpoints.read_optimizer(path))

    def _gather(self) -> None:
        """Add the gradients of the model's own small types to those of their masters, where sums lose nothing."""
        for name, one in self._named.items():
            master = self._masters[name]
            if master is one or one.grad is None:
                continue
            grad = one.grad.float()
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            one.grad = None

    def _round(self) -> None:
        """Give the model its masters' values."""
        with torch.no_grad():
            for name, one in self._named.items():
                if self._masters[name] is not one:
                    one.copy_(self._masters[name])


def _small(parameter: Tensor) -> bool:
    return parameter.dtype in (torch.bfloat16, torch.float16)


def _data(values: Tensor) -> tinker.TensorData:
    return tinker.TensorData.from_torch(values.detach().float().cpu())


def score(weights: Weights, tokens: Sequence[int]) -> list[float | None]:
    """The log-probability of each token given those before it; None for the first."""
    if not tokens:
        raise UsageError("a prompt needs at least one token")
    if len(tokens) > weights.base.context:
        raise UsageError(f"the prompt has {len(tokens)} tokens; {weights.base.path} takes {weights.base.context}")
    ids = torch.tensor([list(tokens)], device=weights.base.device.name)
    with torch.inference_mode():
        logits = weights.module(input_ids=ids, use_cache=False).logits[0, :-1].float()
        chosen = logits.gather(-1, ids[0, 1:].unsqueeze(-1)).squeeze(-1)
        return [None, *(chosen - logits.logsumexp(-1)).tolist()]
