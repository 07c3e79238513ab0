"""The zygote of namespace sandboxes: a process that has loaded the warden and forks process 1 of each sandbox. Runs
in their root folder; standard library only.

Bubblewrap starts one per root folder, so that starting a sandbox loads no Python. Messages on its control socket:

- from the client: a number, with three descriptors: the sandbox's socket, its stderr, and a file with its properties
  (`set_up`), in JSON;
- to the client: ``started NUMBER`` with a descriptor of the new process, or ``failed NUMBER WHY``, and later
  ``ended NUMBER STATUS``, where the status is that of `os.waitpid`.

It ends when its control socket is closed. As process 1 of a PID namespace, it then ends all of its sandboxes.

A new process 1 runs in a root that bubblewrap has mounted. It mounts the sandbox's private folders, starts the
loopback, sets the limits, and gives up all capabilities before its first message, for itself and all its descendants,
as Docker does for a container.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import re
import resource
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import confine
from .frames import Watcher
from .processes import ChildWatch, fork_into

_LIBC = ctypes.CDLL(None, use_errno=True)
_READ_ONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _MOVE = 1, 2, 4, 8, 32, 4096, 8192
_PRIVATE = 0x4000 | 0x40000
"""MS_REC and MS_PRIVATE."""
_PR_SET_PDEATHSIG, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _CLEAR_ALL = 1, 23, 24, 47, 4
_CAPABILITY_VERSION = 0x20080522
CLONE_NEWNS, CLONE_NEWPID, _CLONE_NEWCGROUP = 0x20000, 0x20000000, 0x2000000
_DETACH = 2
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_NET_ADMIN", "CAP_SETPCAP", "CAP_SETUID", "CAP_SETGID")
"""Initial capabilities of process 1: to mount, also inside the agent's folders, to start the loopback, to drop
capabilities, to change users."""
_ASIDE = "/dev/shm"
"""Temporary mount point of mounts that will replace others."""
_SHARED_MEMORY = 64 << 20
"""Bytes of /dev/shm."""
_UNCHANGED = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_MASKED_FILES = ("kcore", "keys", "latency_stats", "sched_debug", "timer_list")
_MASKED_FOLDERS = ("acpi", "asound", "scsi")
"""Entries of /proc that are made read-only or hidden, as by Docker."""
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
"""SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP, for network interfaces."""


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
    _check(_LIBC.mount(*words), f"mounting {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def enter_user_namespace(uid: int, outer_uid: int, outer_gid: int) -> None:
    """Become this user and group in a new user namespace, in which the caller has all capabilities. In the parent
    namespace, the caller has the outer ids.
    """
    _write("/proc/self/setgroups", "deny")
    for kind, outer in (("uid", outer_uid), ("gid", outer_gid)):
        _write(f"/proc/self/{kind}_map", f"{uid} {outer} 1")


def set_up(wanted: Mapping[str, Any]) -> None:
    """Mount the folders, and set the limits. Raises `OSError` if the kernel refuses that.

    Args:
        wanted: ``folders``, mount options of folders in memory, by path; ``groups``, folders of its control groups, by
            mount point; ``shared_pages``, limit on System V shared memory, or 0; ``single``, whether it has its own
            user namespace; ``lock``, whether to make the zygote's mounts read-only; ``limits``, by the names in
            `resource`; ``refused``, numbers of further system calls that commands may not make.
    """
    _mount("none", "/", "", _PRIVATE)
    _mount_proc()
    if wanted["lock"]:
        _lock_mounts()
    if wanted["single"]:
        _write("/proc/sys/user/max_user_namespaces", "0")
    if wanted["shared_pages"]:
        # Not permitted if the namespace has no root, and before Linux 6.9: then `confine` refuses such memory.
        with contextlib.suppress(PermissionError):
            _write("/proc/sys/kernel/shmall", str(wanted["shared_pages"]))
    _guard_proc()
    _mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    _mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, f"mode=1777,size={_SHARED_MEMORY}")
    for path, options in wanted["folders"].items():
        words = options.split(",")
        flags = _NOSUID | _NODEV | (_NOEXEC if "noexec" in words else 0)
        os.makedirs(path, exist_ok=True)  # it may be inside another one
        _mount("tmpfs", path, "tmpfs", flags, ",".join(word for word in words if "=" in word))
    os.chdir("/")
    _start_loopback()
    if wanted["groups"]:
        os.read(0, 1)  # the client puts this process into its control groups meanwhile
    _check(_LIBC.unshare(_CLONE_NEWCGROUP), "a cgroup namespace")
    _mount_system(wanted["groups"])
    for name, limit in wanted["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (limit, limit))
    number = 0
    while _LIBC.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        _check(_LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), "dropping capabilities")
        number += 1
    confine.refused = tuple(wanted["refused"])


def mount_for_worker(kept: Sequence[str]) -> None:
    """In new PID and mount namespaces inside the sandbox's: show only their processes, and `kept` folders read-only."""
    _mount_proc()
    _guard_proc()
    for path in kept:
        _make_read_only(path)


def _mount_proc() -> None:
    _mount("proc", _ASIDE, "proc", _NOSUID | _NODEV | _NOEXEC)
    _replace("/proc")


def _lock_mounts() -> None:
    """Make all mounts except /proc read-only."""
    with open("/proc/self/mountinfo", "rb") as file:
        places = [re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split()[4]) for line in file]
    for place in places:
        path = os.fsdecode(place)
        if path != "/proc" and not path.startswith("/proc/") and os.path.exists(path):
            _make_read_only(path)


def _bind_read_only(source: str, target: str) -> None:
    _mount(source, target, "", _BIND)
    _make_read_only(target)


def _make_read_only(target: str) -> None:
    """Make a mount read-only in this mount namespace."""
    kept = os.statvfs(target).f_flag & (_NOSUID | _NODEV | _NOEXEC)  # flags that another user's mount must keep
    _mount("none", target, "", _BIND | _REMOUNT | _READ_ONLY | kept)


def _guard_proc() -> None:
    for name in _UNCHANGED:
        if os.path.exists(path := f"/proc/{name}"):
            _bind_read_only(path, path)
    for name in _MASKED_FILES:
        if os.path.exists(path := f"/proc/{name}"):
            _bind_read_only("/dev/null", path)
    for name in _MASKED_FOLDERS:
        if os.path.exists(path := f"/proc/{name}"):
            _mount("tmpfs", path, "tmpfs", _READ_ONLY | _NOSUID | _NODEV | _NOEXEC, "size=4096")


def _mount_system(groups: Mapping[str, str]) -> None:
    """Mount a /sys that contains only the sandbox's control groups."""
    opened = {place: os.open(folder, os.O_PATH) for place, folder in groups.items()}
    _mount("tmpfs", _ASIDE, "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=755,size=4096")
    for place, descriptor in opened.items():
        aside = _ASIDE + place.removeprefix("/sys")
        os.makedirs(aside)
        _bind_read_only(f"/proc/self/fd/{descriptor}", aside)
        os.close(descriptor)
    _make_read_only(_ASIDE)
    _replace("/sys")


def _replace(target: str) -> None:
    """Move the mount at `_ASIDE` to `target`, in place of the zygote's."""
    _LIBC.umount2(target.encode(), _DETACH)  # not permitted in the sandbox's own user namespace; then it is covered
    _mount(_ASIDE, target, "", _MOVE)


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("16xH", fcntl.ioctl(any_socket, _GET_FLAGS, request))[0]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


def finish(filter_program: bytes) -> None:
    """Drop all capabilities, and install a system call filter. Raises `OSError` if the kernel refuses."""
    _check(_LIBC.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0), "clearing ambient capabilities")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "giving up capabilities")
    # The change of user cleared it: end when this process's parent ends, even if that is killed.
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "asking for the signal")
    _check(not confine.confine(filter_program), "the filter of system calls")


_NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | 0x4000000 | 0x8000000 | 0x40000000
"""The last three are CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET."""
_CLONE_NEWUSER = 0x10000000
_LONGEST_MESSAGE = 256


class Zygote:
    """The state of the loop.

    Args:
        single: Whether each sandbox gets its own user namespace, inside this process's.
        filter_program: The system call filter of all sandboxes.
        run: Runs process 1 of a sandbox, given the warden's arguments and the filter. Never returns.
    """

    def __init__(self, single: bool, filter_program: bytes, run: Callable[[dict[str, str], bytes], None]) -> None:
        self.single, self.filter_program, self.run = single, filter_program, run
        self.control = socket.socket(fileno=0)
        self.ids = os.getuid(), os.getgid()
        self.sandboxes: dict[int, int] = {}
        """The client's number of each sandbox, by process id."""

    def serve(self) -> None:
        watcher = Watcher()
        watcher.watch(0, self.on_request)
        ChildWatch(watcher, self.on_end)
        codecs.lookup("ascii")  # each sandbox needs it, so it is loaded once, here
        gc.collect()
        gc.freeze()  # a collection would write to memory that is shared with the sandboxes
        while True:
            watcher.turn(None)

    def on_request(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self.control, _LONGEST_MESSAGE, 3)
        if not message:
            os._exit(0)
        number = int(message)
        try:
            pid = fork_into(_NAMESPACES | (_CLONE_NEWUSER if self.single else 0))
            if not pid:
                self.become(*descriptors)
            self.sandboxes[pid] = number
            process = os.pidfd_open(pid)
            socket.send_fds(self.control, [b"started %d" % number], [process])
            os.close(process)
        except BrokenPipeError:
            os._exit(0)
        except OSError as error:
            self.control.send(b"failed %d %s" % (number, str(error).encode()[: _LONGEST_MESSAGE // 2]))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def on_end(self, pid: int, status: int) -> None:
        if (number := self.sandboxes.pop(pid, None)) is not None:
            self.control.send(b"ended %d %d" % (number, status))

    def become(self, line: int, errors: int, request: int) -> None:
        """Become process 1 of a new sandbox. Never returns."""
        try:
            os.dup2(errors, 2)
            wanted: dict[str, Any] = json.loads(os.pread(request, os.fstat(request).st_size, 0))
            os.dup2(line, 0)
            os.dup2(line, 1)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            signal.set_wakeup_fd(-1)
            os.setsid()
            if self.single:
                enter_user_namespace(wanted["uid"], *self.ids)
            set_up(wanted)
            os.environ.clear()
            os.environ.update(wanted["environment"])
            self.run(wanted["words"], self.filter_program)
        except BaseException:  # the child must never return into its parent's loop
            traceback.print_exc()
        finally:
            os._exit(1)
