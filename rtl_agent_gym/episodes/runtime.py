"""What the environments on one event loop share: one Docker client, one bounded start rate, the scorers.

For faces whose callers await. Connections, locks and child processes belong to the loop that made them, so each loop
has its own: a trainer has one, and each worker of a rollout executor another. `acquire` and `Lease.release` count the
users; the last one's release ends everything.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from weakref import WeakKeyDictionary

from ..sandboxes import DockerSandboxes
from ..scoring import RewardWeights, Scorer

WAITING = 4
"""Scoring sandboxes that each scorer keeps in waiting: the episodes of a group end at about the same time."""


class LoopRuntime:
    """The shared parts of one loop."""

    def __init__(self) -> None:
        self.provider = DockerSandboxes()
        self.users = 0
        self._scorers: dict[tuple[RewardWeights | None, Path | None], Scorer] = {}

    def scorer(self, weights: RewardWeights | None, cache: Path | None) -> Scorer:
        """The scorer for these weights and this folder of kept gradings."""
        key = (weights, cache)
        if key not in self._scorers:
            self._scorers[key] = Scorer(self.provider, weights=weights, cache=cache, waiting=WAITING)
        return self._scorers[key]

    async def close(self) -> None:
        """End the scorers' helpers and every container."""
        for scorer in self._scorers.values():
            await scorer.close()
        await self.provider.close()

    def abandon(self) -> None:
        """End every container of a loop that was closed before its environments were."""
        self.provider.abandon()


class Lease:
    """One user's hold on a loop's runtime. `release` gives it up."""

    def __init__(self, runtime: LoopRuntime, loop: asyncio.AbstractEventLoop) -> None:
        self.runtime, self._loop = runtime, loop
        self._held = True

    async def release(self) -> None:
        """Give it up; the last user's release closes the runtime. Idempotent."""
        with _lock:
            if not self._held:
                return
            self._held = False
            self.runtime.users -= 1
            last = self.runtime.users == 0
            if last and _by_loop.get(self._loop) is self.runtime:
                del _by_loop[self._loop]
        if last:
            await self.runtime.close()


_lock = threading.Lock()
_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopRuntime] = WeakKeyDictionary()


def _forget() -> None:
    """A forked child starts with no runtime; its parent's belongs to the parent."""
    global _lock
    _lock = threading.Lock()
    _by_loop.clear()


os.register_at_fork(after_in_child=_forget)


def acquire() -> Lease:
    """A hold on the running loop's runtime, which is made where there is none."""
    loop = asyncio.get_running_loop()
    with _lock:
        for dead in [known for known in _by_loop if known.is_closed()]:
            _by_loop.pop(dead).abandon()
        runtime = _by_loop.get(loop)
        if runtime is None:
            runtime = _by_loop[loop] = LoopRuntime()
        runtime.users += 1
    return Lease(runtime, loop)
