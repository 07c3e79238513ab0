"""Tinker's service with a script in the model's place: real tokens of Qwen3's vocabulary, no weights.

The service itself cannot be had in a test. What is scripted here is what the policy says, turn by turn; everything that
the cookbook does with it is the cookbook's own. In a module of its own, so that worker processes can import it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tinker
from tinker import types
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs

from rtl_agent_gym.policies import heredoc, write_turn
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer

END = "<|im_end|>"
LOGPROB = -0.5


def encode(text: str) -> list[int]:
    """What a model would have sampled for this text."""
    return list(qwen3_tokenizer().encode(text, add_special_tokens=False).ids)


def decode(ids: list[int]) -> str:
    return str(qwen3_tokenizer().decode(ids, skip_special_tokens=False))


def call(*commands: str) -> str:
    return write_turn(get_renderer("qwen3"), "", commands) + END


def solution(problem: Problem) -> str:
    """A turn that writes the reference solution."""
    assert problem.golden
    return call("\n".join(heredoc(path, text) for path, text in problem.golden.items()))


def turns_so_far(ids: list[int]) -> int:
    """Assistant turns that a prompt holds whole; the one to be sampled is not counted."""
    start = encode("<|im_start|>assistant")
    return sum(ids[i : i + len(start)] == start for i in range(len(ids))) - 1


@dataclass
class Script(TokenCompleter):
    """Says one text a turn, the last one for ever."""

    texts: list[str]
    prompts: list[list[int]] = field(default_factory=list)
    limits: list[int | None] = field(default_factory=list)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: list[str] | list[int], *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        prompt = model_input.to_ints()
        self.prompts.append(prompt)
        self.limits.append(max_tokens)
        assert stop == encode(END)
        ids = encode(self.texts[min(turns_so_far(prompt), len(self.texts) - 1)])
        if max_tokens is not None and len(ids) > max_tokens:
            return TokensWithLogprobs(ids[:max_tokens], [LOGPROB] * max_tokens, stop_reason="length")
        return TokensWithLogprobs(ids, [LOGPROB] * len(ids), stop_reason="stop")


class Done:
    """An answer that is there already, in the forms in which the SDK gives them."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self.value

    async def result_async(self, timeout: float | None = None) -> Any:
        return self.value

    def result(self, timeout: float | None = None) -> Any:
        return self.value


class Asked:
    """An answer that is still to be computed, as the SDK gives it."""

    def __init__(self, answer: Coroutine[Any, Any, Any]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer.__await__()

    def coroutine(self) -> Coroutine[Any, Any, Any]:
        return self._answer


@dataclass
class Sampling:
    """A sampling client. tinker-cookbook 0.5 calls ``sample_async`` and the like, 0.6 ``sample`` and the like."""

    texts: list[str]

    async def sample_async(
        self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams, **_: Any
    ) -> tinker.SampleResponse:
        said = await Script(self.texts)(prompt, sampling_params.stop, max_tokens=sampling_params.max_tokens)  # type: ignore[arg-type]
        sequence = tinker.SampledSequence(
            stop_reason=said.stop_reason,
            sequence_id="0",
            tokens_np=np.array(said.tokens),
            logprobs_np=np.array(said.maybe_logprobs, dtype=np.float32),
        )
        return tinker.SampleResponse(sequences=[sequence])

    async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
        return [None] + [LOGPROB - 0.25] * (prompt.length - 1)

    def sample(self, *arguments: Any, **more: Any) -> Asked:
        return Asked(self.sample_async(*arguments, **more))

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Asked:
        return Asked(self.compute_logprobs_async(prompt))

    def result(self) -> Sampling:
        return self


@dataclass
class Training:
    """A training client that keeps what it is given."""

    texts: list[str]
    data: list[tinker.Datum] = field(default_factory=list)
    steps: int = 0

    def forward_backward(self, data: list[tinker.Datum], loss_fn: str, **_: Any) -> Done:
        self.data += data
        outputs = [{"logprobs": datum.loss_fn_inputs["logprobs"]} for datum in data]
        return Done(tinker.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={}))

    def optim_step(self, params: tinker.AdamParams) -> Done:
        self.steps += 1
        return Done(tinker.OptimStepResponse())

    def save_state(self, name: str, **_: Any) -> Done:
        return Done(types.SaveWeightsResponse(path=f"tinker://scripted/weights/{name}"))

    def save_weights_for_sampler(self, name: str, **_: Any) -> Done:
        return Done(types.SaveWeightsForSamplerResponse(path=f"tinker://scripted/sampler/{name}"))

    async def save_weights_and_get_sampling_client(self, *_: Any, **__: Any) -> Sampling:
        return Sampling(self.texts)

    async def forward_backward_async(self, *arguments: Any, **more: Any) -> Done:
        return self.forward_backward(*arguments, **more)

    async def optim_step_async(self, params: tinker.AdamParams) -> Done:
        return self.optim_step(params)

    async def save_state_async(self, name: str, **_: Any) -> Done:
        return self.save_state(name)

    async def save_weights_for_sampler_async(self, name: str, **_: Any) -> Done:
        return self.save_weights_for_sampler(name)

    save_weights_and_get_sampling_client_async = save_weights_and_get_sampling_client

    def create_sampling_client(self, *_: Any, **__: Any) -> Sampling:
        return Sampling(self.texts)


class Service(contextlib.nullcontext["Service"]):
    """A service client whose every model says the same."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(self)
        self.texts, self.training = texts, Training(texts)

    async def create_lora_training_client(self, *_: Any, **__: Any) -> Training:
        return self.training

    create_lora_training_client_async = create_lora_training_client

    def create_sampling_client(self, *_: Any, **__: Any) -> Sampling:
        return Sampling(self.texts)
