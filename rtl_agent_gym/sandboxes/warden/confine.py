"""A system call filter that protects the warden from an agent's commands. Runs inside a sandbox; standard library only.

The warden runs as the commands' user, and the kernel lets each process change the limits and the scheduling of all
others of its user. With a CPU limit of a second or an idle priority for process 1, a command could end or silence the
sandbox. So every child of the warden gets a filter that refuses exactly this, with EPERM as for another user's process.
Signals need no filter: process 1 receives none from inside that it does not handle.
"""

from __future__ import annotations

import ctypes
import os
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets of a call's number, its architecture and its first two arguments."""
_X32 = 0x40000000
_PRIO_USER = 2


_CALLS = {
    "x86_64": (0xC000003E, (302, 142, 144, 203, 314), 141),
    "aarch64": (0xC00000B7, (261, 118, 119, 122, 274), 140),
}
"""By machine: its architecture's number; prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity and
sched_setattr, whose first argument is a process id; setpriority."""


def build(protected: int) -> bytes | None:
    """The filter that protects a process, or None for an unknown architecture."""
    if os.uname().machine not in _CALLS:
        return None
    architecture, by_process, setpriority = _CALLS[os.uname().machine]
    refuse, missing = (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ERRNO | _ENOSYS)
    allow = (_RETURN, 0, 0, _ALLOW)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        missing,  # a 32-bit program, whose numbers are others; the image has none
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        missing,
        *((_EQUAL, len(by_process) - at + 1, 0, number) for at, number in enumerate(by_process)),
        (_EQUAL, 4, 0, setpriority),
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
    """Put this process and all its future descendants under a filter, if the kernel supports it."""
    if program is not None:
        text = ctypes.create_string_buffer(program, len(program))
        header = ctypes.create_string_buffer(struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(text)))
        _LIBC.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0)
