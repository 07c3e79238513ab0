"""The local engine: tinker's clients on transformers and peft, for any causal language model, on a CPU or GPU.

::

    service = LocalServiceClient(LocalEngineConfig(seed=0))
    trainer = await service.create_lora_training_client("path/to/model", rank=16)
    await trainer.forward_backward(data, "importance_sampling")
    await trainer.optim_step(tinker.AdamParams(learning_rate=1e-3))
    sampler = await trainer.save_weights_and_get_sampling_client()
    answer = await sampler.sample(prompt, 4, tinker.SamplingParams(max_tokens=64, stop=["<|im_end|>"], seed=1))

`protocol` documents the methods.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import tinker
import torch
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture as ResultFuture

from ..errors import UsageError
from .config import STEADY_PARAMETERS, LocalEngineConfig
from .models import Base, ModelStore, Weights, choose_device
from .sampling import Scheduler
from .threads import Worker
from .training import Training, is_checkpoint, load_checkpoint, score

T = TypeVar("T")


class LocalSamplingClient:
    """A `protocol.Sampler`."""

    def __init__(self, service: LocalServiceClient, weights: Weights) -> None:
        self._service, self._weights = service, weights
        self.context = weights.base.context
        """The model's context length in tokens, prompt and answer together."""

    def sample(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
    ) -> ResultFuture[tinker.SampleResponse]:
        future: Future[tinker.SampleResponse] = Future()
        tokens = prompt.to_ints()

        def enqueue() -> None:
            if future.done():
                return
            try:
                wanted = include_prompt_logprobs or topk_prompt_logprobs > 0
                scored = score(self._weights, tokens, topk_prompt_logprobs) if wanted else None
                only_scored = topk_prompt_logprobs > 0 and num_samples == sampling_params.max_tokens == 1
                samples = 0 if only_scored else num_samples
                self._service.scheduler.add(self._weights, tokens, samples, sampling_params, scored, future)
            except BaseException as error:
                future.set_exception(error)

        self._service.worker.submit(enqueue)
        return ResultFuture(future)

    def compute_logprobs(self, prompt: tinker.ModelInput) -> ResultFuture[list[float | None]]:
        tokens = prompt.to_ints()
        return self._service.submit(lambda: score(self._weights, tokens).logprobs)

    def get_tokenizer(self) -> Any:
        return self._weights.base.tokenizer


class LocalTrainingClient:
    """A `protocol.Trainer`."""

    def __init__(self, service: LocalServiceClient, training: Training) -> None:
        self._service, self._training, self._submit = service, training, service.submit
        self.model_id = f"local-{uuid.uuid4().hex[:12]}"
        self.context = training.base.context
        """The model's context length in tokens, prompt and answer together."""

    def forward_backward(
        self,
        data: list[tinker.Datum],
        loss_fn: types.LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> ResultFuture[tinker.ForwardBackwardOutput]:
        def work() -> tinker.ForwardBackwardOutput:
            self._service.scheduler.release()  # frees the memory of the rollouts' keys and values
            return self._training.forward(data, loss_fn, loss_fn_config, backward=True)

        return self._submit(work)

    def forward(
        self,
        data: list[tinker.Datum],
        loss_fn: types.LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> ResultFuture[tinker.ForwardBackwardOutput]:
        return self._submit(lambda: self._training.forward(data, loss_fn, loss_fn_config, backward=False))

    def optim_step(self, optim_params: tinker.AdamParams) -> ResultFuture[tinker.OptimStepResponse]:
        return self._submit(lambda: self._training.step(optim_params))

    def save_state(self, name: str) -> ResultFuture[types.SaveWeightsResponse]:
        folder = self._folder("weights", name)
        return self._submit(lambda: types.SaveWeightsResponse(path=self._training.save(folder, optimizer=True)))

    def save_weights_for_sampler(self, name: str) -> ResultFuture[types.SaveWeightsForSamplerResponse]:
        folder, saved = self._folder("sampler_weights", name), types.SaveWeightsForSamplerResponse
        return self._submit(lambda: saved(path=self._training.save(folder, optimizer=False)))

    def save_weights_and_get_sampling_client(self) -> ResultFuture[LocalSamplingClient]:
        return self._submit(lambda: LocalSamplingClient(self._service, self._training.snapshot()))

    def gradients(self) -> ResultFuture[dict[str, torch.Tensor]]:
        """A copy of the accumulated gradient by parameter name. Only the local engine offers this."""
        return self._submit(lambda: {name: grad.clone() for name, grad in self._training.gradients().items()})

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
            raise UsageError(f"a checkpoint's name must be a plain file name, not {name!r}")
        return self._service.config.checkpoint_dir.absolute() / self.model_id / kind / name


class LocalServiceClient(contextlib.AbstractContextManager["LocalServiceClient"]):
    """A `protocol.Service`, and the entry point of the engine.

    It owns a thread, which ends with `close` or a ``with`` block. Loaded models stay in memory until then.
    """

    def __init__(self, config: LocalEngineConfig | None = None) -> None:
        self.config = config = config or LocalEngineConfig()
        self.models = ModelStore(choose_device(config.device, config.dtype), self._set_threads)
        self.scheduler = Scheduler(config.max_batch, self._is_steady, config.seed)
        self.worker = Worker(self._prepare, self.scheduler.step)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish the submitted requests, except sampling, which fails; then end the thread. Idempotent."""
        if not self.worker.closed:
            self.worker.submit(self.scheduler.fail_all)
        self.worker.close()

    def submit(self, job: Callable[[], T]) -> ResultFuture[T]:
        """Run a job in the engine's thread."""
        return ResultFuture(self.worker.submit(job))

    def create_lora_training_client(
        self, base_model: str, rank: int = 32, seed: int | None = None
    ) -> ResultFuture[LocalTrainingClient]:
        """See `protocol.Service`. Without a `seed`, the adapters are initialized with the engine's seed.

        `base_model` is a folder in the format of transformers, or a name on the Hugging Face hub.
        """
        start = self.config.seed if seed is None else seed

        def create() -> LocalTrainingClient:
            return LocalTrainingClient(self, Training.fresh(self.models.base(base_model), rank, start, self.config))

        return self.submit(create)

    def create_training_client_from_state(self, path: str) -> ResultFuture[LocalTrainingClient]:
        return self.submit(lambda: LocalTrainingClient(self, Training.restored(self.models, path, False, self.config)))

    def create_training_client_from_state_with_optimizer(self, path: str) -> ResultFuture[LocalTrainingClient]:
        return self.submit(lambda: LocalTrainingClient(self, Training.restored(self.models, path, True, self.config)))

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> ResultFuture[LocalSamplingClient]:
        """Create a sampler of saved weights, or of a base model, which shares its memory with the model's trainers."""
        path = model_path or base_model
        if path is None or (model_path and base_model):
            raise UsageError("create_sampling_client takes either model_path or base_model")

        def create() -> LocalSamplingClient:
            if model_path is None or not is_checkpoint(path):
                return LocalSamplingClient(self, self.models.base(path).weights)
            base, _, module = load_checkpoint(self.models, path)
            return LocalSamplingClient(self, Weights(base, module.requires_grad_(False)))

        return self.submit(create)

    def _prepare(self) -> None:
        # Softmax tails are denormal numbers, which are slow. Both settings are per thread, so this thread makes them.
        torch.set_flush_denormal(True)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # For the whole process: cuDNN's attention, torch's first choice on some GPUs, makes a plan for each new length.
        torch.backends.cuda.enable_cudnn_sdp(False)

    def _is_steady(self, base: Base) -> bool:
        steady = self.config.steady
        return base.parameters <= STEADY_PARAMETERS if steady is None else steady

    def _set_threads(self, base: Base) -> None:
        """Use all cores once there is a model that needs them."""
        if not self._is_steady(base):
            torch.set_num_threads(self._threads)
