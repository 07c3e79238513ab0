"""The budget of a daemon's machine: what all sandboxes of this process may use at the same time.

::

    agent sandboxes ───┐                       ┌── memory      from a container's creation to its end
    scoring sandboxes ─┼── Budget of a daemon ─┼── processors  while a submission is graded
    waiting ones ──────┘                       └── starts      while a container starts

A request that cannot be granted waits. Within a group (`queueing_as`), requests are served in order; groups take turns.

Each of the three kinds of sandboxes has its own share of memory, so that no kind waits for another: an episode keeps
its sandbox while it is graded. A sandbox reserves what it usually needs, not its limit, so a new agent's sandbox also
waits until the machine has free memory.

The limits come from ``docker info``, this process's control group and its Slurm job. The user can replace them with a
text such as ``memory=16G,cpus=4,starts=8``, with any of these parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..errors import DaemonError, SandboxError, UsageError
from .cgroups import Groups, free_memory, group_cpus, group_memory, job_cpus, job_memory, make_groups
from .channel import set_once
from .daemon import is_local
from .protocol import SandboxSpec

RESERVED = {"agent": 48 << 20, "scoring": 256 << 20}
"""Bytes of memory that are reserved for a sandbox, by its role."""
MEMORY_SHARE = 0.85
"""Share of a machine's memory for sandboxes; the rest is for the daemon and the trainer."""
STARTS_PER_CPU = 2
"""Containers that may start at once, per processor. More would not help: a processor starts about four a second."""
VARIABLE = "RTL_GYM_SANDBOX_LIMITS"
"""The environment variable with the user's limits."""
WEAK_VARIABLE = "RTL_GYM_ALLOW_WEAK_LIMITS"
"""The environment variable that allows grading with a daemon that cannot enforce all limits."""

SPARE = 0.05
"""Share of the memory limit that must stay free, since running sandboxes may grow."""
LEAST_DISK = 512 << 20
"""Bytes that must stay free on the daemon's disk."""
PATIENCE = 600.0
"""Seconds to wait for free memory or disk."""
POLL_SECONDS = 0.5

FAILURES = 5
"""Failed starts in a row before the first pause."""
LONGEST_PAUSE = 30.0
"""Maximum pause in seconds; the first lasts one second, each later one twice as long as the previous one."""

Kind = Literal["agent", "scoring", "waiting", "grading", "start"]
"""The kinds of permits: memory for sandboxes of agents, of gradings and started in advance; gradings; starts."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What sandboxes may use of a machine."""

    memory: int
    """Bytes."""
    cpus: float
    """Submissions that are graded at the same time: a simulation keeps one processor busy."""
    starts: int
    """Containers that start at the same time."""
    ready: int = 0
    """Maximum number of unused agent sandboxes that each event loop keeps started, so that episodes begin at once.
    While others are in use, it is at most half the number of these, but at least one."""

    @classmethod
    def of(cls, info: Mapping[str, Any], *, local: bool, given: Mapping[str, float] | None = None) -> Limits:
        """The limits of a daemon's machine.

        Args:
            info: The daemon's description of itself, from ``docker info``.
            local: Whether it runs on this machine, so that this process's control group and Slurm job limit it, too.
            given: Limits by name that replace the machine's.

        Raises:
            UsageError: The given memory is so far above the machine's that no sandbox could start.
        """
        memory, cpus = int(info.get("MemTotal") or 0) or (4 << 30), float(info.get("NCPU") or 0) or 1.0
        if local:
            memory = min(memory, group_memory() or memory, job_memory() or memory)
            cpus = min(cpus, group_cpus() or cpus, job_cpus() or cpus)
        cpus = max(1.0, cpus)
        found = {"memory": MEMORY_SHARE * memory, "cpus": cpus, "starts": STARTS_PER_CPU * cpus, "ready": 0}
        found |= given or {}
        if local and SPARE * found["memory"] > (total := int(info.get("MemTotal") or 0)) > 0:
            raise UsageError(
                f"sandbox_limits: memory={int(found['memory']) >> 20}M is far more than the machine's {total >> 20}M: "
                f"no sandbox could start, since {SPARE:.0%} of the limit must stay free; lower it in sandbox_limits or "
                f"{VARIABLE}"
            )
        return cls(int(found["memory"]), found["cpus"], max(1, int(found["starts"])), int(found["ready"]))


def read_limits(text: str, source: str) -> dict[str, float]:
    """The limits in a text such as ``memory=16G,cpus=4``, by name; memory in bytes.

    Raises `UsageError`, which names `source`, for an unknown name, a number that is not above 0, or too little memory.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (word.strip() for word in part.partition("="))
        unit = r"(?:([kKMGT])(?:i?B)?)?" if name == "memory" else "()"
        match = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*{unit}", number)
        if name not in Limits.__annotations__ or match is None or float(match[1]) <= 0:
            raise UsageError(f"{source}: {part!r} is not a limit such as memory=16G, cpus=4, starts=8 or ready=2")
        found[name] = float(match[1]) * 1024.0 ** " KMGT".index((match[2] or " ").upper())
        if name == "memory" and found[name] < (least := sum(RESERVED.values())):
            raise UsageError(
                f"{source}: {part!r} is too little for one agent and one grading; give at least memory={least >> 20}M"
            )
    return found


def require_enforced(missing: Sequence[str]) -> None:
    """Raise `DaemonError` for limits that the daemon does not enforce (`missing`), unless `WEAK_VARIABLE` is 1.

    Without them, a design may take all of the machine's memory, processors or processes, so that verdicts, also those
    of other gradings, depend on the machine's load.
    """
    if missing and os.environ.get(WEAK_VARIABLE) != "1":
        raise DaemonError(
            f"this Docker host cannot enforce {', '.join(missing)}, so it does not grade. Use a host with these limits "
            f"(rootless ones need cgroup v2 with delegation; see rtl-agent-gym doctor), or accept verdicts that "
            f"depend on the machine's load: rtl-agent-gym --allow-weak-limits …, or {WEAK_VARIABLE}=1"
        )


queue_group: ContextVar[str] = ContextVar("rtl_gym_queue_group", default="")
"""The group in which requests of the current context queue."""


@contextlib.contextmanager
def queueing_as(group: str) -> Iterator[None]:
    """Within the context, requests queue in this group; groups are served in turn."""
    token = queue_group.set(group)
    try:
        yield
    finally:
        queue_group.reset(token)


class PermitUsage(NamedTuple):
    """The use of one kind of permits."""

    capacity: float
    used: float
    waiting: int
    """Requests in the queue now."""
    waits: int
    """Requests that had to wait, so far."""
    seconds: float
    """Total time that requests waited, including those that still wait."""
    granted: int
    """Requests that have been granted so far."""


@dataclass(eq=False)
class _Waiter:
    amount: float
    future: asyncio.Future[bool]
    since: float = field(default_factory=time.monotonic)
    granted: bool = False

    def wake(self) -> bool:
        """Let the request return; False if its event loop has been closed."""
        try:
            self.future.get_loop().call_soon_threadsafe(set_once, self.future, True)
        except RuntimeError:
            return False
        return True


@dataclass
class Permits:
    """A weighted semaphore, fair between groups, for several threads and event loops.

    A request for more than the capacity is granted when nothing else is in use, so that it does not wait forever.
    """

    capacity: float
    _used: float = 0.0
    _queues: dict[str, deque[_Waiter]] = field(default_factory=dict)
    """By group; the first group is served next."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waits: int = 0
    _seconds: float = 0.0
    _granted: int = 0

    def try_take(self, amount: float) -> bool:
        """Take permits if they are free and no request waits."""
        with self._lock:
            if self._queues or self._used + amount > self.capacity:
                return False
            self._take(amount)
        return True

    async def take(self, amount: float) -> None:
        """Take permits when it is this request's turn. `give_back` returns them."""
        waiter, group = _Waiter(amount, asyncio.get_running_loop().create_future()), queue_group.get()
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
                elif waiter in self._queues.get(group, ()):  # otherwise its loop was closed
                    self._leave(group, waiter)
                self._serve()
            raise

    def give_back(self, amount: float) -> None:
        """Return permits, and grant waiting requests."""
        with self._lock:
            self._used -= amount
            self._serve()

    @contextlib.asynccontextmanager
    async def held(self, amount: float) -> AsyncIterator[None]:
        await self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)

    def resize(self, capacity: float) -> None:
        """Change the capacity. Permits in use stay in use."""
        with self._lock:
            self.capacity = capacity
            self._serve()

    def usage(self) -> PermitUsage:
        """The present state, and totals since the start."""
        with self._lock:
            now = time.monotonic()
            since = [waiter.since for queue in self._queues.values() for waiter in queue]
            seconds = self._seconds + sum(now - begun for begun in since)
            return PermitUsage(self.capacity, self._used, len(since), self._waits, seconds, self._granted)

    def _fits(self, amount: float) -> bool:
        return self._used == 0 or self._used + amount <= self.capacity

    def _take(self, amount: float) -> None:
        self._used += amount
        self._granted += 1

    def _leave(self, group: str, waiter: _Waiter) -> None:
        queue = self._queues[group]
        queue.remove(waiter)
        self._seconds += time.monotonic() - waiter.since
        if not queue:
            del self._queues[group]

    def _serve(self) -> None:
        """Grant the requests that fit, one of each group in turn. One that does not fit blocks all later ones."""
        while self._queues:
            group, queue = next(iter(self._queues.items()))
            waiter = queue[0]
            if not self._fits(waiter.amount):
                return
            self._leave(group, waiter)
            if queue:
                self._queues[group] = self._queues.pop(group)  # the group goes to the end
            waiter.granted = waiter.wake()
            if waiter.granted:
                self._take(waiter.amount)


class Budget:
    """What the sandboxes of all event loops of this process may use of one machine.

    Args:
        limits, groups: The limits, and the control groups of the containers, if there are any.
        local: Whether it is this machine, so that its free memory and disk can be read.
        disk: The daemon's data folder there; empty if unknown.
    """

    def __init__(self, limits: Limits, groups: Groups | None = None, *, local: bool = False, disk: str = "") -> None:
        self.limits, self.groups, self._local, self._disk = limits, groups, local, disk
        waiting = limits.memory / 8
        scoring = min(limits.memory / 4, limits.cpus * RESERVED["scoring"])  # for all simultaneous gradings
        self.permits: dict[Kind, Permits] = {
            "agent": Permits(limits.memory - waiting - scoring),
            "scoring": Permits(scoring),
            "waiting": Permits(waiting),
            "grading": Permits(limits.cpus),
            "start": Permits(limits.starts),
        }
        self._turn = Permits(1)
        """Held by the first request that waits for free memory, so that they are served in order."""
        self._promised = 0
        """Bytes of free memory that are promised to starting sandboxes, which do not use them yet."""
        self._short = False
        """Whether the last message in the log says that memory or disk is short."""
        self._lock = threading.Lock()
        self.failed_starts = 0
        """Failed starts since the last successful one."""
        self._pause_until = 0.0

    def memory(self, spec: SandboxSpec) -> int:
        """Bytes that are reserved for a sandbox."""
        return min(spec.memory, RESERVED[spec.role])

    def usage(self) -> dict[str, float]:
        """Flat numbers for metrics, such as ``agent/waiting`` and ``grading/seconds``."""
        found = {kind: permits.usage()._asdict() for kind, permits in self.permits.items()}
        return {f"{kind}/{name}": float(value) for kind, usage in found.items() for name, value in usage.items()}

    def drop_groups(self, why: str) -> None:
        """Stop using control groups, and log why."""
        groups, self.groups = self.groups, None
        if groups is not None:
            logger.warning("the memory of sandboxes is not limited together: %s", why)
            groups.remove()

    def shortage(self, memory: int) -> str:
        """What the machine lacks for an agent's sandbox of `memory` bytes: ``memory`` or ``disk``; empty for neither.

        The control groups cover this process alone. What other processes use, such as another run's sandboxes, shows
        only in the machine's free memory.
        """
        free, groups = [], self.groups
        if groups is not None:
            free.append(groups.free("agent") - int(SPARE * groups.limits["agent"]))
        if self._local and (here := free_memory()) is not None:
            free.append(here - int(SPARE * self.limits.memory))
        if free and self._promised + memory > min(free):
            return "memory"
        with contextlib.suppress(OSError):  # a folder that this process cannot see
            if self._local and self._disk and shutil.disk_usage(self._disk).free < LEAST_DISK:
                return "disk"
        return ""

    @contextlib.asynccontextmanager
    async def promised(self, memory: int) -> AsyncIterator[None]:
        """Wait for this many bytes of free memory, and reserve them within the context.

        Raises `SandboxError` if they are not free within `PATIENCE` seconds after this request's turn has come.
        """
        async with self._turn.held(1):
            begun = time.monotonic()
            while short := self._promise(memory):
                if time.monotonic() - begun >= PATIENCE:
                    raise SandboxError(f"no {short} for another sandbox for {PATIENCE:.0f} s: {self._advice(short)}")
                if not self._short:
                    logger.warning("no %s for another sandbox now; new ones wait", short)
                self._short = True
                await asyncio.sleep(POLL_SECONDS)
            if self._short:
                logger.info("there is memory and disk for sandboxes again")
            self._short = False
        try:
            yield
        finally:
            with self._lock:
                self._promised -= memory

    def _promise(self, memory: int) -> str:
        with self._lock:
            short = self.shortage(memory)
            if not short:
                self._promised += memory
            return short

    def _advice(self, short: str) -> str:
        if short == "disk":
            return f"{self._disk}, the Docker daemon's folder, has less than {LEAST_DISK >> 20} MiB free"
        return (
            "existing sandboxes or other programs use it; play fewer episodes at once, or give each sandbox less "
            "(SandboxSpec.memory)"
        )

    @contextlib.asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Wait until a container may start, and count it as starting within the context."""
        async with self.permits["start"].held(1):
            while (pause := self._pause_until - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            yield

    def start_failed(self, why: object) -> None:
        """Record a failed start. After `FAILURES` in a row, each is followed by a pause before the next start."""
        with self._lock:
            self.failed_starts += 1
            if not self.failed_starts & (self.failed_starts - 1):
                logger.warning("a sandbox could not be started (failure %d in a row): %s", self.failed_starts, why)
            if self.failed_starts >= FAILURES:
                pause = min(LONGEST_PAUSE, 2.0 ** min(self.failed_starts - FAILURES, 10))
                self._pause_until = max(self._pause_until, time.monotonic() + pause)

    def start_worked(self) -> None:
        """Record a successful start, which ends the pauses."""
        with self._lock:
            if self.failed_starts:
                logger.warning("sandboxes can be started again")
            self.failed_starts, self._pause_until = 0, 0.0


_given: dict[str, float] = {}
_budgets: dict[str, Budget] = {}
_lock = threading.Lock()


def _reset_after_fork() -> None:
    """A forked child has no sandboxes or control groups, and must not wait for a lock of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _budgets.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def set_limits(text: str) -> None:
    """Replace limits of all machines, in the format of `read_limits`; they override the variable `VARIABLE`.

    Raises `UsageError` as `read_limits` does, or if this process already uses a daemon with other limits.
    """
    given = read_limits(text, "sandbox_limits")
    with _lock:
        for host, budget in _budgets.items():
            now = budget.limits
            wanted = Limits.of({}, local=False, given=vars(now) | given)
            if replace(wanted, ready=now.ready) != now:  # `ready` applies to each event loop
                raise UsageError(
                    f"sandbox_limits: {text!r} cannot be used, since this process already uses the Docker daemon at "
                    f"{host} with memory={now.memory >> 20}M,cpus={now.cpus:g},starts={now.starts}; leave the option "
                    "out, or start a new process"
                )
    _given.clear()
    _given.update(given)


def given_limits() -> dict[str, float]:
    """The user's limits by name, from `set_limits` and the variable. Raises `UsageError` for an invalid variable."""
    return read_limits(os.environ.get(VARIABLE, ""), VARIABLE) | _given


def budget_of(host: str, info: Mapping[str, Any], *, podman: bool = False, local: bool | None = None) -> Budget:
    """The budget of a daemon in this process, with its control groups. All providers share it.

    Only the first call uses `info`, the daemon's description of itself. `local` tells whether it is on this machine;
    None to find out. Raises `UsageError` if the variable `VARIABLE` has an invalid value.
    """
    with _lock:
        if host not in _budgets:
            local = is_local(host, info) if local is None else local
            limits = Limits.of(info, local=local, given=given_limits())
            driver = str(info.get("CgroupDriver"))
            groups = make_groups(driver, limits.memory, limits.cpus, local=local, podman=podman)
            _budgets[host] = Budget(limits, groups, local=local, disk=str(info.get("DockerRootDir") or ""))
        return _budgets[host]


def usage() -> dict[str, float]:
    """The sum of `Budget.usage` over all daemons of this process."""
    with _lock:
        budgets = list(_budgets.values())
    total: dict[str, float] = {}
    for budget in budgets:
        for name, value in budget.usage().items():
            total[name] = total.get(name, 0.0) + value
    return total


class _Collector(Collector):
    def collect(self) -> Iterator[Metric]:
        now = usage()
        for name, what, kind_of in (
            ("capacity", "Permits of the budget", GaugeMetricFamily),
            ("used", "Permits of the budget in use", GaugeMetricFamily),
            ("waiting", "Requests for permits in the queue", GaugeMetricFamily),
            ("waits", "Requests for permits that had to wait", CounterMetricFamily),
            ("seconds", "Seconds that requests for permits waited", CounterMetricFamily),
        ):
            family = kind_of(f"rtl_gym_budget_{name}", what, labels=["kind"])
            for kind in get_args(Kind):
                family.add_metric([kind], now.get(f"{kind}/{name}", 0.0))
            yield family


REGISTRY.register(_Collector())


class QueueMetrics:
    """What the queues of this process's budgets did since the last call of `since`, as metrics."""

    def __init__(self) -> None:
        self._before = usage()

    def since(self) -> dict[str, float]:
        """For each kind: ``queue/KIND/waiting`` is the length of its queue now, ``queue/KIND/waits`` the number of
        requests that began to wait, and ``queue/KIND/seconds`` the time that they waited, divided by the number of
        requests that were granted.
        """
        before, now = self._before, usage()
        self._before = now
        found = {}
        for kind in get_args(Kind):
            waits, seconds, granted = (
                now.get(f"{kind}/{name}", 0.0) - before.get(f"{kind}/{name}", 0.0)
                for name in ("waits", "seconds", "granted")
            )
            found[f"queue/{kind}/waiting"] = now.get(f"{kind}/waiting", 0.0)
            found[f"queue/{kind}/waits"] = waits
            found[f"queue/{kind}/seconds"] = seconds / max(1.0, granted)
        return found
