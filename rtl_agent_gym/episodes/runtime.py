"""What environments of one process share: one Docker client, one bounded start rate, one scorer."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from ..sandboxes import DockerSandboxes
from ..scoring import RewardWeights, Scorer
from .background import run_sync


@dataclass
class Runtime:
    """The shared parts. They live on the background loop."""

    provider: DockerSandboxes
    scorer: Scorer


_lock = threading.Lock()
_shared: dict[RewardWeights | None, tuple[Runtime, int]] = {}


def _forget() -> None:
    """A forked child starts with no runtime; its parent's belongs to the parent."""
    global _lock
    _lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget)


def acquire(weights: RewardWeights | None) -> Runtime:
    """The runtime for these reward weights; it lives until as many `release` calls have been made."""

    async def make() -> Runtime:
        provider = DockerSandboxes()
        scorer = Scorer(provider, weights=weights, waiting=1)
        await scorer.__aenter__()
        return Runtime(provider, scorer)

    with _lock:
        runtime, users = _shared.get(weights) or (run_sync(make()), 0)
        _shared[weights] = (runtime, users + 1)
        return runtime


def release(weights: RewardWeights | None) -> None:
    """Give up what `acquire` gave; the last user's release closes it."""

    async def end(runtime: Runtime) -> None:
        await runtime.scorer.__aexit__(None, None, None)
        await runtime.provider.close()

    with _lock:
        if weights not in _shared:
            return
        runtime, users = _shared.pop(weights)
        if users > 1:
            _shared[weights] = (runtime, users - 1)
            return
        run_sync(end(runtime))
