"""What a training loop may ask of an engine: Tinker's service, or the one in this process.

These are the methods of tinker's ``ServiceClient``, ``TrainingClient`` and ``SamplingClient`` (SDK 0.38) that a loop
needs, with the same arguments and results. Whatever is typed against these protocols runs on both.

Every call that takes time gives a future at once, to be awaited, or waited for with ``result()``. Requests to one
trainer are carried out in the order in which they were made, so an optimizer step may be asked for before the gradient
is there::

    gradient = trainer.forward_backward(data, "importance_sampling")
    step = trainer.optim_step(tinker.AdamParams(learning_rate=1e-4))
    await gradient
    await step
    sampler = await trainer.save_weights_and_get_sampling_client()
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import tinker
    from tinker.types import (
        GetInfoResponse,
        LossFnType,
        SaveWeightsForSamplerResponse,
        SaveWeightsResponse,
    )


T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """A result to come, as tinker's ``APIFuture``: await it, or wait for it with `result`."""

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait for it without blocking the event loop."""
        ...

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for it. Raises `TimeoutError` after `timeout` seconds."""
        ...


class Sampler(Protocol):
    """Fixed weights to sample from and to score with. A trainer's later steps do not change it."""

    def sample(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
        include_prompt_logprobs: bool = False,
    ) -> Pending[tinker.SampleResponse]:
        """Continue a prompt `num_samples` times.

        Calls that are under way together are sampled together, so start many and wait for all.

        ``sampling_params.stop`` is a text, texts, or token ids; None stops at the model's end token, ``[]`` nowhere. A
        stop token, or the tokens of a stop text, end the sampled ids. ``sampling_params.seed`` makes a request
        reproducible whatever else is under way; give each request its own.

        Returns:
            ``sequences``, each with ``tokens``, ``logprobs`` (one a token, in nats; the engine in this process gives
            those of the distribution that it was drawn from, and the SDK does not say which ones where the temperature
            is not 1) and ``stop_reason`` (``"stop"`` or ``"length"``); and ``prompt_logprobs``, always at temperature
            1, if asked for.
        """
        ...

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Pending[list[float | None]]:
        """The log-probability of each token given the ones before it, in nats; as long as the prompt, None first."""
        ...

    def get_tokenizer(self) -> Any:
        """The model's tokenizer, a fast one of transformers."""
        ...


class Trainer(Protocol):
    """Weights under training."""

    def forward_backward(
        self,
        data: list[tinker.Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Pending[tinker.ForwardBackwardOutput]:
        """Add the gradient of a loss, *summed* over all tokens of all data, to the accumulated one.

        With p the probability of the target and q ``exp(logprobs)``, each of ``loss_fn_inputs`` one value a target:

        - ``cross_entropy`` (``target_tokens``, ``weights``): −Σ weight · log p
        - ``importance_sampling`` (``target_tokens``, ``logprobs``, ``advantages``): −Σ p/q · advantage
        - ``ppo`` (the same): −Σ min(p/q · advantage, clip(p/q, low, high) · advantage), where `loss_fn_config` may give
          ``clip_low_threshold`` (0.8) and ``clip_high_threshold`` (1.2)

        Other keys, such as ``mask``, must be taken out before.

        Returns:
            ``loss_fn_outputs``, one a datum, with ``logprobs`` (log p of each target); ``metrics["loss:sum"]``.
        """
        ...

    def forward(
        self,
        data: list[tinker.Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Pending[tinker.ForwardBackwardOutput]:
        """The same without a gradient."""
        ...

    def optim_step(self, optim_params: tinker.AdamParams) -> Pending[tinker.OptimStepResponse]:
        """One step of AdamW along the accumulated gradient, which is then cleared."""
        ...

    def save_state(self, name: str) -> Pending[SaveWeightsResponse]:
        """Save weights and optimizer; the result's ``path`` leads back to them."""
        ...

    def save_weights_for_sampler(self, name: str) -> Pending[SaveWeightsForSamplerResponse]:
        """Save weights alone; the result's ``path`` goes to `Service.create_sampling_client`."""
        ...

    def save_weights_and_get_sampling_client(self) -> Pending[Sampler]:
        """A sampler of the weights as they are once all earlier requests are done."""
        ...

    def get_info(self) -> GetInfoResponse:
        """The base model's name and the LoRA rank."""
        ...

    def get_tokenizer(self) -> Any:
        """The model's tokenizer, a fast one of transformers."""
        ...


class Service(Protocol):
    """The entry: makes trainers and samplers."""

    def create_lora_training_client(self, base_model: str, rank: int = 32, seed: int | None = None) -> Pending[Trainer]:
        """A trainer of low-rank adapters. The engine in this process takes rank 0 for all weights."""
        ...

    def create_training_client_from_state(self, path: str) -> Pending[Trainer]:
        """A trainer that starts from what `Trainer.save_state` saved, its optimizer afresh."""
        ...

    def create_training_client_from_state_with_optimizer(self, path: str) -> Pending[Trainer]:
        """A trainer that continues from what `Trainer.save_state` saved."""
        ...

    def create_sampling_client(self, model_path: str | None = None, base_model: str | None = None) -> Pending[Sampler]:
        """A sampler of saved weights (`model_path`), or of a model as it was published (`base_model`)."""
        ...
