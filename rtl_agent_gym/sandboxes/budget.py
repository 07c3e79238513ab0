"""What all sandboxes of this process may use of a daemon's machine at the same time.

::

    agent sandboxes ───┐                       ┌── memory      from a container's creation to its end
    scoring sandboxes ─┼── Budget of a daemon ─┼── processors  while a submission is graded
    waiting ones ──────┘                       └── starts      while a container starts

A request that gets nothing waits: first come, first served within a group (`queueing_as`), and the groups in turn.

The memory is divided between the three kinds of sandboxes, so that none waits for another: an episode keeps its own
sandbox while it is graded. What is reserved for a sandbox is what it usually needs, not its limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..errors import UsageError
from .breaker import Breaker
from .limits import VARIABLE, Limits, read_limits
from .protocol import SandboxSpec

RESERVED = {"agent": 48 << 20, "scoring": 256 << 20}
"""Bytes of memory that are reserved for a sandbox, by its role."""

Kind = Literal["agent", "scoring", "waiting", "grading", "start"]
"""Memory for sandboxes of agents, of gradings, and for those started in advance; gradings; starts."""

_group: ContextVar[str] = ContextVar("rtl_gym_queue_group", default="")


@contextlib.contextmanager
def queueing_as(group: str) -> Iterator[None]:
    """Within the context, requests queue as this group: groups get their turns one after another."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def queue_group() -> str:
    """The group as which requests queue here."""
    return _group.get()


@dataclass
class Usage:
    """How a kind of tokens is used."""

    capacity: float
    used: float = 0.0
    waiting: int = 0
    """Requests in the queue now."""
    waits: int = 0
    """Requests that had to wait, so far."""
    seconds: float = 0.0
    """How long they waited in all, including those that wait now."""
    granted: int = 0
    """Requests that got what they asked for, so far."""


@dataclass(eq=False)
class _Waiter:
    amount: float
    future: asyncio.Future[None]
    since: float
    granted: bool = False
    abandoned: bool = False
    """Whether its loop was closed, so that nobody waits any more."""

    def wake(self) -> bool:
        """Tell the waiter; False if its loop has been closed."""
        try:
            self.future.get_loop().call_soon_threadsafe(self._granted)
        except RuntimeError:
            return False
        return True

    def _granted(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


@dataclass
class Tokens:
    """A number of tokens and the queue of those who wait for some. Used from several threads and event loops.

    A request for more than there is gets its turn when nothing else is in use, so that it does not wait forever.
    """

    capacity: float
    _used: float = 0.0
    _queues: dict[str, deque[_Waiter]] = field(default_factory=dict)
    """By group; the first group is the next one to be served."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waits: int = 0
    _seconds: float = 0.0
    _granted: int = 0

    def try_take(self, amount: float) -> bool:
        """Take tokens if they are free and nobody waits for any."""
        with self._lock:
            if self._queues or self._used + amount > self.capacity:
                return False
            self._take(amount)
        return True

    async def take(self, amount: float) -> None:
        """Take tokens, when it is this request's turn. They are given back with `give_back`."""
        waiter = _Waiter(amount, asyncio.get_running_loop().create_future(), time.monotonic())
        group = _group.get()
        with self._lock:
            if not self._queues and self._fits(amount):
                self._take(amount)
                return
            self._queues.setdefault(group, deque()).append(waiter)
            self._waits += 1
        try:
            await waiter.future
        except BaseException:
            with self._lock:
                if waiter.granted:
                    self._used -= amount
                elif not waiter.abandoned:
                    self._remove(group, waiter)
                self._serve()
            raise

    def give_back(self, amount: float) -> None:
        """Return tokens, and serve those who wait."""
        with self._lock:
            self._used -= amount
            self._serve()

    @contextlib.asynccontextmanager
    async def held(self, amount: float) -> AsyncIterator[None]:
        """Hold tokens within the context."""
        await self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)

    def resize(self, capacity: float) -> None:
        """Change how many there are. What is in use stays in use."""
        with self._lock:
            self.capacity = capacity
            self._serve()

    def usage(self) -> Usage:
        """The present state, and totals since the start."""
        with self._lock:
            now = time.monotonic()
            waiting = [waiter for queue in self._queues.values() for waiter in queue]
            seconds = self._seconds + sum(now - waiter.since for waiter in waiting)
            return Usage(self.capacity, self._used, len(waiting), self._waits, seconds, self._granted)

    def _fits(self, amount: float) -> bool:
        return self._used == 0 or self._used + amount <= self.capacity

    def _take(self, amount: float) -> None:
        self._used += amount
        self._granted += 1

    def _serve(self) -> None:
        """Grant what fits, one request of each group in turn. A request that does not fit blocks those behind it."""
        while self._queues:
            group, queue = next(iter(self._queues.items()))
            if not self._fits(queue[0].amount):
                return
            waiter = queue.popleft()
            del self._queues[group]
            if queue:
                self._queues[group] = queue  # behind the others
            self._take(waiter.amount)
            self._seconds += time.monotonic() - waiter.since
            waiter.granted = waiter.wake()
            if not waiter.granted:
                waiter.abandoned = True
                self._used -= waiter.amount

    def _remove(self, group: str, waiter: _Waiter) -> None:
        queue = self._queues[group]
        queue.remove(waiter)
        self._seconds += time.monotonic() - waiter.since
        if not queue:
            del self._queues[group]


class Budget:
    """The tokens of one machine.

    Args:
        limits: What its sandboxes may use.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.breaker = Breaker()
        self.promised = 0
        """Bytes of the machine for sandboxes that are still starting, which use none yet; see `Room`."""
        self.promising = threading.Lock()
        """Held to change that."""
        waiting = limits.memory / 8
        scoring = min(limits.memory / 4, limits.cpus * RESERVED["scoring"])  # for all simultaneous gradings
        self.tokens: dict[Kind, Tokens] = {
            "agent": Tokens(limits.memory - waiting - scoring),
            "scoring": Tokens(scoring),
            "waiting": Tokens(waiting),
            "grading": Tokens(limits.cpus),
            "start": Tokens(limits.starts),
        }

    def memory(self, spec: SandboxSpec) -> int:
        """Bytes that are reserved for a sandbox."""
        return min(spec.memory, RESERVED[spec.role])

    def usage(self) -> dict[str, float]:
        """Flat numbers for metrics, such as ``agent/waiting`` and ``grading/seconds``."""
        return {
            f"{kind}/{one.name}": float(getattr(usage, one.name))
            for kind, tokens in self.tokens.items()
            for usage in [tokens.usage()]
            for one in fields(usage)
        }


_given: dict[str, float] = {}
_budgets: dict[str, Budget] = {}
_lock = threading.Lock()


def _reset_after_fork() -> None:
    """A forked child has no sandboxes yet, and must not wait for a lock that a thread of its parent held."""
    global _lock
    _lock = threading.Lock()
    _budgets.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def set_limits(text: str) -> None:
    """Replace limits of all machines, in the form of `read_limits`; the variable `VARIABLE` counts less.

    Raises:
        UsageError: As in `read_limits`, or this process already uses a daemon with other limits.
    """
    given = read_limits(text, "sandbox_limits")
    with _lock:
        for host, budget in _budgets.items():
            now = budget.limits
            wanted = Limits.of({}, local=False, given=vars(now) | given)
            if replace(wanted, ready=now.ready) != now:  # the sandboxes that are kept ready are an event loop's
                raise UsageError(
                    f"sandbox_limits: {text!r} cannot be used, since this process already uses the Docker daemon at "
                    f"{host} with memory={now.memory >> 20}M,cpus={now.cpus:g},starts={now.starts}; leave the option "
                    "out, or start a new process"
                )
    _given.clear()
    _given.update(given)


def given_limits() -> dict[str, float]:
    """The user's limits by name, from `set_limits` and the variable. Raises `UsageError` for a wrong variable."""
    return read_limits(os.environ.get(VARIABLE, ""), VARIABLE) | _given


def budget_of(host: str, info: Mapping[str, Any]) -> Budget:
    """The budget of a daemon in this process. All providers share it.

    Args:
        host: The daemon's address.
        info: Its description of itself; used by the first call.

    Raises:
        UsageError: The variable `VARIABLE` has a wrong value.
    """
    with _lock:
        if host not in _budgets:
            _budgets[host] = Budget(Limits.of(info, local=host.startswith("unix://"), given=given_limits()))
        return _budgets[host]


def usage() -> dict[str, float]:
    """`Budget.usage` of all daemons of this process, added up."""
    with _lock:
        budgets = list(_budgets.values())
    total: dict[str, float] = {}
    for budget in budgets:
        for name, value in budget.usage().items():
            total[name] = total.get(name, 0.0) + value
    return total


class _Collector(Collector):
    """The budgets for Prometheus."""

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        now = usage()
        for name, what, kind_of in (
            ("capacity", "Tokens of the budget", GaugeMetricFamily),
            ("used", "Tokens of the budget in use", GaugeMetricFamily),
            ("waiting", "Requests for tokens in the queue", GaugeMetricFamily),
            ("waits", "Requests for tokens that had to wait", CounterMetricFamily),
            ("seconds", "Seconds that requests for tokens waited", CounterMetricFamily),
        ):
            family = kind_of(f"rtl_gym_budget_{name}", what, labels=["kind"])
            for kind in get_args(Kind):
                family.add_metric([kind], now.get(f"{kind}/{name}", 0.0))
            yield family


REGISTRY.register(_Collector())


class QueueMetrics:
    """What the queues of this process's budgets did since the last look, as metrics."""

    def __init__(self) -> None:
        self._before = usage()

    def since(self) -> dict[str, float]:
        """For each kind: ``queue/KIND/waiting`` is the length of its queue now, ``queue/KIND/waits`` the number of
        requests that began to wait, and ``queue/KIND/seconds`` the time that they waited, divided by the number of
        requests that were granted.
        """
        before, now = self._before, usage()
        self._before = now

        def change(kind: str, name: str) -> float:
            return now.get(f"{kind}/{name}", 0.0) - before.get(f"{kind}/{name}", 0.0)

        found = {}
        for kind in get_args(Kind):
            found[f"queue/{kind}/waiting"] = now.get(f"{kind}/waiting", 0.0)
            found[f"queue/{kind}/waits"] = change(kind, "waits")
            found[f"queue/{kind}/seconds"] = change(kind, "seconds") / max(1.0, change(kind, "granted"))
        return found
