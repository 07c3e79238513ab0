"""The processes of a supervisor: starting them, reading their output, and ending them with all that they started."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from . import warm
from .measures import hindrance, processes
from .messages import ProcessReport, StartFault

HEAD, TAIL = 16_000, 48_000
"""Bytes kept of a service's output."""
_BY_PYTHON_ALONE = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores; other programs expect their default actions."""


class Log:
    """The head and the tail of an output.

    Args:
        limited: Whether the rest is dropped; False for tests of this limit.
    """

    def __init__(self, limited: bool = True) -> None:
        self.head, self.tail, self.size, self.limited = b"", b"", 0, limited

    def feed(self, data: bytes) -> None:
        """Add output."""
        self.size += len(data)
        free = HEAD - len(self.head) if self.limited else len(data)
        self.head += data[:free]
        self.tail = (self.tail + data[free:])[-TAIL:]

    def text(self) -> str:
        """What was kept, with a line in place of what was dropped."""
        cut = self.size - len(self.head) - len(self.tail)
        gap = f"\n… {cut} bytes left out …\n".encode() if cut else b""
        return (self.head + gap + self.tail).decode("utf-8", errors="replace")


class Process:
    """A child with its output in a pipe. The kernel's out-of-memory killer prefers it to the supervisor.

    Args:
        selector: The supervisor's selector.
        release: Called in the child to give up the supervisor's connections.
        limited: Whether its output is cut.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        *,
        release: Callable[[], None],
        limited: bool = True,
    ) -> None:
        self.selector, self.log = selector, Log(limited)
        self.code: int | None = None
        self.timed_out = False
        self.fault: StartFault | None = None
        self.stopped, self.waited = False, 0.0
        self.begun, self.seconds = time.monotonic(), 0.0
        self.pid = 0
        self.read_fd, write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        selector.register(self.read_fd, selectors.EVENT_READ, self.read)
        try:
            os.makedirs(cwd, exist_ok=True)
            self.pid = start(argv, env, cwd, write_fd, release)
        except OSError as error:
            self.code = 127
            self.fault = {"program": argv[0], "cwd": cwd, "errno": error.errno or 0, "text": error.strerror or ""}
        finally:
            os.close(write_fd)
        # A pidfd wakes the loop as soon as the child ends, even if other processes hold the pipe.
        self.pid_fd = os.pidfd_open(self.pid) if self.pid else -1
        if self.pid:
            selector.register(self.pid_fd, selectors.EVENT_READ, self.poll)

    def read(self) -> None:
        """Read the output written so far."""
        try:
            data = os.read(self.read_fd, 1 << 20)
        except BlockingIOError:
            return
        if data:
            self.log.feed(data)
        else:
            self._close("read_fd")

    def poll(self, options: int = os.WNOHANG) -> None:
        """Check whether the child has ended."""
        if self.code is not None:
            return
        pid, status = os.waitpid(self.pid, options)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self.code = 128 - code if code < 0 else code
            self.seconds = self.seconds or time.monotonic() - self.begun
            self._close("pid_fd")

    def end(self, spared: set[int]) -> None:
        """Kill it and everything it started, except the spared children and what they started."""
        if self.code is None:
            self.stopped, self.waited = hindrance(self.pid)
            self.seconds = time.monotonic() - self.begun
            os.kill(self.pid, signal.SIGKILL)
            self.poll(0)
        if self.pid:
            kill_session(self.pid, spared)
        if self.read_fd >= 0:
            self.read()
        self._close("read_fd")

    def _close(self, name: str) -> None:
        fd = getattr(self, name)
        if fd >= 0:
            self.selector.unregister(fd)
            os.close(fd)
            setattr(self, name, -1)

    def report(self) -> ProcessReport:
        """How it ended."""
        return {
            "code": None if self.timed_out else self.code,
            "seconds": self.seconds,
            "log": self.log.text(),
            "fault": self.fault,
            "stopped": self.stopped,
            "waited": self.waited,
        }


def start(argv: list[str], env: dict[str, str], cwd: str, output: int, release: Callable[[], None]) -> int:
    """Fork and run a command in the child: pytest directly if this process has loaded it (`warm`), anything else as a
    new program. Returns the child's process id. For the arguments, see `Process`.

    Raises:
        OSError: The fork failed or the program cannot be run; nothing of it has run.
    """
    loaded = warm.can_start(argv, env, cwd)
    reading, writing = os.pipe()
    try:
        pid = os.fork()
        if not pid:
            _be_child(argv, env, cwd, output, release, writing, loaded)
    finally:
        os.close(writing)
    try:
        number = b"".join(iter(lambda: os.read(reading, 64), b""))
    finally:
        os.close(reading)
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return pid


def _be_child(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    output: int,
    release: Callable[[], None],
    writing: int,
    loaded: bool,
) -> NoReturn:
    """In the child. Writes the number of an error to the pipe `writing`, or closes it if there is none."""
    try:
        os.setsid()
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")
        release()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(cwd)
        if not loaded:
            for number in _BY_PYTHON_ALONE:
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(argv[0], argv, {**os.environ, **env})
    except BaseException as error:
        os.write(writing, str(getattr(error, "errno", None) or 5).encode())
        os._exit(127)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # and with them the pipe, which reports success
    warm.run(argv, env, cwd)


def kill_session(leader: int, spared: set[int]) -> None:
    """Kill what is left of a service: its session, and orphans, whose parent is now this process."""
    for _ in range(100):
        left = [
            pid
            for pid, state, parent, session in processes()
            if not {pid, session} & spared and (parent == os.getpid() or (session == leader and state != "Z"))
        ]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not left:
            return
        time.sleep(0.01)
