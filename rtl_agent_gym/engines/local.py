"""The engine in this process: tinker's clients, on transformers and peft, for any causal language model, CPU or GPU.

::

    service = LocalServiceClient(LocalEngineConfig(seed=0))
    trainer = await service.create_lora_training_client("path/to/model", rank=16)
    await trainer.forward_backward(data, "importance_sampling")
    await trainer.optim_step(tinker.AdamParams(learning_rate=1e-3))
    sampler = await trainer.save_weights_and_get_sampling_client()
    answer = await sampler.sample(prompt, 4, tinker.SamplingParams(max_tokens=64, stop=["<|im_end|>"], seed=1))

`protocol` says what the methods do.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
import torch
from tinker import types

from ..errors import UsageError
from . import checkpoints
from .losses import score
from .models import Shelf, Weights, choose_device
from .sampling import Scheduler
from .training import Training
from .worker import Later, Worker


@dataclass(frozen=True)
class LocalEngineConfig:
    """How the engine works."""

    checkpoint_dir: Path = Path("checkpoints")
    """Where trainers save: ``<run>/weights/<name>`` and ``<run>/sampler_weights/<name>`` below it."""
    seed: int = 0
    """For adapters and samples whose request has no seed."""
    device: str = "auto"
    """A device of torch, such as ``cpu`` or ``cuda:0``; ``auto`` takes a GPU if there is one."""
    dtype: str = "auto"
    """A floating-point type of torch; ``auto`` is float32 on the CPU and bfloat16 on a GPU."""
    max_batch: int = 16
    """Sequences sampled at once. More wait. Conversations beyond it lose what was computed of them between turns."""
    steady: bool = True
    """Same seeds, same tokens and log-probabilities to the last bit, in whatever order requests come, on one CPU
    thread. It always computes `max_batch` rows, which costs little where a model is small and much where it is large.
    """
    batch_tokens: int = 16_384
    """Tokens, padding included, that go through the model at once in training."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "batch_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")


class _Engine:
    """What the clients of one service share. It owns the thread, which ends with `Worker.close` or the process."""

    def __init__(self, config: LocalEngineConfig) -> None:
        self.config = config
        self.shelf = Shelf(choose_device(config.device, config.dtype))
        self.scheduler = Scheduler(config.max_batch, config.steady, config.seed)
        self.worker = Worker(self._prepare, self.scheduler.step)

    def _prepare(self) -> None:
        # Softmax tails underflow all the time, and numbers that small are slow to compute with. Both settings are the
        # thread's own, so they have to be made here.
        torch.set_flush_denormal(True)
        if self.config.steady:
            torch.set_num_threads(1)


class LocalSamplingClient:
    """Fixed weights to sample from: a `protocol.Sampler`."""

    def __init__(self, engine: _Engine, weights: Weights) -> None:
        self._engine, self._weights = engine, weights

    def sample(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
        include_prompt_logprobs: bool = False,
    ) -> Later[tinker.SampleResponse]:
        future: Future[tinker.SampleResponse] = Future()
        tokens = prompt.to_ints()

        def put_in_line() -> None:
            if future.done():
                return
            try:
                scored = score(self._weights, tokens) if include_prompt_logprobs else None
                self._engine.scheduler.add(self._weights, tokens, num_samples, sampling_params, scored, future)
            except BaseException as error:
                future.set_exception(error)

        self._engine.worker.submit(put_in_line)
        return Later(future)

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Later[list[float | None]]:
        tokens = prompt.to_ints()
        return self._engine.worker.submit(lambda: score(self._weights, tokens))

    @property
    def context(self) -> int:
        """Tokens that the model takes, prompt and answer together."""
        return self._weights.base.context

    def get_tokenizer(self) -> Any:
        return self._weights.base.tokenizer


class LocalTrainingClient:
    """Weights under training: a `protocol.Trainer`."""

    def __init__(self, engine: _Engine, training: Training) -> None:
        self._engine, self._training = engine, training
        self._submit = engine.worker.submit
        self.model_id = f"local-{uuid.uuid4().hex[:12]}"

    def forward_backward(
        self,
        data: list[tinker.Datum],
        loss_fn: types.LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Later[tinker.ForwardBackwardOutput]:
        return self._submit(lambda: self._training.forward(data, loss_fn, loss_fn_config, backward=True))

    def forward(
        self,
        data: list[tinker.Datum],
        loss_fn: types.LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Later[tinker.ForwardBackwardOutput]:
        return self._submit(lambda: self._training.forward(data, loss_fn, loss_fn_config, backward=False))

    def optim_step(self, optim_params: tinker.AdamParams) -> Later[tinker.OptimStepResponse]:
        return self._submit(lambda: self._training.step(optim_params))

    def save_state(self, name: str) -> Later[types.SaveWeightsResponse]:
        folder = self._folder("weights", name)
        return self._submit(lambda: types.SaveWeightsResponse(path=self._training.save(folder, optimizer=True)))

    def save_weights_for_sampler(self, name: str) -> Later[types.SaveWeightsForSamplerResponse]:
        folder = self._folder("sampler_weights", name)
        return self._submit(
            lambda: types.SaveWeightsForSamplerResponse(path=self._training.save(folder, optimizer=False))
        )

    def save_weights_and_get_sampling_client(self) -> Later[LocalSamplingClient]:
        return self._submit(lambda: LocalSamplingClient(self._engine, self._training.snapshot()))

    def gradients(self) -> Later[dict[str, torch.Tensor]]:
        """A copy of the accumulated gradient by parameter name. Only this engine can show it."""
        return self._submit(self._training.gradients)

    def get_info(self) -> types.GetInfoResponse:
        base, rank = self._training.base, self._training.rank
        arch = str(base.module.config.model_type)
        return types.GetInfoResponse(
            model_data=types.ModelData(arch=arch, model_name=base.path, tokenizer_id=base.path),
            model_id=self.model_id,
            is_lora=rank > 0,
            lora_rank=rank,
            model_name=base.path,
        )

    def get_tokenizer(self) -> Any:
        return self._training.base.tokenizer

    def _folder(self, kind: str, name: str) -> Path:
        if not name or name in (".", "..") or "/" in name:
            raise UsageError(f"a checkpoint's name is a plain file name, not {name!r}")
        return self._engine.config.checkpoint_dir.absolute() / self.model_id / kind / name


class LocalServiceClient:
    """The entry: a `protocol.Service`.

    It owns one thread, which `close`, or leaving a ``with`` block, ends. Models stay in memory as long as it does.
    """

    def __init__(self, config: LocalEngineConfig | None = None) -> None:
        self._engine = _Engine(config or LocalEngineConfig())
        self._submit = self._engine.worker.submit

    def __enter__(self) -> LocalServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do what was asked for, fail the sampling that is under way, and end the thread. Idempotent."""
        if not self._engine.worker.closed:
            self._submit(self._engine.scheduler.abandon)
        self._engine.worker.close()

    def create_lora_training_client(
        self, base_model: str, rank: int = 32, seed: int | None = None
    ) -> Later[LocalTrainingClient]:
        """A trainer of fresh adapters, which change nothing at first; of all weights where the rank is 0.

        Args:
            base_model: A folder as transformers saves them, or a name on the Hugging Face hub.
            rank: The adapters' rank.
            seed: For their first values; None takes the engine's.
        """
        config = self._engine.config
        first = config.seed if seed is None else seed

        def make() -> LocalTrainingClient:
            base = self._engine.shelf.base(base_model)
            return LocalTrainingClient(self._engine, Training.fresh(base, rank, first, config.batch_tokens))

        return self._submit(make)

    def create_training_client_from_state(self, path: str) -> Later[LocalTrainingClient]:
        return self._submit(lambda: self._restored(path, optimizer=False))

    def create_training_client_from_state_with_optimizer(self, path: str) -> Later[LocalTrainingClient]:
        return self._submit(lambda: self._restored(path, optimizer=True))

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> Later[LocalSamplingClient]:
        """A sampler of saved weights, or of a base model; the latter shares its memory with its trainers."""
        path = model_path or base_model
        if path is None or (model_path and base_model):
            raise UsageError("create_sampling_client takes one of model_path and base_model")

        def make() -> LocalSamplingClient:
            if model_path is None or not checkpoints.is_checkpoint(path):
                return LocalSamplingClient(self._engine, self._engine.shelf.base(path).weights)
            base, _, module = checkpoints.load(self._engine.shelf, path)
            return LocalSamplingClient(self._engine, Weights(base, module.requires_grad_(False)))

        return self._submit(make)

    def _restored(self, path: str, *, optimizer: bool) -> LocalTrainingClient:
        training = Training(checkpoints.load(self._engine.shelf, path), self._engine.config.batch_tokens)
        training.restore(path, optimizer)
        return LocalTrainingClient(self._engine, training)
