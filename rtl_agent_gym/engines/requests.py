"""Requests to any engine: translates errors, retries requests where that is safe, and detects a silent service.

**What may be retried.** Sampling, scoring and creating a client change nothing, so they are retried
(`retries.REQUEST`). The SDK numbers a trainer's requests and the service executes them in that order. So the SDK can
safely resend a request, but we cannot: it would be a new request, and a gradient or a step could count twice. After a
trainer's request has failed, it is unknown whether it and the later requests were executed, and the service may wait
for the missing number. Such a trainer can no longer be used: the training loop creates a new one from the last
checkpoint and repeats the complete step.

**How the SDK's exceptions are translated.**

=============================================  ==============================================  =========
the service reports                            becomes                                         exit code
=============================================  ==============================================  =========
401, 403, a malformed key                      `UsageError` that names ``TINKER_API_KEY``      2
400, 404, 422 when a model is requested        `UsageError` that names the option              2
400, 404, 422, a failure in category "user"    `RequestRefused`: costs one episode             –
402                                            `ServiceDown`                                   3
408, 409, 410, 429, 5xx, no connection, …      `ServiceError`: retried, then a fault           –
no answer within the run's waiting time        `ServiceDown`                                   3
=============================================  ==============================================  =========

**Silence.** The SDK retries a failed request for up to six minutes, or an hour after a billing problem, without
reporting it. So while requests wait, a small request without retries probes the service every few seconds. Failures of
the probe are reported, and if it has failed for too long, all waiting requests fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import httpx
import tinker
from tenacity import RetryCallState, stop_after_attempt, stop_before_delay
from tinker.types import RequestErrorCategory

from ..errors import RequestRefused, RTLGymError, ServiceDown, ServiceError, UsageError, causes
from ..retries import REQUEST
from .protocol import Sampler, Trainer

T = TypeVar("T")
ShowLine = Callable[[str], None]

logger = logging.getLogger(__name__)

REFUSALS = (400, 404, 405, 413, 422)
"""HTTP statuses that a retry of the same request would get again."""
PROBE_EVERY = 5.0
"""Seconds that a request may take before the service is probed, and seconds between probes."""
SHOW_EVERY = 10.0
"""Seconds between lines on the same topic."""
LATE = 120.0
"""Seconds after which a working service's late answer is reported, and seconds between such lines."""


@dataclass(frozen=True)
class Purpose:
    """What a request is for, in error messages."""

    doing: str
    """Such as ``sampling``."""
    option: str | None = None
    """The option that names the requested thing; if the service refuses it, the option is wrong."""
    value: str = ""
    refusable: bool = False
    """Whether the request belongs to one episode: wrong usage, such as a too long prompt, costs only the episode."""


def translate(error: Exception, purpose: Purpose, *, remote: bool) -> RTLGymError | None:
    """This package's exception for the exception of a request; None if it does not come from the engine.

    `remote` exceptions come from the SDK, whose futures also raise plain `ValueError` and `RuntimeError`.
    """
    if isinstance(error, RTLGymError):
        if isinstance(error, UsageError) and purpose.refusable and not remote:
            return RequestRefused(f"{purpose.doing}: {error}")
        if type(error) is UsageError and purpose.option is not None and not remote:
            return UsageError(f"{purpose.option}: {error}")
        return error
    if not remote and type(error).__name__ == "OutOfMemoryError":  # torch's; this module does not import torch
        what = f"{purpose.doing}: the device has too little memory"
        if purpose.value.startswith("local:"):  # a policy outside a run, so it has no options of a run
            return UsageError(f"max_context (--max-context): {what}; choose a smaller one ({first_line(error)})")
        return UsageError(
            f"local_batch, local_batch_tokens: {what}; choose smaller ones, or local_gradient_checkpointing=true "
            f"({first_line(error)})"
        )
    refused: RTLGymError = RequestRefused(f"{purpose.doing}: the service refuses the request: {first_line(error)}")
    if purpose.option is not None:
        refused = UsageError(f"{purpose.option}: the service refuses {purpose.value!r}: {first_line(error)}")
    failed = ServiceError(f"{purpose.doing}: {first_line(error)}")
    if isinstance(error, tinker.RequestFailedError):
        return refused if error.category is RequestErrorCategory.User else failed
    status = _status(error)
    if status in (401, 403) and (status == 401 or purpose.option is None):
        return UsageError(f"TINKER_API_KEY: the service does not accept the key: {first_line(error)}")
    if status == 402:
        return ServiceDown(f"{purpose.doing}: the account has a billing problem: {first_line(error)}")
    if status in REFUSALS or status == 403:
        return refused
    if status is not None or isinstance(error, (tinker.APIConnectionError, httpx.HTTPError, TimeoutError)):
        return failed
    if isinstance(error, tinker.APIResponseValidationError):
        return ServiceError(f"{purpose.doing}: the answer is not in Tinker's format: {first_line(error)}")
    if isinstance(error, tinker.TinkerError) and any(word in str(error).lower() for word in ("api_key", "credential")):
        return UsageError(f"TINKER_API_KEY: {first_line(error)}")
    if type(error).__module__.partition(".")[0] == "tinker":
        return failed
    if remote and isinstance(error, ValueError) and purpose.option is not None:
        return refused
    return failed if remote and isinstance(error, (ValueError, RuntimeError, AssertionError, OSError)) else None


@contextlib.contextmanager
def translating(purpose: Purpose, *, remote: bool) -> Iterator[None]:
    """`translate` what the block raises."""
    try:
        yield
    except Exception as error:
        translated = translate(error, purpose, remote=remote)
        if translated is None or translated is error:
            raise
        raise translated from error


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, with the operating system's reason if there is one."""
    text = str(error).strip().split("\n")[0].partition(" for self.request_id=")[0] or type(error).__name__
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno:
            reason = os.strerror(cause.errno)
            return text if reason in text else f"{text.rstrip('.')} ({reason})"
    return text


def _status(error: BaseException) -> int | None:
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, tinker.APIStatusError):
            return below.status_code
        below = below.__cause__
    return None


class Requests:
    """Sends requests to an engine. Owns one task, which probes the service while requests wait.

    Args:
        show: Shows retries and failures to the user, at most one line per topic every `SHOW_EVERY` seconds.
        probe: Sends one small request without retries, and raises one of this package's exceptions if it fails; None
            for no checks, as for the local engine.
        patience: Seconds to wait for a service that does not answer.
        starting: Whether the run has not begun yet; requests are then retried for `patience` seconds.
    """

    def __init__(
        self,
        show: ShowLine | None = None,
        probe: Callable[[], Awaitable[None]] | None = None,
        patience: float = 0.0,
        *,
        starting: bool = False,
    ) -> None:
        self._show, self._probe, self.patience, self.starting = show, probe, patience, starting
        self.translating = partial(translating, remote=probe is not None)
        """A context that translates the engine's exceptions to this package's; takes the `Purpose`."""
        self._shown: dict[str, float] = {}
        self._waiting: dict[asyncio.Future[Any], tuple[Purpose, float]] = {}
        self._watch: asyncio.Task[RTLGymError] | None = None
        self._answered = 0.0
        """When a request was last answered, on the monotonic clock."""

    def run_begins(self, patience: float) -> None:
        """Mark the run as begun, and from now on wait this many seconds for a service that does not answer."""
        self.starting, self.patience = False, patience

    async def with_retries(self, purpose: Purpose, send: Callable[[], Awaitable[T]], *, again: bool = True) -> T:
        """Send a request that changes nothing; retry it after temporary failures.

        `again` says whether to retry it even once the run has begun; False if the caller retries then.

        Raises:
            UsageError: The key or the option is wrong.
            RequestRefused: The service refuses this request and would refuse it again.
            ServiceError: All attempts failed.
            ServiceDown: The service cannot be used.
        """

        def report(state: RetryCallState) -> None:
            assert state.outcome is not None
            self._report(purpose.doing, f"{state.outcome.exception()}; retrying in {state.upcoming_sleep:.0f} s")

        patience, attempts = self.patience, REQUEST.attempts if again else 1
        stop = stop_before_delay(patience) if self.starting else stop_after_attempt(attempts)
        try:
            return await REQUEST.retrying(_is_temporary, stop=stop, before_sleep=report)(self.once, purpose, send)
        except ServiceError as error:
            if self.starting and _is_temporary(error):
                raise ServiceDown(f"{error}; given up after {patience:.0f} s") from error
            raise

    async def once(self, purpose: Purpose, send: Callable[[], Awaitable[T]]) -> T:
        """Send a request without retries, and wait for its answer. Raises like `with_retries`."""
        with self.translating(purpose):
            return await (send() if self._probe is None else self._answer(send(), purpose, self._probe))

    async def _answer(self, answer: Awaitable[T], purpose: Purpose, probe: Callable[[], Awaitable[None]]) -> T:
        """Wait for an answer while the service is probed; the answer is cancelled if the wait ends early."""
        inner: asyncio.Future[T] = asyncio.ensure_future(answer)
        self._waiting[inner] = purpose, time.monotonic()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._probe_until_lost(probe))
        watch = self._watch
        try:
            first: set[asyncio.Future[Any]] = {inner, watch}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not inner.done():
                raise watch.result()
            if inner.cancelled():
                raise ServiceError(f"{purpose.doing}: the SDK cancelled the request")
            result = inner.result()
            self._answered = time.monotonic()
            return result
        finally:
            inner.cancel()
            del self._waiting[inner]
            if not self._waiting:
                self._watch.cancel()
                self._watch = None

    async def _probe_until_lost(self, probe: Callable[[], Awaitable[None]]) -> RTLGymError:
        """Probe the service until it has failed for too long. Returns the error for the waiting requests."""
        failing_since: float | None = None
        while True:
            await asyncio.sleep(PROBE_EVERY)
            begun = time.monotonic()
            late = [(purpose, since) for purpose, since in self._waiting.values() if begun - since >= PROBE_EVERY]
            if failing_since is not None and self._answered > failing_since:
                failing_since = None  # it works, even if it is slow or refuses probes
            if not late:
                continue
            try:
                await probe()
            except RTLGymError as error:
                failing_since = begun if failing_since is None else failing_since
                waited = time.monotonic() - failing_since
                self._report("failing", f"{error}; waited {waited:.0f} s, giving up after {self.patience:.0f} s")
                if waited >= self.patience:
                    kind = UsageError if isinstance(error, UsageError) else ServiceDown
                    return kind(f"given up after {self.patience:.0f} s: {error}")
                continue
            if failing_since is not None:
                self._report("recovered", "the service answers again")
            failing_since = None
            for purpose, since in late:
                waited, every = time.monotonic() - since, LATE if purpose.option is None else SHOW_EVERY
                if purpose.option is not None or waited >= LATE:
                    text = f"{purpose.doing}: no answer after {waited:.0f} s, but the service works; still waiting"
                    self._report(purpose.doing, text, every)

    def _report(self, topic: str, text: str, every: float = SHOW_EVERY) -> None:
        """Log and show a line, unless the topic had one in the last `every` seconds."""
        now = time.monotonic()
        if now - self._shown.get(topic, -every) < every:
            return
        self._shown[topic] = now
        logger.warning("%s", text)
        if self._show is not None:
            self._show(text)


def _is_temporary(error: BaseException) -> bool:
    return isinstance(error, ServiceError) and not isinstance(error, (RequestRefused, ServiceDown))


class GuardedSampler:
    """A `protocol.Sampler` that raises this package's exceptions, and retries requests after temporary failures.

    `context` is the model's context length in tokens, prompt and answer together; None if unknown.
    """

    def __init__(self, client: Sampler, requests: Requests, context: int | None = None) -> None:
        self._client, self._requests, self.context = client, requests, context

    async def sample(self, *arguments: Any, **named: Any) -> tinker.SampleResponse:
        send = partial(self._client.sample, *arguments, **named)
        return await self._requests.with_retries(Purpose("sampling", refusable=True), send)

    async def compute_logprobs(self, prompt: tinker.ModelInput) -> list[float | None]:
        """See `protocol.Sampler.compute_logprobs`; tokens beyond the model's context length get None.

        The other values are exact, since a token's probability depends only on the tokens before it. One token less
        than the context length is sent, because the service samples one token after the prompt.
        """
        tokens = prompt.to_ints()
        limit = len(tokens) if self.context is None else min(len(tokens), max(1, self.context - 1))
        send = partial(self._client.compute_logprobs, tinker.ModelInput.from_ints(tokens[:limit]))
        found = await self._requests.with_retries(Purpose("scoring", refusable=True), send)
        return [*found, *[None] * (len(tokens) - limit)]

    def get_tokenizer(self) -> Any:
        return self._client.get_tokenizer()


class SentRequest(Generic[T]):
    """A trainer's request. The constructor sends it, so that requests are executed in the order of the calls."""

    def __init__(
        self, requests: Requests, doing: str, send: Callable[[], Awaitable[Any]], read: Callable[[Any], T]
    ) -> None:
        self._requests, self._doing, self._read = requests, doing, read
        self._sent: Awaitable[Any] | Exception
        try:
            self._sent = send()
        except Exception as error:
            self._sent = error  # raised to the caller that awaits the answer

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    def cancel(self) -> None:
        """Cancel the request if possible; its result is no longer needed."""
        if (future := getattr(self._sent, "future", None)) is not None:
            future().cancel()

    async def _wait(self) -> T:
        def sent() -> Awaitable[Any]:
            if isinstance(self._sent, Exception):
                raise self._sent
            return self._sent

        return self._read(await self._requests.once(Purpose(self._doing), sent))


def _guarded(doing: str, name: str) -> Any:
    def method(self: GuardedTrainer, *arguments: Any, **named: Any) -> SentRequest[Any]:
        send = partial(getattr(self.client, name), *arguments, **named)
        return SentRequest(self.requests, doing, send, lambda answer: answer)

    return method


class GuardedTrainer:
    """A `protocol.Trainer` that raises this package's exceptions. Its requests are never retried (see the module)."""

    def __init__(self, client: Trainer, requests: Requests, context: int | None = None) -> None:
        self.client, self.requests, self.context = client, requests, context

    forward_backward = _guarded("computing the gradient", "forward_backward")
    forward = _guarded("computing the loss", "forward")
    optim_step = _guarded("the optimizer step", "optim_step")
    save_state = _guarded("saving a checkpoint", "save_state")
    save_weights_for_sampler = _guarded("saving weights", "save_weights_for_sampler")

    def save_weights_and_get_sampling_client(self) -> SentRequest[Sampler]:
        def guarded(client: Sampler) -> Sampler:
            return GuardedSampler(client, self.requests, context_length(client) or self.context)

        return SentRequest(
            self.requests, "creating a sampler", self.client.save_weights_and_get_sampling_client, guarded
        )

    def get_info(self) -> tinker.types.GetInfoResponse:
        return self.client.get_info()

    def get_tokenizer(self) -> Any:
        return self.client.get_tokenizer()


def context_length(client: object) -> int | None:
    """The context length of a client's model in tokens; None if the client does not know it."""
    found = getattr(client, "context", None)
    return found if isinstance(found, int) else None
