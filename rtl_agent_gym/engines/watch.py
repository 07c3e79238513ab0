"""Checks the service while requests wait for an answer.

The SDK retries a failed request for up to six minutes, and one with a billing problem for an hour, without reporting
it. So while requests wait, a small request without retries probes the service every few seconds. Its failures are
reported, and if it has failed for too long, all waiting requests fail.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from ..errors import RTLGymError, ServiceDown, ServiceError, UsageError

T = TypeVar("T")
ShowLine = Callable[[str], None]
"""Shows the user one line."""

logger = logging.getLogger(__name__)

PROBE_EVERY = 5.0
"""Seconds that a request may take before the service is probed, and between probes."""
SHOW_EVERY = 10.0
"""Seconds between lines on the same topic."""
LATE = 120.0
"""Seconds after which a late answer of a service that works is reported, and between such lines."""


class Notices:
    """Lines for the user: all of them in the log, and on screen one per topic every `SHOW_EVERY` seconds."""

    def __init__(self, show: ShowLine | None = None) -> None:
        self._show = show
        self._last: dict[str, float] = {}

    def show(self, topic: str, text: str, every: float = SHOW_EVERY) -> None:
        """Log a line, and show it unless the topic had one in the last `every` seconds."""
        logger.warning("%s", text)
        now = time.monotonic()
        if self._show is not None and now - self._last.get(topic, -every) >= every:
            self._last[topic] = now
            self._show(text)


class _Waiting(NamedTuple):
    doing: str
    since: float
    report_slow: bool


class Watch:
    """Waits for a service's answers, and probes the service in the meantime.

    It owns one task, which runs while a request waits.

    Args:
        probe: Sends one small request, without retries. Raises our exception for the service's state.
        notices: Where to report failures.
        patience: Seconds to wait for a service that does not answer.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]], notices: Notices, patience: float) -> None:
        self._probe, self._notices, self.patience = probe, notices, patience
        self._waiting: dict[asyncio.Future[Any], _Waiting] = {}
        self._task: asyncio.Task[RTLGymError] | None = None
        self._answered = 0.0
        """When a request was last answered, on the monotonic clock."""

    async def wait(self, answer: Awaitable[T], doing: str, *, report_slow: bool = False) -> T:
        """Wait for an answer.

        Args:
            answer: The answer. It is cancelled if the wait ends early.
            doing: Describes the request in messages.
            report_slow: Also report every `SHOW_EVERY` seconds that it is slow, although the service works.

        Raises:
            ServiceDown: The service did not answer for too long.
            ServiceError: The answer was cancelled by its sender.
        """
        inner: asyncio.Future[T] = asyncio.ensure_future(_wait_for(answer))
        self._waiting[inner] = _Waiting(doing, time.monotonic(), report_slow)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        task = self._task
        try:
            first: set[asyncio.Future[Any]] = {inner, task}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not inner.done():
                raise task.result()
            if inner.cancelled():
                raise ServiceError(f"{doing}: the SDK cancelled the request")
            result = inner.result()
            self._answered = time.monotonic()
            return result
        finally:
            inner.cancel()
            del self._waiting[inner]
            if not self._waiting:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> RTLGymError:
        """Probe the service until it has failed for too long. Returns the error for the waiting requests."""
        failing_since: float | None = None
        while True:
            await asyncio.sleep(PROBE_EVERY)
            begun = time.monotonic()
            late = [one for one in self._waiting.values() if begun - one.since >= PROBE_EVERY]
            if failing_since is not None and self._answered > failing_since:
                failing_since = None  # it works, even if it is slow or refuses probes
            if not late:
                continue
            try:
                await self._probe()
            except RTLGymError as error:
                failing_since = begun if failing_since is None else failing_since
                waited = time.monotonic() - failing_since
                self._notices.show("failing", f"{error}; waited {waited:.0f} s, giving up after {self.patience:.0f} s")
                if waited >= self.patience:
                    kind = UsageError if isinstance(error, UsageError) else ServiceDown
                    return kind(f"given up after {self.patience:.0f} s: {error}")
                continue
            if failing_since is not None:
                self._notices.show("recovered", "the service answers again")
            failing_since = None
            for doing, since, report_slow in late:
                waited = time.monotonic() - since
                if report_slow or waited >= LATE:
                    text = f"{doing}: no answer after {waited:.0f} s, but the service works; still waiting"
                    self._notices.show(doing, text, every=SHOW_EVERY if report_slow else LATE)


async def _wait_for(answer: Awaitable[T]) -> T:
    return await answer
