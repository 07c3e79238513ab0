"""Processes beside the shell, and their pipes. Runs inside a sandbox; standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from .confine import build, confine
from .files import read_small
from .frames import Outbox, Watcher, reply

OUTPUT_FD, COMMAND_FD = 201, 202
"""bash's descriptors of the pipe for its commands' output and of the file with a command. Closed while one runs."""
PIPE_SIZE = 1 << 20
_F_SETPIPE_SZ = 1031
_CHILDREN = "/proc/%d/task/%d/children"
_ONE_THREAD = 3
"""Links of a process's ``task`` folder if it has one thread."""
_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
_CLONE_FS = 0x200
_SA_NOCLDSTOP = 1
_FLAGS_AT = 136
"""Offset of `sa_flags` in libc's ``struct sigaction`` on 64-bit machines: after the handler and a mask of 1024 bits."""
_DEFAULTED = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGCHLD,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
)
"""Signals that are handled or ignored by the warden, by Python when it starts, or by a shell for its background jobs,
which may include this package."""
_KILLED_SOONER = 500
"""Added to the warden's `oom_score_adj` for commands, so that the kernel kills them first."""
_oom_score: tuple[int, int] | None = None
"""A descriptor of the warden's own `oom_score_adj`, and its value."""


def fork_into(flags: int) -> int:
    """Fork with flags of clone, such as new namespaces. Raises `OSError`, also on unknown architectures."""
    if _CLONE is None:
        raise OSError(errno.ENOSYS, f"the number of clone is unknown for {os.uname().machine}")
    libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, as `os.fork` does
    pid = int(libc.syscall(*map(ctypes.c_long, (_CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0))))
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def fork_sharing_folder() -> int:
    """Fork a child that shares the caller's working folder and umask, so that its folder is known after its death."""
    return os.fork() if _CLONE is None else fork_into(_CLONE_FS)


def folder_of_last_sharer(known: str) -> str:
    """The working folder of the last child of `fork_sharing_folder`; `known` if it is the same, deleted or unknown."""
    with contextlib.suppress(OSError):
        folder = os.readlink("/proc/self/cwd")  # `os.getcwd` would search all folders above a very deep one
        if _CLONE is not None and os.path.samefile(folder, ".") and folder != os.path.realpath(known):
            return folder
    return known


class ChildWatch:
    """Reaps the children of this process when they end, which wakes its loop. `on_end` is called with the process id
    and the status, as `os.waitpid` returns them.
    """

    def __init__(self, watcher: Watcher, on_end: Callable[[int, int], None]) -> None:
        self._on_end = on_end
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        _wake_for_ends_alone()
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        watcher.watch(self._wake, self.reap)

    def reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._on_end(pid, status)


def _wake_for_ends_alone() -> None:
    """Make SIGCHLD wake the loop when a child ends, but not when bash is stopped or continued."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    libc = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(256)  # larger than any `struct sigaction`
    if libc.sigaction(signal.SIGCHLD, None, action) == 0:
        flags = ctypes.c_int.from_buffer(action, _FLAGS_AT)
        flags.value |= _SA_NOCLDSTOP
        libc.sigaction(signal.SIGCHLD, action, None)


def show_name(name: bytes) -> None:
    """Show this name as the command line of this process; otherwise `ps` would show the whole program."""
    start, end = map(int, read_small("/proc/self/stat").rsplit(b")", 1)[1].split()[45:47])
    # If the last byte is not NUL, the kernel shows what is before the first NUL.
    ctypes.memmove(start, name.ljust(end - start - 1, b"\0") + b"\1", end - start)


def open_oom_score() -> None:
    """Open this process's `oom_score_adj` for `spawn`: once this process cannot be traced, only root can open it."""
    global _oom_score
    with contextlib.suppress(OSError, ValueError):
        fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        _oom_score = fd, int(os.read(fd, 16))


def _add_to_oom_score(more: int) -> None:
    if _oom_score is not None:
        fd, own = _oom_score
        with contextlib.suppress(OSError):
            os.pwrite(fd, b"%d" % min(own + more, 1000), 0)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    fds: Mapping[int, int],
    fork: Callable[[], int] = os.fork,
) -> int:
    """Fork and exec in a new session, with only `fds` {number: descriptor} open. Returns the process id.

    Raises OSError if the fork fails. If the program cannot be run, the child prints why and exits with status 127.
    """
    filter_program = build(os.getpid())
    pid = -1
    _add_to_oom_score(_KILLED_SOONER)  # the child inherits it, and cannot open its own before exec
    try:
        pid = fork()
    finally:
        if pid:
            _add_to_oom_score(0)
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for signal_number in _DEFAULTED:
            signal.signal(signal_number, signal.SIG_DFL)
        moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300) for number, fd in fds.items()}
        for number, fd in moved.items():
            os.dup2(fd, number)
        os.closerange(3, OUTPUT_FD)
        os.closerange(max(OUTPUT_FD - 1, *fds) + 1, 300)
        os.umask(0o022)
        for place in (cwd, "/"):
            try:
                os.chdir(place)
                break
            except OSError:
                continue
        confine(filter_program)
        os.execvpe(argv[0], list(argv), dict(env))
    except BaseException as error:  # the child must never return into its parent's loop
        with contextlib.suppress(OSError):
            os.write(2, f"{argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def processes() -> dict[int, tuple[int, int]]:
    """{pid: (parent, start time)} of all processes alive here except process 1 and the caller.

    A process whose first thread has ended is shown as a zombie although its other threads run.
    """
    found = {}
    mine = (1, os.getpid())
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in mine:
            try:
                fields = read_small(f"/proc/{name}/stat").rsplit(b")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != b"Z" or int(fields[17]) > 1:
                found[int(name)] = (int(fields[1]), int(fields[19]))
    return found


def alone(pid: int) -> bool:
    """Whether only this child of the caller, which is process 1, is alive here; much faster than `processes`.

    False if that is unknown, as in kernels without CONFIG_PROC_CHILDREN.
    """
    try:
        if os.stat(f"/proc/{pid}/task").st_nlink != _ONE_THREAD:  # each thread has its own children
            return False
        # The child's first: its orphans become the caller's children, and are then found there.
        mine = os.getpid()
        return not read_small(_CHILDREN % (pid, pid)) and read_small(_CHILDREN % (mine, mine)).split() == [b"%d" % pid]
    except OSError:
        return False


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_until_gone(remaining: Callable[[], Collection[int]], *, everything: bool = False) -> None:
    """Kill the `remaining` processes, or `everything` while some remain, and wait, at most 50 ms, for the kernel."""
    for _ in range(10):
        pids = remaining()
        if not pids:
            return
        signal_all([-1] if everything else pids, signal.SIGKILL)
        time.sleep(0.005)


class Stream:
    """A pipe that children write to and the warden reads without waiting. The user closes both ends: the writing end
    once a child has it; after the reading end is closed, writers get SIGPIPE.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        with contextlib.suppress(OSError):  # larger, for fewer wake-ups, if the kernel allows it
            fcntl.fcntl(self.read_fd, _F_SETPIPE_SZ, PIPE_SIZE)
        os.set_blocking(self.read_fd, False)

    def drain(self, take: Callable[[bytes], None], most: int = 1 << 26) -> bool:
        """Pass on available data, at most `most` bytes, since a writer may never stop. False at the stream's end."""
        while most > 0:
            try:
                data = os.read(self.read_fd, PIPE_SIZE)
            except BlockingIOError:
                return True
            if not data:
                return False
            most -= len(data)
            take(data)
        return True


class Process:
    """A process beside the shell, from a request's ``id``, ``argv``, ``env`` and ``cwd``. It and everything it started
    are gone when its end is reported.
    """

    def __init__(self, header: Mapping[str, Any], watcher: Watcher) -> None:
        self.id, self.watcher, self.stream = header["id"], watcher, Stream()
        out = self.stream.write_fd
        source, stdin = os.pipe()
        try:
            self.pid = spawn(
                header["argv"], {**os.environ, **header["env"]}, header["cwd"], {0: source, 1: out, 2: out}
            )
        except OSError:
            os.close(stdin)
            os.close(self.stream.read_fd)
            raise
        finally:
            os.close(source)
            os.close(self.stream.write_fd)
        self.stdin = Outbox(stdin, watcher)
        watcher.watch(self.stream.read_fd, self.on_output)

    def write(self, request: int, data: bytes) -> None:
        """Write to its stdin; empty data closes it. The reply is sent when all is written, or cannot be."""

        def answer(written: bool) -> None:
            if written:
                reply(b"d", {"id": request})
            else:
                refuse(request)
            if not data:
                self.stdin.close()

        self.stdin.send(data, answer)

    def on_output(self) -> None:
        if not self.stream.drain(self.send, 1 << 22):
            self.watcher.unwatch(self.stream.read_fd)

    def send(self, data: bytes) -> None:
        reply(b"o", {"id": self.id}, data)

    def hold(self, held: bool) -> None:
        """Stop reading its output, or resume."""
        if held:
            self.watcher.unwatch(self.stream.read_fd)
        else:
            self.watcher.watch(self.stream.read_fd, self.on_output)

    def remains(self) -> list[int]:
        """Living processes of its session and its descendants; itself first, since it could exit at a child's end."""
        now, mine = processes(), {self.pid}
        for pid in sorted(now):
            with contextlib.suppress(OSError):
                if now[pid][0] in mine or os.getsid(pid) == self.pid:
                    mine.add(pid)
        return sorted(mine & set(now), key=lambda pid: pid != self.pid)

    def kill(self, everything: bool) -> None:
        """Kill it and what it started, or everything in the sandbox."""
        signal_all([-1] if everything else self.remains(), signal.SIGKILL)

    def on_death(self, code: int, alone: bool) -> None:
        """After its main process has ended: end the rest and report. `alone`: all processes here belong to it."""
        self.stdin.close()
        kill_until_gone(processes if alone else self.remains, everything=alone)
        self.stream.drain(self.send)
        self.watcher.unwatch(self.stream.read_fd)
        os.close(self.stream.read_fd)
        reply(b"d", {"id": self.id, "exit_code": code})


def refuse(request: int) -> None:
    """Reply that the data cannot be written because nothing reads it."""
    reply(b"e", {"id": request, "message": "the process reads no more", "errno": errno.EPIPE})
