"""What the episodes on one event loop share: a Docker client, a bounded start rate, the scorers.

Connections, locks and child processes belong to the loop that made them, so each loop has one `Runtime`. `acquire` and
`Lease.release` count its users; the last one's release closes it.

- Callers that await use the loop they run on: a trainer has one, and each worker of a rollout executor another.
- Callers that do not await use `background_loop`, one loop on a daemon thread for the whole process, by `run_sync`.
- A loop that was closed without a release leaves its containers to the next `acquire`, which ends them.
- A forked child starts without any of this; what its parent has stays the parent's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ..sandboxes import DockerSandboxes
from ..scoring import RewardWeights, Scorer

WAITING = 4
"""Scoring sandboxes that a scorer keeps started: the episodes of a group end at about the same time."""

T = TypeVar("T")

_lock = threading.Lock()
_runtimes: WeakKeyDictionary[asyncio.AbstractEventLoop, Runtime] = WeakKeyDictionary()
_background: asyncio.AbstractEventLoop | None = None


def _forget() -> None:
    """A forked child has the memory of its parent's loops, but not their threads."""
    global _lock, _background
    _lock, _background = threading.Lock(), None
    _runtimes.clear()


os.register_at_fork(after_in_child=_forget)


class Runtime:
    """The shared parts of one loop."""

    def __init__(self) -> None:
        self.provider = DockerSandboxes()
        self.users = 0
        self._scorers: dict[tuple[RewardWeights | None, Path | None], Scorer] = {}

    def scorer(self, weights: RewardWeights | None, cache: Path | None = None, *, waiting: int = WAITING) -> Scorer:
        """The scorer for these weights and this folder of kept gradings.

        Args:
            weights: What the score's parts are worth; None for the default.
            cache: Folder of kept gradings; None keeps none.
            waiting: Scoring sandboxes to keep started, if this call makes the scorer.
        """
        with _lock:
            if (weights, cache) not in self._scorers:
                made = Scorer(self.provider, weights=weights, cache=cache, waiting=waiting)
                self._scorers[weights, cache] = made
            return self._scorers[weights, cache]

    async def close(self) -> None:
        """End the scorers' helpers and every container."""
        for scorer in self._scorers.values():
            await scorer.close()
        await self.provider.close()


class Lease:
    """One user's hold on a loop's runtime, until `release`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._held = True

    async def release(self) -> None:
        """Give it up, on the runtime's loop. The last user's release closes the runtime. Idempotent."""
        with _lock:
            held, self._held = self._held, False
            self.runtime.users -= held
            last = held and self.runtime.users == 0
            if last:
                _runtimes.pop(asyncio.get_running_loop(), None)
        if last:
            await self.runtime.close()


def acquire(loop: asyncio.AbstractEventLoop | None = None) -> Lease:
    """A hold on a loop's runtime, which is made where there is none; None for the running loop."""
    loop = loop or asyncio.get_running_loop()
    with _lock:
        for dead in [known for known in _runtimes if known.is_closed()]:
            _runtimes.pop(dead).provider.abandon()
        if loop not in _runtimes:
            _runtimes[loop] = Runtime()
        runtime = _runtimes[loop]
        runtime.users += 1
    return Lease(runtime)


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's loop for callers that do not await, started at first use. It ends with the process."""
    global _background
    with _lock:
        if _background is None:
            _background = asyncio.new_event_loop()
            threading.Thread(target=_background.run_forever, name="rtl-gym-loop", daemon=True).start()
        return _background


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for its result. Ctrl-C cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, background_loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
