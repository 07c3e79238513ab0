"""The memory of a sandbox. Runs inside it; standard library only.

A control group limits it, and the warden only reads the group's files. Without a control group, the warden adds up the
memory of processes and of folders in memory, and kills the largest process if the sum is above the limit. Memory that
processes share, and mapped files of such folders, count more than once. Commands may not create what the warden cannot
see (memory files, System V shared memory); see `confine.refused`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from .files import read_small

MEMORY_PERIOD = 0.25
"""Seconds between two checks while commands could be taking memory."""
GUARD_PERIOD = 0.05
"""The same if no control group limits the memory."""
FULL, NO_LONGER_FULL = 0.5, 0.4
"""Shares of the limit: the memory counts as full from the first on, until it is below the second."""
_FILES = (
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_MACHINE_COUNTER = "/proc/vmstat"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_USUAL_SHARED = 64 << 20
"""Bytes of files and shared memory of all processes above which the warden determines how much of it is memory."""


def _oom_kills(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in read_small(path).splitlines())[b"oom_kill"])
    return None


class MemoryWatch:
    """Detects when the sandbox's memory becomes full, and when it no longer is.

    When the kernel's out-of-memory killer ends a sandbox, nothing can report afterwards whether its own memory was full
    or the machine's. So the warden reports in advance when its own is half full: a sandbox that uses that much helps to
    exhaust a machine that promised more than it has, and must not get another attempt for that.

    `limit` is the number of bytes that the warden itself must enforce; 0 if a control group does.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.period = GUARD_PERIOD if limit else MEMORY_PERIOD
        self.full = False
        self.due = 0.0
        """The monotonic time of the next check."""
        self.kills = 0
        """Processes that the warden has killed for memory."""
        self.machine_kills = _oom_kills(_MACHINE_COUNTER) if limit else None
        """Processes that the kernel had killed for memory on the whole machine when this sandbox started."""
        found = next((pair for pair in _FILES if os.path.exists(pair[0])), ()) if not limit else ()
        self.files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in found]  # kept, as each command needs them

    def look(self) -> bool:
        """Check the memory. Returns whether `full` has changed."""
        self.due = time.monotonic() + self.period
        before, self.full = self.full, self._share() >= (NO_LONGER_FULL if self.full else FULL)
        return self.full != before

    def oom_kills(self) -> int | None:
        """Number of the sandbox's processes that ran out of memory so far; None if unknown."""
        if not self.limit:
            return next((kills for kills in map(_oom_kills, _COUNTERS) if kills is not None), None)
        # The kernel's victims may belong to any sandbox, and a process that was refused memory is not noticed.
        return self.kills or None if _oom_kills(_MACHINE_COUNTER) == self.machine_kills else None

    def _share(self) -> float:
        if self.limit:
            return self._guard() / self.limit
        with contextlib.suppress(OSError, ValueError):
            used, most = (int(os.pread(fd, 64, 0)) for fd in self.files)
            return used / most
        return 0.0

    def _guard(self) -> int:
        """Bytes in use; above the limit, kill the commands' largest processes."""
        sizes = _process_sizes()
        used = sum(sizes.values()) + _bytes_in_folders()
        mine = os.getpid()
        while used > self.limit:
            largest = max((pid for pid in sizes if pid not in (1, mine)), key=lambda pid: sizes[pid], default=0)
            if not largest:
                break
            used -= sizes.pop(largest)
            with contextlib.suppress(OSError):  # it has ended, or is the keeper's
                os.kill(largest, signal.SIGKILL)
                self.kills += 1
        return used


def _process_sizes() -> dict[int, int]:
    """Bytes of memory of each process: its own and shared memory, without files."""
    sizes, shared = dict[int, int](), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = read_small(f"/proc/{name}/statm").split()
            sizes[int(name)] = (int(words[1]) - int(words[2])) * _PAGE
            shared += int(words[2]) * _PAGE
    if shared > _USUAL_SHARED:  # mostly files, such as programs and libraries
        for pid in sizes:
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The last match, since the process chooses its name, which comes earlier.
                sizes[pid] += int(read_small(f"/proc/{pid}/status").rpartition(b"RssShmem:")[2].split()[0]) << 10
    return sizes


def _bytes_in_folders() -> int:
    """Bytes of the files in all folders in memory, counting each file system once."""
    found = {}
    for line in read_small("/proc/self/mounts").splitlines():
        words = line.split()
        if words[2] == b"tmpfs":
            with contextlib.suppress(OSError):
                there = os.statvfs(words[1])
                found[os.stat(words[1]).st_dev] = (there.f_blocks - there.f_bfree) * there.f_frsize
    return sum(found.values())
