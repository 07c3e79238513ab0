"""Measurements of a grading: memory, and time in which the machine did not run it.

``scoring/blame.py`` decides from them what a design may have caused.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import time
from collections.abc import Iterator

from .messages import Memory

CGROUPS = "/sys/fs/cgroup"
NEAR = 1 << 20
"""Bytes below its limit at which a group counts as full: the kernel charges in batches."""
NOTABLE = 1.0
"""Seconds by which one wait must exceed its time-out before the excess counts as lost."""


def memory(root: str = CGROUPS) -> Memory:
    """The kernel's counters of this container's memory; zeros where they cannot be read.

    In a container, the files of its own group are directly in `root` (cgroup 2) or in the folder of each controller
    (cgroup 1), whose highest use cannot be reset: there ``own`` and ``pressed`` count from the container's start.
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
    # On newer kernels the failure counters stay 0; the highest use shows the same.
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


class Waits:
    """How far waits of this process exceeded their time-outs: it was frozen, stopped, or starved of a processor.

    A design cannot cause that: it runs in other processes, and the kernel gives none of them more than its share.
    """

    def __init__(self) -> None:
        self.lost = 0.0
        """Seconds in all."""

    def select(self, selector: selectors.BaseSelector, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        """``selector.select(timeout)``, measured."""
        begun = time.monotonic()
        ready = selector.select(timeout)
        late = time.monotonic() - begun - timeout
        if late > NOTABLE:
            self.lost += late
        return ready


def processes() -> Iterator[tuple[int, str, int, int]]:
    """Every process here: its id, state, parent and session."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stream:
            state, parent, _, session = stream.read().rsplit(")", 1)[1].split()[:4]
            yield int(name), state, int(parent), int(session)


def hindrance(leader: int) -> tuple[bool, float]:
    """What kept the processes of a session from running: whether a signal or a tracer stops one, and the most seconds
    for which one was ready to run without a processor (not the sum, since a design could add processes).
    """
    stopped, waited = False, 0.0
    for pid, state, _, session in processes():
        if session == leader:
            stopped = stopped or state in "Tt"
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/schedstat") as stream:
                waited = max(waited, int(stream.read().split()[1]) / 1e9)
    return stopped, waited
