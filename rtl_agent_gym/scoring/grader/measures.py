"""What the machine did to a grading: memory, and time that passed without it.

Nothing is decided here. What a design may have caused and what it cannot is told apart in ``scoring/blame.py``.
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
"""Seconds that one wait must take longer than it was asked to before they count as lost."""


def memory(root: str = CGROUPS) -> Memory:
    """What the kernel's books say of this container's memory; zeros where they cannot be read.

    The highest use of a cgroup 1 cannot be reset, so ``own`` and ``pressed`` count from the container's start there.

    Args:
        root: Where the control groups are mounted. Inside a container, the files of cgroup 2 lie there directly, those
            of cgroup 1 in the folder of each controller; both are of the container's own group.
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
    # The counters of failures stay at 0 on newer kernels; the highest use says the same there.
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
    """How much longer than asked this process waited for events: it was frozen, stopped, or starved of a processor.

    A design cannot do that to it: it runs in other processes, of which the kernel gives none more than its share.
    """

    def __init__(self) -> None:
        self.lost = 0.0
        """Seconds in all."""

    def select(self, selector: selectors.BaseSelector, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        """``selector.select(timeout)``, watched."""
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
    """What keeps the processes of a session from running: whether a signal or a tracer holds one, and the seconds that
    one of them was ready to run and got no processor: the most of all, as a design could add processes.
    """
    stopped, waited = False, 0.0
    for pid, state, _, session in processes():
        if session == leader:
            stopped = stopped or state in "Tt"
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/schedstat") as stream:
                waited = max(waited, int(stream.read().split()[1]) / 1e9)
    return stopped, waited
