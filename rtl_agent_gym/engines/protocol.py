"""The interface of a training engine: Tinker's service, or the local engine.

These are the methods of tinker's ``ServiceClient``, ``TrainingClient`` and ``SamplingClient`` (SDK 0.38) that a
training loop needs, with the same arguments and results. Code typed against these protocols runs on both.

Calls that take time return something to await. A trainer's requests are sent by the call itself and executed in the
order of the calls, so an optimizer step may be requested before the gradient is computed::

    gradient = trainer.forward_backward(data, "importance_sampling")
    step = trainer.optim_step(tinker.AdamParams(learning_rate=1e-4))
    await gradient
    await step
    sampler = await trainer.save_weights_and_get_sampling_client()
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tinker
    from tinker.types import (
        GetInfoResponse,
        LossFnType,
        SaveWeightsForSamplerResponse,
        SaveWeightsResponse,
    )


class Sampler(Protocol):
    """Samples and scores with fixed weights, which later steps of a trainer do not change."""

    def sample(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
    ) -> Awaitable[tinker.SampleResponse]:
        """Continue a prompt `num_samples` times.

        Concurrent calls are sampled together, so start many and wait for all.

        ``sampling_params.stop`` is a text, several texts, or token ids; None stops at the model's end token, ``[]``
        never stops. The sampled ids include the stop token or the tokens of the stop text. ``sampling_params.seed``
        makes a request reproducible, independent of other requests; give each request its own seed.

        Returns:
            ``sequences``, each with ``tokens``, ``logprobs`` (one per token, in nats) and ``stop_reason`` (``"stop"``
            or ``"length"``). The local engine's ``logprobs`` are those of the distribution that was sampled from; for
            temperatures other than 1, the SDK does not document which. If requested, also ``prompt_logprobs`` and
            ``topk_prompt_logprobs`` (the most likely tokens with their log-probabilities, at each position of the
            prompt but the first), both always at temperature 1. With ``topk_prompt_logprobs`` and one sample of one
            token, a request for scores alone, the local engine samples nothing: ``sequences`` is empty.
        """
        ...

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Awaitable[list[float | None]]:
        """The log-probability of each token given the tokens before it, in nats; None for the first token."""
        ...

    def get_tokenizer(self) -> Any:
        """The model's tokenizer: a fast tokenizer of transformers."""
        ...


class Trainer(Protocol):
    """Trains weights."""

    def forward_backward(
        self,
        data: list[tinker.Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Awaitable[tinker.ForwardBackwardOutput]:
        """Add the gradient of a loss, *summed* over all tokens of all data, to the accumulated gradient.

        Each of ``loss_fn_inputs`` has one value per token, or with cross_entropy K values, for K targets per token.
        With p the probability of the target and q = ``exp(logprobs)``:

        - ``cross_entropy`` (``target_tokens``, ``weights``): −Σ weight · log p
        - ``importance_sampling`` (``target_tokens``, ``logprobs``, ``advantages``): −Σ p/q · advantage
        - ``ppo`` (the same): −Σ min(p/q · advantage, clip(p/q, low, high) · advantage), where `loss_fn_config` may set
          ``clip_low_threshold`` (default 0.8) and ``clip_high_threshold`` (default 1.2)

        Remove other keys, such as ``mask``, before the call.

        Returns:
            ``loss_fn_outputs``, one per datum, with ``logprobs`` (log p of each target); ``metrics["loss:sum"]``.
        """
        ...

    def forward(
        self,
        data: list[tinker.Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Awaitable[tinker.ForwardBackwardOutput]:
        """Like `forward_backward`, but without a gradient."""
        ...

    def optim_step(self, optim_params: tinker.AdamParams) -> Awaitable[tinker.OptimStepResponse]:
        """One step of AdamW with the accumulated gradient, which is then cleared."""
        ...

    def save_state(self, name: str) -> Awaitable[SaveWeightsResponse]:
        """Save weights and optimizer; the result has their ``path``."""
        ...

    def save_weights_for_sampler(self, name: str) -> Awaitable[SaveWeightsForSamplerResponse]:
        """Save weights without the optimizer; the result has the ``path`` for `Service.create_sampling_client`."""
        ...

    def save_weights_and_get_sampling_client(self) -> Awaitable[Sampler]:
        """A sampler of the weights after all earlier requests."""
        ...

    def get_info(self) -> GetInfoResponse:
        """The base model's name and the LoRA rank."""
        ...

    def get_tokenizer(self) -> Any:
        """The model's tokenizer: a fast tokenizer of transformers."""
        ...


class Service(Protocol):
    """Creates trainers and samplers."""

    def create_lora_training_client(
        self, base_model: str, rank: int = 32, seed: int | None = None
    ) -> Awaitable[Trainer]:
        """A trainer of new LoRA adapters, which do not change the model's output before the first step.

        In the local engine, rank 0 trains all weights.
        """
        ...

    def create_training_client_from_state(self, path: str) -> Awaitable[Trainer]:
        """A trainer of the weights saved by `Trainer.save_state`, with a new optimizer."""
        ...

    def create_training_client_from_state_with_optimizer(self, path: str) -> Awaitable[Trainer]:
        """A trainer of the weights saved by `Trainer.save_state`, with the saved optimizer."""
        ...

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> Awaitable[Sampler]:
        """A sampler of saved weights (`model_path`) or of a published model (`base_model`)."""
        ...
