"""Whether a service that owes an answer is still there.

The SDK repeats a request that fails for up to six minutes, and one that meets a billing problem for an hour, without a
word. So while requests wait, the service is asked every few seconds for something small, without repetitions. What
goes wrong there is told, and once it has gone wrong for too long, all that waits is given up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from ..errors import RTLGymError, ServiceDown, ServiceError, UsageError

T = TypeVar("T")
Tell = Callable[[str], None]
"""Shows a person one line."""

logger = logging.getLogger(__name__)

QUIET = 5.0
"""Seconds that a request may take before the service is asked whether it is there, and between such questions."""
SAY_EVERY = 10.0
"""Seconds between lines that say the same."""
LONG = 120.0
"""Seconds after which a late answer of a service that is there is told of; and between such lines."""


class Notices:
    """Lines for a person, all of them in the log, and of those that repeat one every `SAY_EVERY` seconds on screen."""

    def __init__(self, tell: Tell | None = None) -> None:
        self._tell = tell
        self._last: dict[str, float] = {}

    def say(self, topic: str, text: str, every: float = SAY_EVERY) -> None:
        """A line about a topic, on screen unless there was one in the last `every` seconds."""
        logger.warning("%s", text)
        now = time.monotonic()
        if self._tell is not None and now - self._last.get(topic, -every) >= every:
            self._last[topic] = now
            self._tell(text)


class _Waiting(NamedTuple):
    doing: str
    since: float
    say: bool


class Watch:
    """Waits for a service's answers, and asks in the meantime whether it is there.

    It owns one task, which lives while something waits.

    Args:
        probe: One small request, without repetitions. Raises what the service's state means.
        notices: Where to say so.
        patience: Seconds that a silent service is waited for.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]], notices: Notices, patience: float) -> None:
        self._probe, self._notices, self.patience = probe, notices, patience
        self._waiting: dict[asyncio.Future[Any], _Waiting] = {}
        self._task: asyncio.Task[RTLGymError] | None = None

    async def during(self, answer: Awaitable[T], doing: str, *, say: bool = False) -> T:
        """Wait for an answer.

        Args:
            answer: What is waited for. It is cancelled when the wait ends without it.
            doing: In words, for messages.
            say: Also tell when it takes long although the service is there.

        Raises:
            ServiceDown: The service was silent for too long.
            ServiceError: The answer was cancelled by somebody else.
        """
        inner: asyncio.Future[T] = asyncio.ensure_future(_wait_for(answer))
        self._waiting[inner] = _Waiting(doing, time.monotonic(), say)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        task = self._task
        try:
            first: set[asyncio.Future[Any]] = {inner, task}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not inner.done():
                raise task.result()
            if inner.cancelled():
                raise ServiceError(f"{doing}: the request was cancelled from below")
            return inner.result()
        finally:
            inner.cancel()
            del self._waiting[inner]
            if not self._waiting:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> RTLGymError:
        """Ask whether the service is there until it has been silent for too long; gives what it is silent about."""
        silent_since: float | None = None
        while True:
            await asyncio.sleep(QUIET)
            begun = time.monotonic()
            late = [one for one in self._waiting.values() if begun - one.since >= QUIET]
            if not late:
                continue
            try:
                await self._probe()
            except RTLGymError as error:
                silent_since = begun if silent_since is None else silent_since
                silent = time.monotonic() - silent_since
                self._notices.say("silent", f"{error}; waited {silent:.0f} s, giving up after {self.patience:.0f} s")
                if silent >= self.patience:
                    kind = UsageError if isinstance(error, UsageError) else ServiceDown
                    return kind(f"given up after {self.patience:.0f} s: {error}")
                continue
            if silent_since is not None:
                self._notices.say("answers", "the service answers again")
            silent_since = None
            for doing, since, say in late:
                waited = time.monotonic() - since
                if say or waited >= LONG:
                    text = f"{doing}: no answer yet after {waited:.0f} s; the service is there"
                    self._notices.say(doing, text, every=SAY_EVERY if say else LONG)


async def _wait_for(answer: Awaitable[T]) -> T:
    return await answer
