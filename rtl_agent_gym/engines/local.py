"""The engine in this process: tinker's clients, on transformers and peft, for any causal language model, CPU or GPU.

::

    service = LocalServiceClient(LocalEngineConfig(seed=0))
    trainer = await service.create_lora_training_client("path/to/model", rank=16)
    await trainer.forward_backward(data, "importance_sampling")
    await trainer.optim_step(tinker.AdamParams(learning_rate=1e-3))
    sampler = await trainer.save_weights_and_get_sampling_client()
    answer = await sampler.sample(prompt, 4, tinker.SamplingParams(max_tokens=64, stop=["<|im_end|>"], seed=1))

See `protocol` for what the methods do. The SDK's ``*_async`` spellings are here too: those that the SDK answers with a
result give it, and those it answers with a future give that.
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
from .models import Base, LoraSpec, Shelf, Weights, choose_device, trainable
from .sampling import Scheduler
from .training import Training, score
from .worker import Later, Worker

Config = Mapping[str, float | str] | None
"""Options of a loss by name; None for its defaults."""


@dataclass(frozen=True)
class LocalEngineConfig:
    """How the engine works."""

    checkpoint_dir: Path = Path("checkpoints")
    """Where trainers save: ``<run>/weights/<name>`` and ``<run>/sampler_weights/<name>`` below it."""
    seed: int = 0
    """For adapters and samples whose request brings no seed."""
    device: str = "auto"
    """A device of torch, such as ``cpu`` or ``cuda:0``; ``auto`` takes a GPU if there is one."""
    dtype: str = "auto"
    """A floating-point type of torch; ``auto`` is float32 on the CPU and bfloat16 on a GPU."""
    threads: int | None = None
    """Threads of torch's operations on the CPU; None is 1 where `steady`, and otherwise torch's own choice."""
    max_batch: int = 16
    """Sequences sampled at once. More wait. Conversations beyond it lose what was computed of them between turns."""
    steady: bool = True
    """Same seeds, same tokens and log-probabilities to the last bit, in whatever order requests come, on a CPU with one
    thread. It always computes `max_batch` rows, which costs little where a model is small and much where it is large.
    """
    batch_tokens: int = 16_384
    """Tokens, padding included, that go through the model at once in training."""
    lora_alpha: float = 32.0
    """Adapters are scaled by this over their rank, as Tinker's are."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "batch_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads must be at least 1, got {self.threads}")


class _Engine:
    """What the clients of one service share. It owns the thread, which ends with `close` or with the process."""

    def __init__(self, config: LocalEngineConfig) -> None:
        self.config = config
        self.shelf = Shelf(choose_device(config.device, config.dtype))
        self.scheduler = Scheduler(config.max_batch, config.steady, config.seed)
        self.worker = Worker(self._prepare, self.scheduler.step)

    def _prepare(self) -> None:
        # Softmax tails underflow all the time, and numbers that small are slow to compute with. The setting is the
        # thread's own, so it has to be made here.
        torch.set_flush_denormal(True)
        threads = self.config.threads or (1 if self.config.steady else None)
        if threads is not None:
            torch.set_num_threads(threads)


class LocalSamplingClient:
    """Fixed weights to sample from; see `protocol.Sampler`. Made by `LocalServiceClient` and `LocalTrainingClient`."""

    def __init__(self, engine: _Engine, weights: Weights) -> None:
        self._engine, self._weights = engine, weights

    def sample(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
        include_prompt_logprobs: bool = False,
    ) -> Later[tinker.SampleResponse]:
        """Continue a prompt; see `protocol.Sampler.sample`."""
        future: Future[tinker.SampleResponse] = Future()
        tokens = prompt.to_ints()

        def put() -> None:
            if future.done():
                return
            try:
                scored = score(self._weights, tokens) if include_prompt_logprobs else None
                self._engine.scheduler.add(self._weights, tokens, num_samples, sampling_params, scored, future)
            except BaseException as error:
                future.set_exception(error)

        self._engine.worker.submit(put)
        return Later(future)

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Later[list[float | None]]:
        """Score a text; see `protocol.Sampler.compute_logprobs`."""
        tokens = prompt.to_ints()
        return self._engine.worker.submit(lambda: score(self._weights, tokens))

    async def sample_async(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
        include_prompt_logprobs: bool = False,
    ) -> tinker.SampleResponse:
        """`sample`, awaited."""
        return await self.sample(prompt, num_samples, sampling_params, include_prompt_logprobs)

    async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
        """`compute_logprobs`, awaited."""
        return await self.compute_logprobs(prompt)

    @property
    def context(self) -> int:
        """Tokens that the model takes."""
        return self._weights.base.context

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._weights.base.tokenizer


class LocalTrainingClient:
    """Weights under training; see `protocol.Trainer`. Made by `LocalServiceClient`."""

    def __init__(self, engine: _Engine, training: Training) -> None:
        self._engine, self._training = engine, training
        self.model_id = f"local-{uuid.uuid4().hex[:12]}"

    def forward_backward(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: Config = None
    ) -> Later[tinker.ForwardBackwardOutput]:
        """Accumulate a gradient; see `protocol.Trainer.forward_backward`."""
        return self._engine.worker.submit(lambda: self._training.forward(data, loss_fn, loss_fn_config, True))

    def forward(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: Config = None
    ) -> Later[tinker.ForwardBackwardOutput]:
        """The loss alone."""
        return self._engine.worker.submit(lambda: self._training.forward(data, loss_fn, loss_fn_config, False))

    def optim_step(self, optim_params: tinker.AdamParams) -> Later[tinker.OptimStepResponse]:
        """Step along the gradient; see `protocol.Trainer.optim_step`."""
        return self._engine.worker.submit(lambda: self._training.step(optim_params))

    def save_state(self, name: str) -> Later[types.SaveWeightsResponse]:
        """Save weights and optimizer."""
        folder = self._folder("weights", name)

        def job() -> types.SaveWeightsResponse:
            self._training.save(folder, optimizer=True)
            return types.SaveWeightsResponse(path=str(folder))

        return self._engine.worker.submit(job)

    def save_weights_for_sampler(self, name: str) -> Later[types.SaveWeightsForSamplerResponse]:
        """Save weights."""
        folder = self._folder("sampler_weights", name)

        def job() -> types.SaveWeightsForSamplerResponse:
            self._training.save(folder, optimizer=False)
            return types.SaveWeightsForSamplerResponse(path=str(folder))

        return self._engine.worker.submit(job)

    def load_state(self, path: str) -> Later[types.LoadWeightsResponse]:
        """Take saved weights; the optimizer starts afresh."""
        return self._load(path, optimizer=False)

    def load_state_with_optimizer(self, path: str) -> Later[types.LoadWeightsResponse]:
        """Take saved weights and optimizer."""
        return self._load(path, optimizer=True)

    def save_weights_and_get_sampling_client(self) -> Later[LocalSamplingClient]:
        """A sampler of the weights after all earlier requests."""
        return self._engine.worker.submit(lambda: LocalSamplingClient(self._engine, self._training.snapshot()))

    def create_sampling_client(self, model_path: str) -> Later[LocalSamplingClient]:
        """A sampler of saved weights."""
        return self._engine.worker.submit(lambda: _saved_sampler(self._engine, model_path))

    def gradients(self) -> Later[dict[str, torch.Tensor]]:
        """A copy of the accumulated gradient by parameter name. Only this engine can show it."""
        return self._engine.worker.submit(self._training.gradients)

    def get_info(self) -> types.GetInfoResponse:
        """The base model's path and the LoRA rank."""
        base, rank = self._training.base, self._training.lora.rank
        arch = str(base.module.config.model_type)
        return types.GetInfoResponse(
            model_data=types.ModelData(arch=arch, model_name=base.path, tokenizer_id=base.path),
            model_id=self.model_id,
            is_lora=rank > 0,
            lora_rank=rank,
            model_name=base.path,
        )

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._training.base.tokenizer

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: Config = None
    ) -> Later[tinker.ForwardBackwardOutput]:
        """Gives the future."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    async def optim_step_async(self, optim_params: tinker.AdamParams) -> Later[tinker.OptimStepResponse]:
        """Gives the future."""
        return self.optim_step(optim_params)

    async def save_state_async(self, name: str, ttl_seconds: int | None = None) -> Later[types.SaveWeightsResponse]:
        """Gives the future. Nothing saved here ever expires."""
        return self.save_state(name)

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None
    ) -> Later[types.SaveWeightsForSamplerResponse]:
        """Gives the future. Nothing saved here ever expires."""
        return self.save_weights_for_sampler(name)

    async def load_state_async(self, path: str) -> Later[types.LoadWeightsResponse]:
        """Gives the future."""
        return self.load_state(path)

    async def load_state_with_optimizer_async(self, path: str) -> Later[types.LoadWeightsResponse]:
        """Gives the future."""
        return self.load_state_with_optimizer(path)

    async def save_weights_and_get_sampling_client_async(self) -> LocalSamplingClient:
        """Gives the sampler."""
        return await self.save_weights_and_get_sampling_client()

    def _load(self, path: str, optimizer: bool) -> Later[types.LoadWeightsResponse]:
        def job() -> types.LoadWeightsResponse:
            self._training.load(path, optimizer)
            return types.LoadWeightsResponse(path=path)

        return self._engine.worker.submit(job)

    def _folder(self, kind: str, name: str) -> Path:
        if not name or name in (".", "..") or "/" in name:
            raise UsageError(f"a checkpoint's name is a plain file name, not {name!r}")
        return self._engine.config.checkpoint_dir.absolute() / self.model_id / kind / name


class LocalServiceClient:
    """The entry; see `protocol.Service`.

    It owns one thread, which `close`, or leaving a ``with`` block, ends. Models stay in memory as long as it does.
    """

    def __init__(self, config: LocalEngineConfig | None = None) -> None:
        self._engine = _Engine(config or LocalEngineConfig())

    def __enter__(self) -> LocalServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do what was asked for, fail the sampling that is under way, and end the thread. Idempotent."""
        if not self._engine.worker.closed:
            self._engine.worker.submit(self._engine.scheduler.abandon)
        self._engine.worker.close()

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
    ) -> Later[LocalTrainingClient]:
        """A trainer of fresh adapters, which change nothing at first; of all weights where the rank is 0.

        Args:
            base_model: A folder as transformers saves them, or a name on the Hugging Face hub.
            rank: The adapters' rank.
            seed: For their first values; None takes the engine's.
            train_mlp: Adapt the layers that are neither attention nor output.
            train_attn: Adapt the layers of attention.
            train_unembed: Adapt the output layer.
        """
        config = self._engine.config
        spec = LoraSpec(
            rank=rank,
            alpha=config.lora_alpha,
            seed=config.seed if seed is None else seed,
            train_mlp=train_mlp,
            train_attn=train_attn,
            train_unembed=train_unembed,
        )

        def job() -> LocalTrainingClient:
            base = self._engine.shelf.base(base_model)
            return self._trainer(base, spec, trainable(base, spec))

        return self._engine.worker.submit(job)

    def create_training_client_from_state(self, path: str) -> Later[LocalTrainingClient]:
        """A trainer from saved weights, its optimizer afresh."""
        return self._engine.worker.submit(lambda: self._restored(path))

    def create_training_client_from_state_with_optimizer(self, path: str) -> Later[LocalTrainingClient]:
        """A trainer from saved weights and optimizer."""

        def job() -> LocalTrainingClient:
            checkpoints.read_optimizer(path)  # before the work, so that a path without one fails at once
            return self._restored(path, optimizer=True)

        return self._engine.worker.submit(job)

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> Later[LocalSamplingClient]:
        """A sampler of saved weights, or of a base model; the latter shares its memory with its trainers."""
        if (model_path is None) == (base_model is None):
            raise UsageError("create_sampling_client takes one of model_path and base_model")
        if model_path is not None:
            return self._engine.worker.submit(lambda: _saved_sampler(self._engine, model_path))
        return self._engine.worker.submit(lambda: _base_sampler(self._engine, str(base_model)))

    async def create_lora_training_client_async(
        self, base_model: str, rank: int = 32, seed: int | None = None, **options: bool
    ) -> LocalTrainingClient:
        """`create_lora_training_client`, awaited."""
        return await self.create_lora_training_client(base_model, rank, seed, **options)

    async def create_training_client_from_state_async(self, path: str) -> LocalTrainingClient:
        """`create_training_client_from_state`, awaited."""
        return await self.create_training_client_from_state(path)

    async def create_training_client_from_state_with_optimizer_async(self, path: str) -> LocalTrainingClient:
        """`create_training_client_from_state_with_optimizer`, awaited."""
        return await self.create_training_client_from_state_with_optimizer(path)

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> LocalSamplingClient:
        """`create_sampling_client`, awaited."""
        return await self.create_sampling_client(model_path, base_model)

    def _restored(self, path: str, optimizer: bool = False) -> LocalTrainingClient:
        client = self._trainer(*checkpoints.load(self._engine.shelf, path))
        client._training.restore(path, optimizer)
        return client

    def _trainer(self, base: Base, lora: LoraSpec, module: Any) -> LocalTrainingClient:
        return LocalTrainingClient(self._engine, Training(base, lora, module, self._engine.config.batch_tokens))


def _base_sampler(engine: _Engine, base_model: str) -> LocalSamplingClient:
    base = engine.shelf.base(base_model)
    return LocalSamplingClient(engine, base.weights)


def _saved_sampler(engine: _Engine, path: str) -> LocalSamplingClient:
    if checkpoints.read_note(path) is None:
        return _base_sampler(engine, path)
    base, _, module = checkpoints.load(engine.shelf, path)
    return LocalSamplingClient(engine, Weights(base, module.requires_grad_(False).eval()))
