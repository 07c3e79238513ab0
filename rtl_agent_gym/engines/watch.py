"""Whether a service that owes an answer is still there.

The SDK repeats a request that fails for up to six minutes, and one that meets a billing problem for an hour, without a
word. So while requests wait, the service is asked every few seconds for something small, without repetitions. What
goes wrong there is told, and once it has gone wrong for too long, all that waits is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

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
        self._waiting: dict[asyncio.Future[Any], tuple[str, float, bool]] = {}
        self._task: asyncio.Task[None] | None = None

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
        given_up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[given_up] = (doing, time.monotonic(), say)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({inner, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if not inner.done():
                error = given_up.exception()
                assert error is not None
                raise error
            if inner.cancelled():
                raise ServiceError(f"{doing}: the request was cancelled from below")
            return inner.result()
        finally:
            inner.cancel()
            del self._waiting[given_up]
            if given_up.done():
                given_up.exception()
            if not self._waiting and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> None:
        silent_since: float | None = None
        while True:
            await asyncio.sleep(QUIET)
            begun = time.monotonic()
            late = [item for item in self._waiting.values() if begun - item[1] >= QUIET]
            if not late:
                continue
            error = await self._ask()
            now = time.monotonic()
            if error is None:
                if silent_since is not None:
                    self._notices.say("answers", "the service answers again")
                silent_since = None
                for doing, since, say in late:
                    if say or now - since >= LONG:
                        text = f"{doing}: no answer yet after {now - since:.0f} s; the service is there"
                        self._notices.say(doing, text, every=SAY_EVERY if say else LONG)
                continue
            silent_since = silent_since if silent_since is not None else begun
            self._notices.say(
                "silent", f"{error}; waited {now - silent_since:.0f} s, giving up after {self.patience:.0f} s"
            )
            if now - silent_since >= self.patience:
                self._give_up(error)
                silent_since = None

    async def _ask(self) -> RTLGymError | None:
        try:
            await self._probe()
        except RTLGymError as error:
            return error
        return None

    def _give_up(self, error: RTLGymError) -> None:
        for given_up in self._waiting:
            if not given_up.done():
                kind = UsageError if isinstance(error, UsageError) else ServiceDown
                given_up.set_exception(kind(f"given up after {self.patience:.0f} s: {error}"))


async def in_thread(work: Callable[[], T]) -> T:
    """Do blocking work in a daemon thread of its own.

    Unlike `asyncio.to_thread`, neither the end of the event loop nor that of the process waits for it: whoever stops
    waiting leaves it behind.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="rtl-agent-gym-service", daemon=True).start()
    return await future


async def _wait_for(answer: Awaitable[T]) -> T:
    return await answer
