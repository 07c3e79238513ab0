"""Trains on a step's batch, saves checkpoints, resumes a run, and repeats failed steps so that none counts twice.

It is unknown whether a failed request to a trainer, and requests sent after it, were executed. So a step counts only
once its checkpoint is saved. After a failure, a new trainer is created from the last checkpoint, and the step is
repeated with the same episodes. If earlier steps are not in that checkpoint (``resume_every``), the run ends.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import tinker
import torch
from tinker.types import LossFnType
from tinker_cookbook.rl.metrics import compute_kl_sample_train

from ..engines.connect import Engine
from ..engines.protocol import Sampler, Trainer
from ..engines.requests import SentRequest, context_length
from ..errors import NotFinite, RequestRefused, ServiceDown, ServiceError, UsageError
from ..retries import STEP
from .datums import with_inputs
from .options import TrainOptions
from .progress import Progress
from .run_folder import CHECKPOINTS, RunFolder

T = TypeVar("T")
MakeTrainer = Callable[[str | None], Awaitable[Trainer]]
"""Creates a trainer from a checkpoint's ``state_path``, or with None for a new run."""


@dataclass
class Checkpointer:
    """The trainer, its checkpoints, and the metrics of their steps."""

    options: TrainOptions
    folder: RunFolder
    """Must be open and repaired."""
    engine: Engine
    make_trainer: MakeTrainer
    progress: Progress
    tested: bool = False
    """Whether held-out problems are evaluated; if so, the weights with the best ``test/pass_rate`` are kept."""
    repeated: int = field(default=0, init=False)
    """How often the current step's work was repeated."""

    def __post_init__(self) -> None:
        last: dict[str, Any] = next(reversed(self.folder.checkpoints()), {})
        self.steps = int(last.get("batch", 0))
        """Number of completed steps."""
        self.state: dict[str, Any] = _upgrade_state(last.get("loop", {}), self.steps)
        """The loop's state in the last checkpoint; empty for a new run."""
        self._saved, self._saved_path = self.steps, last.get("state_path")
        self._rolling: list[list[str]] = [list(paths) for paths in self.state.get("rolling", [])]
        self._unsaved: list[dict[str, Any]] = []
        self._best = self.folder.best_checkpoint()
        self._trainer: Trainer | None = None

    async def open(self) -> None:
        """Create the trainer. Raises like `Engine.trainer`."""
        try:
            self._trainer = await self.make_trainer(self._saved_path)
        except UsageError as error:
            for record in self.folder.checkpoints()[-2:-1]:
                if str(error).startswith("log_path: ") and Path(record.get("state_path") or "").is_dir():
                    raise UsageError(
                        f"{error}\nTo resume after step {record['batch']} instead, remove the last line of "
                        f"{self.folder.path / CHECKPOINTS}."
                    ) from error
            raise

    @property
    def context(self) -> int | None:
        """The student's context length in tokens; None if the engine does not report it."""
        return context_length(self._trainer)

    async def sampler(self, path: str | None) -> Sampler:
        """A sampler of the weights saved at `path`, or if that is None, of the trainer's current weights."""
        if path is not None:
            return await self.engine.sampler(path)
        return await self.apply(self.steps, lambda trainer: trainer.save_weights_and_get_sampling_client())

    async def save_sampler(self, step: int, needed: int) -> str | None:
        """Save the current weights if a checkpoint will be written in the `needed` steps beginning with `step`."""
        if not any(self._is_saved(later) for later in range(step, step + needed)):
            return None
        saved = await self.apply(step, lambda trainer: trainer.save_weights_for_sampler(f"behind-{step:06d}"))
        return str(saved.path)

    async def apply(self, step: int, work: Callable[[Trainer], Awaitable[T]]) -> T:
        """Do a step's work on the trainer, so that it takes effect exactly once.

        `work` is everything that changes or saves weights since the last step; it is repeated from its beginning.

        Raises:
            RequestRefused: The service refuses the work, and would refuse it again.
            ServiceDown: All attempts failed, or the work cannot be repeated from the last checkpoint.
            NotFinite: The loss, the gradient or the weights are not finite.
        """
        for failures in range(1, STEP.attempts + 1):
            try:
                if self._trainer is None:
                    await self.open()
                assert self._trainer is not None
                return await work(self._trainer)
            except (RequestRefused, ServiceDown):
                raise
            except NotFinite as error:
                path = self._saved_path
                last = f"the last checkpoint is of step {self._saved}" if path else "there is no checkpoint yet"
                raise NotFinite(
                    f"step {step + 1}: {error}. Nothing of this step is saved; {last}. The same command may end here "
                    "again; start another run with a lower learning_rate or a grad_clip_norm"
                    + (f" from load_checkpoint_path={path}" if path else "")
                ) from error
            except ServiceError as error:
                if failures == STEP.attempts:
                    raise ServiceDown(f"step {step + 1} failed {failures} times; {error}") from error
                if self._saved != step:
                    raise ServiceDown(
                        f"step {step + 1}: {error}; it is unknown whether the step counted, and the last checkpoint is "
                        f"of step {self._saved}: start the same command again to resume from it"
                    ) from error
                self.repeated, pause = self.repeated + 1, STEP.pause(failures)
                self.progress.print(f"step {step + 1}: {error}; repeating it from the last checkpoint in {pause:.0f} s")
            self._trainer = None
            await asyncio.sleep(pause)
        raise AssertionError("the last repetition returns or raises")

    async def train(self, step: int, data: Sequence[tinker.Datum]) -> Stepped:
        """Train on a step's data, and save the checkpoints that are due after the step. Raises like `apply`."""
        name = self._name(step)
        state, weights = (name if due(step) else None for due in (self._is_saved, self._may_be_kept))
        return await self.apply(step, lambda trainer: step_and_save(trainer, data, self.options, step, state, weights))

    async def commit(self, step: int, metrics: Mapping[str, Any], stepped: Stepped, state: Mapping[str, Any]) -> bool:
        """Record a step whose weights are saved, and delete weights that a resumed run no longer needs.

        `state` is what a resumed loop needs besides the weights; its ``pending`` names the weights of pending episodes,
        its ``teacher`` the earlier weights of a self-teacher. Returns whether a checkpoint was written.
        """
        self.steps, self.repeated = step + 1, 0
        self._unsaved.append({"step": step, **metrics})
        if stepped.state_path is None:
            return False
        rate = metrics.get("test/pass_rate") if self.tested else None
        best = rate is not None and (self._best is None or rate >= self._best["test_pass_rate"])
        permanent = self._is_kept(step)
        kept = best or permanent
        unneeded = [] if kept else [path for path in (stepped.state_path, stepped.sampler_path) if path]
        if best and self._best is not None and not self._is_permanent(self._best):
            unneeded += [self._best["state_path"], self._best["sampler_path"]]
        self._rolling.append(
            sorted({kept["weights"] for kept in (*state["pending"], *state.get("teacher", ()))}) + unneeded
        )
        obsolete = [path for paths in self._rolling[:-2] for path in paths]
        self._rolling = self._rolling[-2:]
        record = {
            "name": self._name(step),
            "batch": self.steps,
            "final": self.steps == self.options.num_steps,
            "state_path": stepped.state_path,
            "sampler_path": stepped.sampler_path,
            "local_dtype": self.options.local_dtype,
            "rolling": not kept,
            "permanent": permanent,
            "test_pass_rate": rate,
            "best": best,
            "loop": {**state, "rolling": self._rolling},
        }
        self.folder.add_checkpoint(record, self._unsaved)
        self._best = record if best else self._best
        self._saved, self._saved_path, self._unsaved = self.steps, stepped.state_path, []
        for path in obsolete:
            if not any(path in paths for paths in self._rolling):
                await self.engine.delete(path)
        return True

    def _name(self, step: int) -> str:
        return "final" if step + 1 == self.options.num_steps else f"{step + 1:06d}"

    def _is_kept(self, step: int) -> bool:
        o, done = self.options, step + 1
        return done == o.num_steps or (o.save_every > 0 and done % o.save_every == 0)

    def _is_permanent(self, record: Mapping[str, Any]) -> bool:
        """Whether a checkpoint was kept by ``save_every``, which may have changed since, and not only as the best."""
        known: bool | None = record.get("permanent")  # earlier versions did not record it
        return self._is_kept(int(record["batch"]) - 1) if known is None else known

    def _may_be_kept(self, step: int) -> bool:
        """Whether a step's weights are kept, or may be once an evaluation shows that they are the best."""
        return self._is_kept(step) or (self.tested and self.options.evaluates_after(step))

    def _is_saved(self, step: int) -> bool:
        return self._may_be_kept(step) or (step + 1) % self.options.resume_every == 0


def _upgrade_state(state: dict[str, Any], steps: int) -> dict[str, Any]:
    """Convert a loop's state written by an earlier version, which had at most one pending step."""
    if state.get("behind") is None or "pending" in state:
        return state
    return {**state, "pending": [{"problems": state["next"], "version": steps - 1, "weights": state["behind"]}]}


async def optimize(
    trainer: Trainer, data: Sequence[tinker.Datum], learning_rate: float, options: TrainOptions
) -> dict[str, float]:
    """Train on a batch, in one or more optimizer steps, and return the optimizer's metrics.

    The loss is cross-entropy for data with ``weights``, and ``loss_fn`` for data with ``advantages``. Both have a
    ``mask`` of the trained tokens. With several targets per token, the first is the sampled token.

    All requests are sent before the first is awaited, so that the service can execute them without a pause.

    Raises:
        ServiceError: A request failed. It is unknown which others were executed, so the trainer can no longer be used.
        NotFinite: An input, the loss or a metric is NaN or infinite. A service may have taken the step by then, so the
            trainer's weights must no longer be used.
    """
    for datum in data:
        for name, tensor in datum.loss_fn_inputs.items():
            if not tensor.to_torch().isfinite().all():
                raise NotFinite(f"an episode's {name} are not finite")
    adam = tinker.AdamParams(
        learning_rate=learning_rate,
        beta1=0.9,
        beta2=options.adam_beta2,
        eps=1e-8,
        grad_clip_norm=options.grad_clip_norm,
    )
    supervised = any("weights" in datum.loss_fn_inputs for datum in data)
    loss_fn: LossFnType = "cross_entropy" if supervised else options.loss_fn
    requests = []
    for part in _split(data, options.num_substeps):
        inputs = [_for_engine(datum, _sampled(part) if options.loss_reduction == "mean" else 1.0) for datum in part]
        requests.append((trainer.forward_backward(inputs, loss_fn), trainer.optim_step(adam)))
    logprobs: list[torch.Tensor] = []
    metrics: dict[str, float] = {"optim/lr": learning_rate}
    try:
        for gradient, step in requests:
            output = await gradient
            _require_finite(output.metrics)
            logprobs += [found["logprobs"].to_torch() for found in output.loss_fn_outputs]
            for name, value in ((await step).metrics or {}).items():
                metrics[name if "/" in name else f"optim/{name}"] = float(value)
    except BaseException:
        for pair in requests:
            for request in pair:
                if isinstance(request, SentRequest):
                    request.cancel()
        raise
    distilled = any(len(datum.loss_fn_inputs["target_tokens"].shape or ()) > 1 for datum in data)
    if distilled:
        data, logprobs = _of_sampled_tokens(data, logprobs)
    if supervised and not distilled:
        pairs = zip(data, logprobs, strict=True)
        total = sum(float(values[datum.loss_fn_inputs["mask"].to_torch() > 0].sum()) for datum, values in pairs)
        metrics["sft/nll"] = -total / max(1.0, _sampled(data))
    elif any(_sampled([datum]) for datum in data):
        metrics |= {name: float(value) for name, value in compute_kl_sample_train(list(data), logprobs).items()}
    _require_finite(metrics)
    return metrics


def _require_finite(metrics: Mapping[str, float]) -> None:
    """Raise `NotFinite` with the name of the first metric that is not finite, if any."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotFinite(f"{name} is {value}")


@dataclass(frozen=True)
class Stepped:
    """The result of a step: a sampler of the new weights, and the paths of what was saved."""

    metrics: dict[str, float]
    sampler: Sampler
    state_path: str | None = None
    """Path of the checkpoint."""
    sampler_path: str | None = None
    """Path of the weights for sampling."""


async def step_and_save(
    trainer: Trainer,
    data: Sequence[tinker.Datum],
    options: TrainOptions,
    step: int,
    state: str | None = None,
    weights: str | None = None,
) -> Stepped:
    """`optimize` with the step's learning rate, unless `data` is empty, and save.

    `state` and `weights` are the names of the checkpoint and of the weights for sampling; with None, it is not saved.
    """
    metrics = await optimize(trainer, data, options.learning_rate_at(step), options) if data else {}
    sampler = await trainer.save_weights_and_get_sampling_client()
    state_path = (await trainer.save_state(state)).path if state is not None else None
    sampler_path = (await trainer.save_weights_for_sampler(weights)).path if weights is not None else None
    return Stepped(metrics, sampler, state_path, sampler_path)


def _of_sampled_tokens(
    data: Sequence[tinker.Datum], logprobs: Sequence[torch.Tensor]
) -> tuple[list[tinker.Datum], list[torch.Tensor]]:
    """Data whose masks select only trained tokens, and the log-probabilities of the sampled tokens (first targets)."""
    weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
    masked = [
        with_inputs(datum, mask=(weight != 0).any(-1).float()) for datum, weight in zip(data, weights, strict=True)
    ]
    return masked, [values.reshape(weight.shape)[:, 0] for values, weight in zip(logprobs, weights, strict=True)]


def _sampled(data: Sequence[tinker.Datum]) -> float:
    return sum(float(datum.loss_fn_inputs["mask"].to_torch().sum()) for datum in data)


def _for_engine(datum: tinker.Datum, divisor: float) -> tinker.Datum:
    """A datum with only the loss's inputs (engines reject others), and weights or advantages divided by `divisor`."""
    supervised = "weights" in datum.loss_fn_inputs
    factor = "weights" if supervised else "advantages"
    scaled = with_inputs(datum, **{factor: datum.loss_fn_inputs[factor].to_torch() / max(1.0, divisor)})
    others = {"mask", "logprobs", "advantages"} if supervised else {"mask"}
    inputs = {name: value for name, value in scaled.loss_fn_inputs.items() if name not in others}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def _split(data: Sequence[tinker.Datum], parts: int) -> list[Sequence[tinker.Datum]]:
    parts = max(1, min(parts, len(data)))
    bounds = [round(number * len(data) / parts) for number in range(parts + 1)]
    return [data[begin:end] for begin, end in pairwise(bounds)]
