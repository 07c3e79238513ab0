"""The system call filter of a sandbox of namespaces, compiled from the list in ``seccomp.txt``.

The warden installs it before it runs anything, and every process of the sandbox inherits it. It allows the listed
calls and refuses all others: with EPERM as Docker does, and with ENOSYS for calls that are newer than the list, so that
programs use an older one. The filter in `warden/confine.py`, which protects the warden, is added to each of its
children.
"""

from __future__ import annotations

import functools
import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ..errors import SandboxError
from .warden.confine import FAMILIES, Step, when

LIST = Path(__file__).with_name("seccomp.txt")
_LOAD, _EQUAL, _ABOVE, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets of a call's number, its architecture, and the lower halves of its first two arguments."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE3 = 435
"""Its flags are in memory, which a filter cannot read. C libraries use clone instead if it is missing."""
_NEW_NAMESPACES = 0x7E020000
"""The flags of clone that make namespaces."""
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux with and without a 32-bit address space or a 2.6 version number; the last one only queries."""
_TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal."""

_SHARED_FILE_REQUESTS = (1024, 1026)
"""F_SETLEASE and F_NOTIFY of fcntl: all sandboxes share the files of the root, so one would see what another opens and
reads, or delay it."""

_PERMIT: Step = (_RETURN, 0, 0, _ALLOW)
_REFUSE: Step = (_RETURN, 0, 0, _ERRNO | _EPERM)
_MISSING: Step = (_RETURN, 0, 0, _ERRNO | _ENOSYS)


@functools.cache
def allowed(machine: str = "") -> dict[str, int]:
    """The numbers of the allowed system calls by name, for an architecture; empty for this machine's.

    Raises `SandboxError` if the list does not include that architecture.
    """
    machine = machine or os.uname().machine
    if machine not in _ARCHITECTURES:
        known = " and ".join(_ARCHITECTURES)
        raise SandboxError(f"sandboxes of namespaces run on {known}, not on {machine}: use Docker there")
    column = list(_ARCHITECTURES).index(machine)
    lines = (line.split() for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {name: int(numbers[column]) for name, *numbers in lines if numbers[column] != "-"}


@functools.cache
def compile_filter(machine: str = "") -> bytes:
    """The filter as instructions of the kernel's BPF. Argument and errors as for `allowed`."""
    machine = machine or os.uname().machine
    calls = allowed(machine)
    families = _among(FAMILIES, (_RETURN, 0, 0, _ERRNO | _EAFNOSUPPORT))
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        _MISSING,  # a program of another architecture, such as 32 bits; the image has none
        (_LOAD, 0, 0, _NUMBER),
        *when(calls["clone"], [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _REFUSE, _PERMIT]),
        *when(calls["fcntl"], [(_LOAD, 0, 0, _SECOND), *_among(_SHARED_FILE_REQUESTS, _PERMIT, _REFUSE)]),
        *when(calls["ioctl"], [(_LOAD, 0, 0, _SECOND), *_among(_TERMINAL_REQUESTS, _PERMIT, _REFUSE)]),
        *when(calls["personality"], [(_LOAD, 0, 0, _FIRST), *_among(_PERSONALITIES, _REFUSE)]),
        *when(calls["socket"], [(_LOAD, 0, 0, _FIRST), *families]),
        *when(_CLONE3, [_MISSING]),
        *_ranges(sorted(calls.values())),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def _among(values: tuple[int, ...], otherwise: Step, then: Step = _PERMIT) -> list[Step]:
    """Return `then` for a loaded value that is one of these, else `otherwise`."""
    tests = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [*tests, otherwise, then]


def _ranges(numbers: list[int]) -> list[Step]:
    """Allow these numbers, in ascending order; refuse those between them; treat those above as missing.

    A filter can only jump forwards. A list is fast enough, since the kernel caches which calls are always allowed.
    """
    steps: list[Step] = [_MISSING, _REFUSE, _PERMIT]
    for begin, end in reversed(list(_spans(numbers))):
        # A number below these is refused, by the second return; one of them, a step later, is permitted, by the third.
        skipped = len(steps) - 1
        steps[:0] = [(_AT_LEAST, 0, skipped, begin), (_ABOVE, 0, skipped, end)]
    return steps


def _spans(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last number of each run of successive numbers."""
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield members[0], members[-1]
