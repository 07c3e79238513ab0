"""A system call filter that protects the warden and the host. Runs inside a sandbox; standard library only.

The warden runs as the commands' user, and the kernel lets each process change the limits and the scheduling of all
other processes of its user. With a CPU limit of a second or an idle priority for process 1, a command could end or
silence the sandbox. So every child of the warden gets a filter that refuses exactly this, with EPERM as for another
user's process. Signals need no filter: from inside, process 1 only receives those that it handles.

Some kinds of sockets reach out of a container without a network, such as those between a virtual machine and its host
(AF_VSOCK), and not every version of Docker refuses them. So the filter refuses all families but the usual ones, and
io_uring, whose requests no filter sees.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets of a call's number, its architecture and its first two arguments."""
_X32 = 0x40000000
_PRIO_USER = 2
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: the families of sockets that commands may open."""
_IO_URING_SETUP = 425
"""Its number on every architecture."""
_CALLS = {
    "x86_64": (0xC000003E, (302, 142, 144, 203, 314), 141, 41, 29),
    "aarch64": (0xC00000B7, (261, 118, 119, 122, 274), 140, 198, 194),
}
"""By machine: its architecture's number; prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity and
sched_setattr, whose first argument is a process id; setpriority; socket; shmget."""
SHARED_PAGES = (16 << 20) >> 12
"""Limit on a sandbox's System V shared memory, which outlives the processes that made it. Not every sandbox may set the
limit in the kernel; without it, commands get no such memory."""

Step = tuple[int, int, int, int]
"""An instruction: operation, number of instructions to skip if it is true and if it is false, operand."""

refused: tuple[int, ...] = ()
"""System calls that the commands may not make at all."""


def build(protected: int) -> bytes | None:
    """The filter that protects a process, or None for an unknown architecture."""
    if os.uname().machine not in _CALLS:
        return None
    architecture, by_process, setpriority, socket, shmget = _CALLS[os.uname().machine]
    refuse, missing = (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ERRNO | _ENOSYS)
    allow, first = (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _FIRST)
    known = [(_EQUAL, len(FAMILIES) - 1 - at, 0, family) for at, family in enumerate(FAMILIES[:-1])]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        missing,  # a 32-bit program, with other call numbers; the image has none
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        missing,
        *(step for one in by_process for step in when(one, [first, (_EQUAL, 0, 1, protected), refuse, allow])),
        *when(
            setpriority,
            [first, (_EQUAL, 2, 0, _PRIO_USER), (_LOAD, 0, 0, _SECOND), (_EQUAL, 0, 1, protected), refuse, allow],
        ),
        *when(
            socket,
            [first, *known, (_EQUAL, 0, 1, FAMILIES[-1]), allow, (_RETURN, 0, 0, _ERRNO | _EAFNOSUPPORT)],
        ),
        *when(_IO_URING_SETUP, [missing]),
        *(() if _shared_memory_is_limited() else when(shmget, [refuse])),
        *(step for number in refused for step in when(number, [refuse])),
        allow,
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in program)


@functools.cache
def _shared_memory_is_limited() -> bool:
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/kernel/shmall", encoding="ascii") as file:
        return int(file.read()) <= SHARED_PAGES
    return False


def when(number: int, steps: list[Step]) -> list[Step]:
    """Run `steps`, which end with a return, if the loaded system call number is `number`."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def confine(program: bytes | None) -> bool:
    """Put this process and its future descendants under a filter. Returns whether the kernel supports it."""
    if program is not None:
        text = ctypes.create_string_buffer(program, len(program))
        header = ctypes.create_string_buffer(struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(text)))
        return bool(_LIBC.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0) == 0)
    return False
