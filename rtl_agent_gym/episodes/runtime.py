"""What the episodes on one event loop share: a Docker client, a bounded start rate, the scorers.

Connections, locks and child processes belong to the loop that made them, so each loop has one `Runtime`. `acquire` and
`Lease.release` count its users; the last release closes it.

- Async callers use the loop they run on: a trainer has one, and each worker of a rollout executor has its own.
- Other callers use `run_sync`, which runs on `background_loop`: one loop on a daemon thread for the whole process.
- If a loop is closed without a release, the next `acquire` ends its containers.
- A forked child starts without any of this; the parent keeps what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ..errors import UsageError
from ..policies.judge import NamedJudges
from ..sandboxes import SandboxProvider, WaitingSandboxes
from ..sandboxes.admission import given_limits
from ..sandboxes.budgeted import BudgetedSandboxes
from ..sandboxes.choice import kind, make_provider
from ..scoring import RewardWeights, Scorer
from ..scoring.options import GradingOptions
from .rules import Grader
from .turn_rewards import TurnBudget

WAITING = 4
"""Scoring sandboxes that a scorer keeps ready: the episodes of a group end at about the same time."""

T = TypeVar("T")

_lock = threading.Lock()
_runtimes: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Runtime]] = WeakKeyDictionary()
_background: asyncio.AbstractEventLoop | None = None


def _reset_after_fork() -> None:
    """Forget the loops of the parent process: a forked child has their memory, but not their threads."""
    global _lock, _background
    _lock, _background = threading.Lock(), None
    _runtimes.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


class Runtime(ABC):
    """What the episodes on one loop share."""

    def __init__(self, provider: SandboxProvider) -> None:
        self.provider = provider
        """Makes sandboxes."""
        self.agents = provider
        """Makes the sandboxes of episodes; may keep some ready."""
        self.users = 0
        """Number of leases that are not released yet."""
        self._graders: dict[tuple[RewardWeights | None, Path | None, GradingOptions], Grader] = {}
        self._judges = NamedJudges()
        self._budgets: dict[tuple[float | None, RewardWeights | None, int], tuple[TurnBudget, object]] = {}

    def scorer(
        self,
        weights: RewardWeights | None,
        cache: Path | None = None,
        *,
        waiting: int = WAITING,
        options: GradingOptions | None = None,
    ) -> Grader:
        """The grader with these weights (None: the default), this folder of cached gradings (None: no cache), and these
        options (None: no judge, and no images from the caller).

        `waiting` is the number of scoring sandboxes to keep ready, if this call creates the grader. Raises `UsageError`
        if the runtime cannot grade with these options.
        """
        options = options or GradingOptions()
        key = weights, cache, options
        with _lock:
            if key not in self._graders:
                self._graders[key] = self._grader(weights, cache, waiting, options)
            return self._graders[key]

    def turn_budget(self, share: float | None, weights: RewardWeights | None, function: object = None) -> TurnBudget:
        """The time for `EpisodeConfig.turn_rewards`, shared by all episodes with this share and this reward."""
        with _lock:  # `id`, since the function may be an object that is not hashable
            return self._budgets.setdefault((share, weights, id(function)), (TurnBudget(share), function))[0]

    @abstractmethod
    def _grader(
        self, weights: RewardWeights | None, cache: Path | None, waiting: int, options: GradingOptions
    ) -> Grader:
        """Make the grader that `scorer` returns for these arguments."""

    @abstractmethod
    async def close(self) -> None:
        """Close the graders and judges, and end every container."""

    @abstractmethod
    def abandon(self) -> None:
        """End every container without the event loop, which has been closed."""


class LocalRuntime(Runtime):
    """A runtime with sandboxes of one kind on this machine, or on the Docker daemon that this process uses."""

    provider: BudgetedSandboxes[Any]

    def __init__(self, sandbox: str = "auto") -> None:
        super().__init__(make_provider(option=sandbox))
        if ready := int(given_limits().get("ready", 0)):
            self.agents = WaitingSandboxes(self.provider, ready)
        self._scorers: list[Scorer] = []

    def _grader(
        self, weights: RewardWeights | None, cache: Path | None, waiting: int, options: GradingOptions
    ) -> Scorer:
        judge, harness = self._judges.judge_of(options), options.harness
        scorer = Scorer(self.provider, weights=weights, cache=cache, waiting=waiting, judge=judge, harness=harness)
        self._scorers.append(scorer)
        return scorer

    async def close(self) -> None:
        for scorer in self._scorers:
            await scorer.close()
        await self._judges.close()
        if self.agents is not self.provider:
            await self.agents.close()
        await self.provider.close()

    def abandon(self) -> None:
        self.provider.abandon()


_make: Callable[[], Runtime] | None = None  # set by `using`; None makes a `LocalRuntime`


@contextlib.contextmanager
def using(make: Callable[[], Runtime]) -> Iterator[None]:
    """Within the context, the runtimes of this process's loops are made by `make`, for example with a cluster."""
    global _make
    before, _make = _make, make
    try:
        yield
    finally:
        _make = before


class Lease(contextlib.AbstractAsyncContextManager["Lease"]):
    """The right to use a loop's runtime, until `release` or the end of an ``async with`` block."""

    def __init__(self, runtime: Runtime, kind: str) -> None:
        self.runtime, self._kind = runtime, kind
        self._held = True

    async def release(self) -> None:
        """End the lease; call this on the runtime's loop. The last release closes the runtime. Idempotent."""
        with _lock:
            held, self._held = self._held, False
            self.runtime.users -= held
            last = held and self.runtime.users == 0
            if last:
                _runtimes.get(asyncio.get_running_loop(), {}).pop(self._kind, None)
        if last:
            await self.runtime.close()

    async def __aexit__(self, *_: object) -> None:
        await self.release()


def acquire(loop: asyncio.AbstractEventLoop | None = None, sandbox: str = "auto") -> Lease:
    """Lease the runtime of a loop (None: the running one) for sandboxes of this kind (`SandboxSpec.kind`).

    The first lease creates the runtime. One made by `using`, such as a cluster's, is shared by all kinds.
    """
    loop, word = loop or asyncio.get_running_loop(), "" if _make is not None else kind(sandbox)
    with _lock:
        for dead in [known for known in _runtimes if known.is_closed()]:
            for runtime in _runtimes.pop(dead).values():
                runtime.abandon()
        known = _runtimes.setdefault(loop, {})
        if word not in known:
            known[word] = LocalRuntime(word) if _make is None else _make()
        runtime = known[word]
        runtime.users += 1
    return Lease(runtime, word)


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's loop for callers that are not async, started at first use. It ends with the process."""
    global _background
    with _lock:
        if _background is None:
            _background = asyncio.new_event_loop()
            threading.Thread(target=_background.run_forever, name="rtl-gym-loop", daemon=True).start()
        return _background


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for its result. Exceptions from signal handlers cancel it.

    The coroutine wakes the caller when it ends; `asyncio.run_coroutine_threadsafe` would need another loop iteration.
    Raises `UsageError` if called on that loop itself, as in an episode's ``on_output``.
    """
    loop, ended = background_loop(), threading.Lock()
    if asyncio._get_running_loop() is loop:
        work.close()
        raise UsageError("an environment cannot be used inside on_output: this call would wait for its own event loop")
    task: asyncio.Task[None]
    result: list[T] = []
    error: BaseException | None = None

    async def to_its_end() -> None:
        nonlocal error
        try:
            result.append(await work)
        except BaseException as raised:
            error = raised
        finally:
            ended.release()

    def start() -> None:
        nonlocal task
        task = loop.create_task(to_its_end())

    ended.acquire()
    loop.call_soon_threadsafe(start)
    try:
        ended.acquire()
    except BaseException:  # Ctrl-C, or an exception from another signal's handler
        loop.call_soon_threadsafe(lambda: task.cancel())
        raise
    try:
        if error is not None:
            raise error
        return result[0]
    finally:
        error = None  # breaks a reference cycle: its traceback refers to this frame
