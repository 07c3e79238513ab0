"""What an agent's commands may not do to the warden, as a system call filter. Runs inside a sandbox; standard library
only.

The warden runs as the user of the commands, whose kernel allows each process to change the limits and the scheduling of
all others of its user. With a CPU limit of a second or an idle priority for process 1, a command could end the sandbox
or silence it. So every child of the warden gets a filter that refuses exactly this, with EPERM as for a stranger's
process. Signals need no filter: process 1 gets none from inside that it has no handler for.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets of a call's number, its architecture and its first two arguments."""
_X32 = 0x40000000
_PRIO_USER = 2


@dataclass(frozen=True)
class _Calls:
    """The numbers that one architecture has for the calls."""

    architecture: int
    by_process: tuple[int, ...]
    """prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr: a process id comes first."""
    setpriority: int


_KNOWN = {
    "x86_64": _Calls(0xC000003E, (302, 142, 144, 203, 314), 141),
    "aarch64": _Calls(0xC00000B7, (261, 118, 119, 122, 274), 140),
}


def build(protected: int) -> bytes | None:
    """The filter that protects a process, or None where this architecture's calls are not known here."""
    calls = _KNOWN.get(os.uname().machine)
    if calls is None:
        return None
    count = len(calls.by_process)
    refuse, missing = (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ERRNO | _ENOSYS)
    allow = (_RETURN, 0, 0, _ALLOW)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, calls.architecture),
        missing,  # a 32-bit program, whose numbers are others; the image has none
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        missing,
        *((_EQUAL, count - at + 1, 0, number) for at, number in enumerate(calls.by_process)),
        (_EQUAL, 4, 0, calls.setpriority),
        allow,
        (_LOAD, 0, 0, _FIRST),
        (_EQUAL, 5, 0, protected),
        allow,
        (_LOAD, 0, 0, _FIRST),
        (_EQUAL, 2, 0, _PRIO_USER),
        (_LOAD, 0, 0, _SECOND),
        (_EQUAL, 0, 1, protected),
        refuse,
        allow,
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def confine(program: bytes | None) -> None:
    """Put this process, and all that it will ever start, under a filter; nothing where the kernel has none."""
    if program is not None:
        text = ctypes.create_string_buffer(program, len(program))
        header = ctypes.create_string_buffer(struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(text)))
        _LIBC.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0)
