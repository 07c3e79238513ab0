"""Measurements of a grading: its memory, time in which the machine did not run it, and when files were changed.

From the first two, ``scoring/blame.py`` decides what a design may have caused.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import time
from collections.abc import Iterator, Sequence

from .messages import Memory

CGROUPS = "/sys/fs/cgroup"
STAT = "/proc/stat"
NEAR = 1 << 20
"""Bytes below its limit at which a control group counts as full, since the kernel charges memory in batches."""
MOST_ADDED = 1.0
"""Upper bound on the time that is added because a service waited for a processor, as a share of its time limit. So a
service that never ends uses up its time, which gives a verdict, on any machine that gives it half a processor."""
POLL_SECONDS = 0.1
"""Seconds between two measurements of a service's processor time."""
_TICKS = os.sysconf("SC_CLK_TCK")
NOTABLE = 1.0
"""Seconds by which one wait must exceed its time-out before the excess counts as lost."""


def memory(root: str = CGROUPS) -> Memory:
    """The kernel's counters of this container's memory; zeros where they cannot be read, with the limit of a process.

    In a container, the files of its group are directly in `root` (cgroup 2) or in the folder of each controller
    (cgroup 1), whose peak use cannot be reset: there ``own`` and ``pressed`` count from the container's start.
    """
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    for name in ("memory.events.local", "memory.events"):
        if events := _counts(f"{root}/{name}"):
            kills, own, pressed = (events.get(key, 0) for key in ("oom_kill", "oom", "max"))
            limit = _number(f"{root}/memory.max")
            return {"kills": kills, "own": own, "pressed": pressed, "limit": limit, "peak": peak}
    folder = f"{root}/memory"
    kills = _counts(f"{folder}/memory.oom_control").get("oom_kill", 0)
    limit, most = _number(f"{folder}/memory.limit_in_bytes"), _number(f"{folder}/memory.max_usage_in_bytes")
    if not limit:  # without a control group, each process has the sandbox's limit for itself
        limit = max(0, resource.getrlimit(resource.RLIMIT_DATA)[0])
    # On newer kernels the failure counters stay 0; the peak use shows the same.
    failures = _number(f"{folder}/memory.failcnt") + _number(f"{folder}/memory.memsw.failcnt")
    met = max(failures, int(0 < limit - NEAR <= most))
    return {"kills": kills, "own": met, "pressed": met, "limit": limit, "peak": peak}


def _counts(path: str) -> dict[str, int]:
    with contextlib.suppress(OSError), open(path) as stream:
        pairs = [line.split() for line in stream]
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    return {}


def _number(path: str) -> int:
    with contextlib.suppress(OSError), open(path) as stream:
        text = stream.read().strip()
        return int(text) if text.isdigit() else 0  # "max" is no limit
    return 0


def times_of(folders: Sequence[str], other: str) -> list[int]:
    """The different ``st_ctime_ns`` of all files below some folders.

    Later changes have other times, even if the clock is set in between. The present moment, that of touching `other`,
    is left out, since a file may still be changed in it.
    """
    os.utime(other)
    now = os.stat(other).st_ctime_ns
    paths = (f"{at}/{name}" for folder in folders for at, _, names in os.walk(folder) for name in names)
    return sorted({os.lstat(path).st_ctime_ns for path in paths} - {now})


class Waits:
    """How far turns of this process's loop exceeded their time-outs: it was frozen, stopped, or starved of a processor.

    A turn is the work after the previous wait, without its processor time, and the next wait. A design cannot delay a
    turn: it runs in other processes, and the kernel gives none of them more than its share.
    """

    def __init__(self) -> None:
        self.lost = 0.0
        """Total seconds by which turns were late."""
        self.begin()

    def begin(self) -> None:
        """Begin a turn now, since the time before may have been spent waiting for something else."""
        self._begun, self._used = time.monotonic(), time.process_time()

    def select(self, selector: selectors.BaseSelector, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        """``selector.select(timeout)``, which ends the turn."""
        begun, used = self._begun, self._used
        ready = selector.select(timeout)
        self.begin()
        late = self._begun - begun - timeout - (self._used - used)
        if late > NOTABLE:
            self.lost += late
        return ready


def processes() -> Iterator[tuple[int, str, int, int, float]]:
    """All processes here: id, state, parent, session, and the processor time of the process and its ended children."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stream:
            words = stream.read().rsplit(")", 1)[1].split()
            yield int(name), words[0], int(words[1]), int(words[3]), sum(map(int, words[11:15])) / _TICKS


def machine_time() -> tuple[float, float]:
    """Seconds that all processors worked, and that the host of a virtual machine took ("steal" in proc(5))."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(STAT) as stream:
        user, nice, system, _, _, irq, softirq, stolen = map(int, stream.readline().split()[1:9])
        return (user + nice + system + irq + softirq) / _TICKS, stolen / _TICKS
    return 0.0, 0.0


class ProcessorShare:
    """The processor time of a session's processes, and the time for which they had to wait for a processor.

    A grading is promised one processor. So the waiting time of the session in an interval is that of the process that
    waited longest, from ``/proc/PID/schedstat``; not the sum, since a harness may start many processes. On a virtual
    machine, the time that its host took is added, in proportion to the session's share of all processor time. The total
    is at most the time for which the session lacked one processor. Sleeping is not waiting.
    `leader` is the session's id.
    """

    def __init__(self, leader: int) -> None:
        self.leader, self.begun = leader, time.monotonic()
        self.stopped = False
        """Whether a signal had stopped one of the processes at the last measurement; see `tracing` for traced ones."""
        self._looked, self._delayed, self._used = self.begun, 0.0, 0.0
        self._delays: dict[int, float] = {}
        self._worked, self._stolen = machine_time()

    def look(self) -> None:
        """Measure, if the last measurement is at least `POLL_SECONDS` old."""
        if time.monotonic() - self._looked >= POLL_SECONDS:
            self.measure()

    def measure(self) -> None:
        """Measure now. Processes that began and ended since the last measurement are missed."""
        now, stopped, used, longest = time.monotonic(), False, 0.0, 0.0
        delays: dict[int, float] = {}
        for pid, state, _, session, seconds in processes():
            if session != self.leader:
                continue
            stopped, used = stopped or state == "T", used + seconds
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/schedstat") as stream:
                delays[pid] = int(stream.read().split()[1]) / 1e9
                longest = max(longest, delays[pid] - self._delays.get(pid, 0.0))
        worked, stolen = machine_time()
        taken = (stolen - self._stolen) / max(worked - self._worked, 1 / _TICKS)
        self._worked, self._stolen = worked, stolen
        self._delayed += min(longest + max(0.0, used - self._used) * max(0.0, taken), now - self._looked)
        self._used = max(self._used, used)
        self.stopped, self._delays, self._looked = stopped, delays, now

    @property
    def waited(self) -> float:
        """Seconds, until the last measurement, for which the session lacked a processor that it could have used."""
        return max(0.0, min(self._delayed, self._looked - self.begun - self._used))
