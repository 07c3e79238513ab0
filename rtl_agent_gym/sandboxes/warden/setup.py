"""Finishes a sandbox of namespaces before anything runs in it. Runs inside the sandbox; standard library only.

Docker does all of this before it starts a container's process 1. Bubblewrap cannot give its folders in memory an owner
and a number of files, and a limit of processes counts per sandbox only if it is set inside. So process 1 starts with
the capabilities for that, and gives all of them up here, before its first message and for every process after it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
from typing import Any

from . import confine

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 2, 4, 8, 32
_PR_SET_PDEATHSIG, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _CLEAR_ALL = 1, 23, 24, 47, 4
_CAPABILITY_VERSION = 0x20080522
_SIGKILL = 9
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_CHOWN", "CAP_SETPCAP", "CAP_SETUID", "CAP_SETGID")
"""What process 1 starts with: to remount folders and give them owners, to drop capabilities, to change users."""


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def set_up(text: str) -> None:
    """Mount options and owners of the folders in memory, limits of processes, the filter of system calls.

    Args:
        text: JSON: ``folders``, a list of [path, options of the file system, owner, whether programs may be run];
            ``shared_pages``, of System V's memory, or 0; ``limits``, by the names of `resource`; ``filter``, in
            hexadecimal digits; ``refused``, the numbers of more system calls that commands may not make.

    Raises:
        OSError: The kernel refuses one of them.
    """
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what bubblewrap had open
    wanted: dict[str, Any] = json.loads(text)
    for path, options, owner, programs in wanted["folders"]:
        flags = _MS_REMOUNT | _MS_NOSUID | _MS_NODEV | (0 if programs else _MS_NOEXEC)
        _check(_LIBC.mount(b"none", path.encode(), None, flags, options.encode()), f"remounting {path}")
        if owner != os.getuid():
            os.chown(path, owner, owner)
    if wanted["shared_pages"]:
        with open("/proc/sys/kernel/shmall", "w", encoding="ascii") as file:
            file.write(str(wanted["shared_pages"]))
    for name, limit in wanted["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (limit, limit))
    number = 0
    while _LIBC.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        _check(_LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), "dropping capabilities")
        number += 1
    confine.refused = tuple(wanted["refused"])
    if not confine.confine(bytes.fromhex(wanted["filter"])):
        raise OSError(ctypes.get_errno(), f"the filter of system calls: {os.strerror(ctypes.get_errno())}")


def give_up_capabilities() -> None:
    """Have no capability in any set. Raises `OSError` if the kernel refuses."""
    _check(_LIBC.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0), "clearing ambient capabilities")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "giving up capabilities")
    # A change of users has cleared it: end when the starter of this process does, also if that is killed.
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "asking for the signal")
