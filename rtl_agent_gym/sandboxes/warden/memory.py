"""Watches how full the sandbox's memory is, and counts what the kernel ended. Runs inside it; standard library only.

When the kernel's out-of-memory killer ends a sandbox, nothing is left to report whether its own memory was full or the
machine's. So the warden reports beforehand when its own is getting full. Half counts: a sandbox that takes so much
helps to exhaust a machine that promised its sandboxes more than it has, which must not earn it another try.
"""

from __future__ import annotations

import contextlib
import os
import time

from .files import read_small

PERIOD = 0.25
"""Seconds between two looks, while commands could be taking memory."""
FULL, NO_LONGER_FULL = 0.5, 0.4
"""Shares of the limit: at or above the first the memory counts as full, below the second no longer."""
_FILES = (
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def oom_kills() -> int | None:
    """Processes of the sandbox that the kernel has ended for lack of memory so far; None if unknown."""
    for path in _COUNTERS:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return int(dict(line.split() for line in read_small(path).splitlines())[b"oom_kill"])
    return None


class MemoryWatch:
    """Notices when the memory becomes full, and when it no longer is."""

    def __init__(self) -> None:
        self.full = False
        self.due = 0.0
        """When to look again, on the monotonic clock."""
        found = next((pair for pair in _FILES if os.path.exists(pair[0])), ())
        self.files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in found]  # kept, as each command needs them

    def look(self) -> bool:
        """Whether this has changed."""
        self.due = time.monotonic() + PERIOD
        before, self.full = self.full, self._share() >= (NO_LONGER_FULL if self.full else FULL)
        return self.full != before

    def _share(self) -> float:
        """Memory in use, as a share of the container's own limit; 0 if unknown."""
        with contextlib.suppress(OSError, ValueError):
            used, most = (int(os.pread(fd, 64, 0)) for fd in self.files)
            return used / most
        return 0.0
