"""What the machine did to a grading: memory, and time that passed without it. Runs inside a scoring sandbox; standard
library only.

Nothing is decided here. What a design may have caused and what it cannot is told apart in ``blame.py``, outside.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import time
from collections.abc import Iterable
from typing import Any

CGROUPS = "/sys/fs/cgroup"
NEAR = 1 << 20
"""Bytes below its limit at which a group counts as full: the kernel charges in batches."""
NOTABLE = 1.0
"""Seconds that one wait must take longer than it was asked to before they count as lost."""


def memory(root: str = CGROUPS) -> dict[str, int]:
    """What the kernel's books say of this container's memory; nothing where they cannot be read.

    Args:
        root: Where the control groups are mounted. Inside a container, the files of cgroup 2 lie there directly, those
            of cgroup 1 in the folder of each controller; both are of the container's own group.

    Returns:
        ``kills``: processes of the group that were killed for memory, whoever ran out of it: the group, one of its
        parents, or the host. ``own``: how often the group's own limit called for that. ``pressed``: how often its own
        limit was met, so that memory had to be reclaimed. ``limit``: in bytes, 0 for none.
    """
    for name in ("memory.events.local", "memory.events"):
        if events := _counts(f"{root}/{name}"):
            return {
                "kills": events.get("oom_kill", 0),
                "own": events.get("oom", 0),
                "pressed": events.get("max", 0),
                "limit": _number(f"{root}/memory.max"),
            }
    folder = f"{root}/memory"
    control = _counts(f"{folder}/memory.oom_control")
    if not control:
        return {}
    # The counters of failures stay at 0 on newer kernels; the highest use says the same there.
    limit, peak = _number(f"{folder}/memory.limit_in_bytes"), _number(f"{folder}/memory.max_usage_in_bytes")
    failures = _number(f"{folder}/memory.failcnt") + _number(f"{folder}/memory.memsw.failcnt")
    met = max(failures, int(0 < limit - NEAR <= peak))
    return {"kills": control.get("oom_kill", 0), "own": met, "pressed": met, "limit": limit}


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


def memory_since(before: dict[str, int]) -> dict[str, int]:
    """`memory` of now, its counts without those of `before`, and ``peak``: the most that one ended child had, in bytes.

    The highest use of a cgroup 1 cannot be reset, so ``own`` and ``pressed`` count from the container's start there.
    """
    now = memory()
    kills = now.get("kills", 0) - before.get("kills", 0)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {**{"own": 0, "pressed": 0, "limit": 0}, **now, "kills": kills, "peak": peak}


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


def standing(pids: Iterable[int]) -> dict[str, Any]:
    """Of processes that still run: ``stopped``, whether a signal or a tracer holds one; ``waited``, the seconds that
    one of them was ready to run and got no processor: the most of all, as a design could add processes.
    """
    stopped, waited = False, 0.0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{pid}/stat") as stream:
                stopped = stopped or stream.read().rsplit(")", 1)[1].split()[0] in "Tt"
            with open(f"/proc/{pid}/schedstat") as stream:
                waited = max(waited, int(stream.read().split()[1]) / 1e9)
    return {"stopped": stopped, "waited": waited}


def session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found
