"""All requests to an engine go through this module: errors are translated, and requests are retried where that is safe.

**What may be retried.** Sampling, scoring and creating a client change nothing, so they are retried with exponential
backoff. The SDK numbers a trainer's requests and the service executes them in that order. So the SDK can safely resend
one of them, but we cannot: ours would be a new request, and a gradient or a step could count twice. After a trainer's
request has failed, nobody knows whether it and the requests behind it were executed, and the service may wait for the
missing number. Such a trainer cannot be used any more: the training loop creates a new one from the last checkpoint and
repeats the complete step.
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
"""Attempts for a request that changes nothing, once the run has begun."""


class Requests:
    """Sends requests to an engine.

    Args:
        notices: Where to report retries.
        watch: Checks the service while requests wait; None for no checks, as of the local engine.
        starting: Whether the run has not begun yet; then requests are retried until the watch's patience ends.
        remote: Whether the SDK sends the requests to a service. None: if there is a watch.
    """

    def __init__(
        self,
        notices: Notices | None = None,
        watch: Watch | None = None,
        *,
        starting: bool = False,
        remote: bool | None = None,
    ) -> None:
        self._notices, self._watch, self.starting = notices or Notices(), watch, starting
        self._remote = watch is not None if remote is None else remote

    def run_begins(self, patience: float) -> None:
        """From now on, wait this many seconds for a service that does not answer."""
        self.starting = False
        if self._watch is not None:
            self._watch.patience = patience

    async def with_retries(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        """Send a request that changes nothing; retry it after temporary failures.

        Raises:
            UsageError: The key or the option is wrong.
            RequestRefused: The service refuses this request and would refuse it again.
            ServiceError: All attempts failed.
            ServiceDown: The service cannot be used.
        """
        patience = self._watch.patience if self._watch is not None else 0.0
        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_temporary),
            stop=stop_before_delay(patience) if self.starting else stop_after_attempt(ATTEMPTS),
            wait=wait_exponential_jitter(initial=1.0, max=16.0, jitter=0.5),
            before_sleep=lambda state: self._report_retry(request, state),
            reraise=True,
        )
        try:
            return await retrying(self.once, request, send)
        except ServiceError as error:
            if self.starting and _is_temporary(error):
                raise ServiceDown(f"{error}; given up after {patience:.0f} s") from error
            raise

    async def once(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        """Send a request without retries, and wait for its answer. Raises like `with_retries`."""
        with self.translating(request):
            answer = send()
            if self._watch is None:
                return await answer
            return await self._watch.wait(answer, request.doing, report_slow=request.option is not None)

    @contextlib.contextmanager
    def translating(self, request: Request) -> Iterator[None]:
        """Translate the engine's exceptions to ours."""
        try:
            yield
        except Exception as error:
            translated = translate(error, request, remote=self._remote)
            if translated is None or translated is error:
                raise
            raise translated from error

    def _report_retry(self, request: Request, state: RetryCallState) -> None:
        assert state.outcome is not None
        self._notices.show(request.doing, f"{state.outcome.exception()}; retrying in {state.upcoming_sleep:.0f} s")


def _is_temporary(error: BaseException) -> bool:
    return isinstance(error, ServiceError) and not isinstance(error, (RequestRefused, ServiceDown))


class Answer(Generic[T]):
    """A `protocol.Pending` that raises our exceptions, and retries its request if that is allowed.

    Args:
        requests: Sends the request.
        request: Describes it.
        send: Sends it; called at once, so that requests are sent in the order of the calls.
        retry: Whether `send` may be called again.
        convert: Makes the result from the engine's answer.
    """

    def __init__(
        self,
        requests: Requests,
        request: Request,
        send: Callable[[], Pending[Any]],
        *,
        retry: bool,
        convert: Callable[[Any], T] = lambda found: found,
    ) -> None:
        self._requests, self._request, self._send, self._retry, self._convert = requests, request, send, retry, convert
        self._first: Pending[Any] | Exception | None
        try:
            self._first = send()
        except Exception as error:
            self._first = error  # raised when somebody waits for the result

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()

    async def result_async(self, timeout: float | None = None) -> T:
        """Wait for the result. Raises `TimeoutError` after `timeout` seconds, or like `Requests.with_retries`."""
        wait = self._requests.with_retries if self._retry else self._requests.once
        async with asyncio.timeout(timeout):
            return self._convert(await wait(self._request, self._next))

    def result(self, timeout: float | None = None) -> T:
        """Block the thread until the result is there. Without retries."""
        with self._requests.translating(self._request):
            return self._convert(self._next().result(timeout))

    def cancel(self) -> None:
        """Cancel the request if possible; nobody will wait for its result."""
        future = getattr(self._first, "future", None)
        if future is not None:
            future().cancel()

    def _next(self) -> Pending[Any]:
        """The request that was already sent; after the first call a new one, if it may be retried."""
        first = self._first
        if self._retry:
            self._first = None
        if isinstance(first, Exception):
            raise first
        return self._send() if first is None else first


class GuardedSampler:
    """A `protocol.Sampler` that raises our exceptions, and retries requests after temporary failures.

    Args:
        client: The engine's sampler.
        requests: Sends its requests.
        context: The model's context length in tokens, prompt and answer together; None if unknown.
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
        send = partial(self._client.sample, prompt, num_samples, sampling_params, include_prompt_logprobs)
        return Answer(self._requests, Request("sampling", refusable=True), send, retry=True)

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Answer[list[float | None]]:
        """See `protocol.Sampler.compute_logprobs`; tokens beyond the model's context length get None.

        The others are exact, since a token's probability depends only on the tokens before it. One token less than the
        context length is sent, because the service samples one token after the prompt.
        """
        tokens = prompt.to_ints()
        limit = len(tokens) if self.context is None else min(len(tokens), max(1, self.context - 1))
        truncated = prompt if limit == len(tokens) else tinker.ModelInput.from_ints(tokens[:limit])
        return Answer(
            self._requests,
            Request("scoring", refusable=True),
            partial(self._client.compute_logprobs, truncated),
            retry=True,
            convert=lambda found: [*found, *[None] * (len(tokens) - limit)],
        )

    def get_tokenizer(self) -> Any:
        return self._client.get_tokenizer()


class GuardedTrainer:
    """A `protocol.Trainer` that raises our exceptions. Its requests are never retried, see above."""

    def __init__(self, client: Trainer, requests: Requests, context: int | None = None) -> None:
        self._client, self._requests, self._context = client, requests, context

    def forward_backward(
        self, data: list[tinker.Datum], loss_fn: Any, loss_fn_config: Mapping[str, float | str] | None = None
    ) -> Answer[tinker.ForwardBackwardOutput]:
        return self._send("computing the gradient", self._client.forward_backward, data, loss_fn, loss_fn_config)

    def forward(
        self, data: list[tinker.Datum], loss_fn: Any, loss_fn_config: Mapping[str, float | str] | None = None
    ) -> Answer[tinker.ForwardBackwardOutput]:
        return self._send("computing the loss", self._client.forward, data, loss_fn, loss_fn_config)

    def optim_step(self, optim_params: tinker.AdamParams) -> Answer[tinker.OptimStepResponse]:
        return self._send("the optimizer step", self._client.optim_step, optim_params)

    def save_state(self, name: str) -> Answer[Any]:
        return self._send("saving a checkpoint", self._client.save_state, name)

    def save_weights_for_sampler(self, name: str) -> Answer[Any]:
        return self._send("saving weights", self._client.save_weights_for_sampler, name)

    def save_weights_and_get_sampling_client(self) -> Answer[Sampler]:
        return Answer(
            self._requests,
            Request("creating a sampler"),
            self._client.save_weights_and_get_sampling_client,
            retry=False,
            convert=lambda client: GuardedSampler(client, self._requests, context_length(client) or self._context),
        )

    def get_info(self) -> tinker.types.GetInfoResponse:
        return self._client.get_info()

    def get_tokenizer(self) -> Any:
        return self._client.get_tokenizer()

    def _send(self, doing: str, method: Callable[..., Pending[T]], *arguments: Any) -> Answer[T]:
        return Answer(self._requests, Request(doing), partial(method, *arguments), retry=False)


def context_length(client: object) -> int | None:
    """The context length of a client's model in tokens; None if the client does not know it."""
    found = getattr(client, "context", None)
    return found if isinstance(found, int) else None
