"""Every request to an engine goes through here: watched, translated, and repeated where that is safe.

**What may be repeated.** Sampling, scoring and making a client change nothing, so they are repeated with exponential
backoff. A trainer's requests are numbered by the SDK and carried out in that order, so the SDK can repeat *one request*
safely; asking anew would be another request, and a gradient or a step would count twice. A trainer's request is never
repeated here. Once one has failed, it cannot be known which of it and of those behind it were carried out (and the
service waits for the number that is missing), so that trainer is of no use any more: the loop makes another one from
the last checkpoint and repeats the whole step on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import tinker
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, stop_before_delay
from tenacity.wait import wait_exponential_jitter

from ..errors import RequestRefused, ServiceDown, ServiceError
from .protocol import Pending, Sampler, Trainer
from .translation import Request, translate
from .watch import Notices, Watch

T = TypeVar("T")

ATTEMPTS = 5
"""How often a request that changes nothing is made during a run."""


class Requests:
    """How an engine is asked.

    Args:
        notices: Where to tell of repetitions.
        watch: Asks whether the service is there while answers are waited for; None for an engine in this process.
        starting: Whether the run has not begun yet; then a request is repeated until the watch's patience ends.
    """

    def __init__(self, notices: Notices | None = None, watch: Watch | None = None, *, starting: bool = False) -> None:
        self._notices, self._watch, self.starting = notices or Notices(), watch, starting

    def settle(self, patience: float) -> None:
        """The run has begun: from now on a service that is silent is waited for so many seconds."""
        self.starting = False
        if self._watch is not None:
            self._watch.patience = patience

    async def ask(self, request: Request, make: Callable[[], Awaitable[T]]) -> T:
        """Make a request that changes nothing, and repeat it while it fails for the moment.

        Raises:
            UsageError: The key or the option is wrong.
            RequestRefused: It would be refused again.
            ServiceError: It failed each time.
            ServiceDown: The service cannot be used.
        """
        patience = self._watch.patience if self._watch is not None else 0.0
        retrying = AsyncRetrying(
            retry=retry_if_exception(_may_succeed_later),
            stop=stop_before_delay(patience) if self.starting else stop_after_attempt(ATTEMPTS),
            wait=wait_exponential_jitter(initial=1.0, max=16.0, jitter=0.5),
            before_sleep=lambda state: self._say(request, state),
            reraise=True,
        )
        try:
            return await retrying(self.once, request, make)
        except ServiceError as error:
            if self.starting and _may_succeed_later(error):
                raise ServiceDown(f"{error}; given up after {patience:.0f} s") from error
            raise

    async def once(self, request: Request, make: Callable[[], Awaitable[T]]) -> T:
        """Make a request, and wait for its answer. Raises as `ask` does."""
        with self.translating(request):
            answer = make()
            if self._watch is None:
                return await answer
            return await self._watch.during(answer, request.doing, say=request.option is not None)

    @contextlib.contextmanager
    def translating(self, request: Request) -> Iterator[None]:
        """Turns an engine's exceptions into ours."""
        try:
            yield
        except Exception as error:
            translated = translate(error, request, remote=self._watch is not None)
            if translated is None or translated is error:
                raise
            raise translated from error

    def _say(self, request: Request, state: RetryCallState) -> None:
        assert state.outcome is not None
        self._notices.say(request.doing, f"{state.outcome.exception()}; again in {state.upcoming_sleep:.0f} s")


def _may_succeed_later(error: BaseException) -> bool:
    return isinstance(error, ServiceError) and not isinstance(error, (RequestRefused, ServiceDown))


class Answer(Generic[T]):
    """A `protocol.Pending` that translates what it raises, and repeats its request if it may.

    Args:
        requests: How to ask.
        request: What is asked.
        make: Asks; called once at once, so that requests are made in the order of the calls.
        again: Whether it may be called again.
        then: What becomes of the engine's answer.
    """

    def __init__(
        self,
        requests: Requests,
        request: Request,
        make: Callable[[], Pending[Any]],
        *,
        again: bool,
        then: Callable[[Any], T] = lambda found: found,
    ) -> None:
        self._requests, self._request, self._make, self._again, self._then = requests, request, make, again, then
        self._pending: Pending[Any] | None = None
        self._error: Exception | None = None
        try:
            self._pending = make()
        except Exception as error:
            self._error = error  # raised where the result is asked for

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()

    async def result_async(self, timeout: float | None = None) -> T:
        """Wait for it. Raises `TimeoutError` after `timeout` seconds, and otherwise as `Requests.ask` does."""
        ask = self._requests.ask if self._again else self._requests.once
        async with asyncio.timeout(timeout):
            return self._then(await ask(self._request, self._next))

    def result(self, timeout: float | None = None) -> T:
        """Wait for it, blocking the thread; the request is not repeated."""
        with self._requests.translating(self._request):
            return self._then(self._next().result(timeout))

    def cancel(self) -> None:
        """Nobody will ask for the result."""
        future = getattr(self._pending, "future", None)
        if future is not None:
            future().cancel()

    def _next(self) -> Pending[Any]:
        """The request that was made and not asked for yet, or another one."""
        pending, error = self._pending, self._error
        self._error = None
        if error is not None:
            raise error
        if self._again:
            self._pending = None
        return pending if pending is not None else self._make()


class GuardedSampler:
    """A `protocol.Sampler` whose requests are repeated while they fail for the moment.

    Args:
        client: The engine's own.
        requests: How to ask.
        context: Tokens that the model takes, prompt and answer together; None where it is not known.
    """

    def __init__(self, client: Sampler, requests: Requests, context: int | None = None) -> None:
        self._client, self._requests, self.context = client, requests, context

    def sample(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
        include_prompt_logprobs: bool = False,
    ) -> Answer[tinker.SampleResponse]:
        make = partial(self._client.sample, prompt, num_samples, sampling_params, include_prompt_logprobs)
        return Answer(self._requests, Request("sampling", refusable=True), make, again=True)

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Answer[list[float | None]]:
        """See `protocol.Sampler.compute_logprobs`; tokens that the model's context cannot hold get None.

        A token's probability depends on what is before it alone, so that of the others is exact. One place less than
        the context is used, because the service samples one token behind the prompt.
        """
        tokens = prompt.to_ints()
        limit = len(tokens) if self.context is None else min(len(tokens), max(1, self.context - 1))
        shown = prompt if limit == len(tokens) else tinker.ModelInput.from_ints(tokens[:limit])
        return Answer(
            self._requests,
            Request("scoring", refusable=True),
            partial(self._client.compute_logprobs, shown),
            again=True,
            then=lambda found: [*found, *[None] * (len(tokens) - limit)],
        )

    def get_tokenizer(self) -> Any:
        return self._client.get_tokenizer()


class GuardedTrainer:
    """A `protocol.Trainer` that raises our exceptions. Its requests are never repeated; see the module."""

    def __init__(self, client: Trainer, requests: Requests, context: int | None = None) -> None:
        self._client, self._requests, self._context = client, requests, context

    def forward_backward(
        self, data: list[tinker.Datum], loss_fn: Any, loss_fn_config: Mapping[str, float | str] | None = None
    ) -> Answer[tinker.ForwardBackwardOutput]:
        return self._ask("computing the gradient", self._client.forward_backward, data, loss_fn, loss_fn_config)

    def forward(
        self, data: list[tinker.Datum], loss_fn: Any, loss_fn_config: Mapping[str, float | str] | None = None
    ) -> Answer[tinker.ForwardBackwardOutput]:
        return self._ask("computing the loss", self._client.forward, data, loss_fn, loss_fn_config)

    def optim_step(self, optim_params: tinker.AdamParams) -> Answer[tinker.OptimStepResponse]:
        return self._ask("the optimizer step", self._client.optim_step, optim_params)

    def save_state(self, name: str) -> Answer[Any]:
        return self._ask("saving a checkpoint", self._client.save_state, name)

    def save_weights_for_sampler(self, name: str) -> Answer[Any]:
        return self._ask("saving weights", self._client.save_weights_for_sampler, name)

    def save_weights_and_get_sampling_client(self) -> Answer[Sampler]:
        return Answer(
            self._requests,
            Request("making a sampler"),
            self._client.save_weights_and_get_sampling_client,
            again=False,
            then=lambda client: GuardedSampler(client, self._requests, context_of(client, self._context)),
        )

    def get_info(self) -> tinker.types.GetInfoResponse:
        return self._client.get_info()

    def get_tokenizer(self) -> Any:
        return self._client.get_tokenizer()

    def _ask(self, doing: str, method: Callable[..., Pending[T]], *arguments: Any) -> Answer[T]:
        return Answer(self._requests, Request(doing), partial(method, *arguments), again=False)


def context_of(client: object, otherwise: int | None) -> int | None:
    """Tokens that a client's model takes, where the client knows; else `otherwise`."""
    found = getattr(client, "context", None)
    return found if isinstance(found, int) else otherwise
