"""Processes, pipes and bounded output. Runs inside a sandbox; standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

from .confine import build, confine

STATUS_FD = 201
"""Where bash reports to the warden. Closed while a command runs."""
PIPE_SIZE = 1 << 20
_F_SETPIPE_SZ = 1031
_CONTINUATION = bytes(range(0x80, 0xC0))  # UTF-8 bytes that begin no character
_DEFAULTED = (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def widen_pipe(fd: int) -> None:
    """A larger pipe means fewer wake-ups; being refused one is no harm."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_SIZE)


def spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str, fds: Mapping[int, int]) -> int:
    """Fork and exec in a session of its own, with `fds` {number: descriptor} open and nothing else. Returns the pid.

    Raises OSError when no process can be had; a program that cannot be run ends with status 127 and says why.
    """
    filter_program = build(os.getpid())
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for signal_number in _DEFAULTED:
            signal.signal(signal_number, signal.SIG_DFL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("500")  # when memory runs out, the sandbox's work goes before its keeper
        moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300) for number, fd in fds.items()}
        for number, fd in moved.items():
            os.dup2(fd, number)
        os.closerange(3, STATUS_FD)
        os.closerange(STATUS_FD + 1, 300)
        if STATUS_FD not in fds:
            with contextlib.suppress(OSError):
                os.close(STATUS_FD)
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
    """{pid: (parent, start time)} of everything alive here but process 1 and the caller."""
    found = {}
    mine = (1, os.getpid())
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in mine:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rsplit(b")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                found[int(name)] = (int(fields[1]), int(fields[19]))
    return found


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


class Output:
    """The first and the last bytes of a stream; what lies between is counted and dropped, so memory stays bounded.

    Args:
        limit: Bytes to keep: half of them the first, half the last.
        send: Takes the first bytes, as they come.
    """

    def __init__(self, limit: int, send: Callable[[bytes], None]) -> None:
        self.room, self.keep, self.send = limit - limit // 2, limit // 2, send
        self.tail, self.size, self.chars = bytearray(), 0, 0

    def feed(self, data: bytes) -> None:
        """Take what was written next."""
        self.size += len(data)
        self.chars += len(data.translate(None, _CONTINUATION))
        if self.room:
            head, data = data[: self.room], data[self.room :]
            self.room -= len(head)
            self.send(head)
        if data and self.keep:
            self.tail += data[-self.keep :]
            if len(self.tail) > 2 * self.keep:
                del self.tail[: -self.keep]

    def rest(self) -> bytes:
        """The last bytes, as far as they were not sent as the first."""
        return bytes(self.tail[-self.keep :]) if self.keep else b""


class Stream:
    """A pipe that children write to and the warden reads without waiting."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        widen_pipe(self.read_fd)
        os.set_blocking(self.read_fd, False)

    def close_writer(self) -> None:
        """Give up the warden's own copy of the writing end, once a child has it."""
        os.close(self.write_fd)

    def drain(self, take: Callable[[bytes], None], most: int = 1 << 26) -> bool:
        """Pass on what is there, up to `most` bytes, as somebody may write for ever. False at the stream's end."""
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

    def close(self) -> None:
        """End the reading side; later writers get SIGPIPE."""
        os.close(self.read_fd)
