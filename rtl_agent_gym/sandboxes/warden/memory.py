"""How full the sandbox's memory is. Runs inside it; standard library only.

When the kernel's out-of-memory killer ends a sandbox, nobody is left to tell whether its own memory was full or the
machine's. So the warden says beforehand when its own is getting full.
"""

from __future__ import annotations

import contextlib

PERIOD = 0.25
"""Seconds between two looks, while commands could be taking memory."""
FULL, ROOM = 0.8, 0.7
"""Shares of the limit from which on the memory counts as full, and below which it no longer does."""
_FILES = (
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def share() -> float:
    """Memory in use, as a share of the container's own limit; 0 where nobody knows."""
    for usage, limit in _FILES:
        with contextlib.suppress(OSError, ValueError), open(usage, "rb") as used, open(limit, "rb") as most:
            return int(used.read()) / int(most.read())
    return 0.0


class MemoryWatch:
    """Notes when the memory becomes full, and when it is no longer."""

    def __init__(self) -> None:
        self.full = False
        self.due = 0.0

    def look(self, now: float) -> bool:
        """Whether this has changed. Looks once in a `PERIOD` at most."""
        if now < self.due:
            return False
        self.due = now + PERIOD
        before, self.full = self.full, share() >= (ROOM if self.full else FULL)
        return self.full != before
