"""The children of a supervisor: their start, their output, and their end with everything they left. Runs inside a
scoring sandbox; standard library only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Any, Protocol

from .evidence import session, standing

HEAD, TAIL = 16_000, 48_000
"""Bytes kept of a service's output."""


class Owner(Protocol):
    """What a child needs of its supervisor."""

    limited: bool
    selector: selectors.BaseSelector
    warm: Any
    spared: set[int]

    def let_go(self) -> None:
        """In a fork: give up every connection."""


class Log:
    """The head and the tail of what was written.

    Args:
        limited: Whether the rest is dropped; a test of this limit keeps it.
    """

    def __init__(self, limited: bool = True) -> None:
        self.head, self.tail, self.size, self.limited = b"", b"", 0, limited

    def feed(self, data: bytes) -> None:
        """Take more of it."""
        self.size += len(data)
        room = HEAD - len(self.head) if self.limited else len(data)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-TAIL:]

    def text(self) -> str:
        """What was kept, with a line about what was not."""
        cut = self.size - len(self.head) - len(self.tail)
        gap = f"\n… {cut} bytes left out …\n".encode() if cut else b""
        return (self.head + gap + self.tail).decode("utf-8", errors="replace")


class Fork:
    """A child that is a fork of this process, with what is used of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, 0
        self._ended = False

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self.returncode if self._ended or self._reap(os.WNOHANG) else None

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        if not self._ended:
            self._reap(0)
        return self.returncode

    def kill(self) -> None:
        """End it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> bool:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode, self._ended = os.waitstatus_to_exitcode(status), True
        return self._ended


class Process:
    """A child with its output in a pipe. The kernel's out-of-memory killer takes it before the supervisor."""

    def __init__(self, supervisor: Owner, argv: list[str], env: dict[str, str], cwd: str) -> None:
        self.supervisor, self.log = supervisor, Log(supervisor.limited)
        self.code: int | None = None
        self.timed_out = False
        self.fault: dict[str, Any] | None = None
        self.standing: dict[str, Any] = {}
        self.begun, self.seconds = time.monotonic(), 0.0
        self.child: subprocess.Popen[bytes] | Fork | None = None
        self.read_fd, write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        supervisor.selector.register(self.read_fd, selectors.EVENT_READ, self.read)
        try:
            os.makedirs(cwd, exist_ok=True)
            if supervisor.warm is not None and supervisor.warm.can_start(argv, env, cwd):
                self.child = Fork(supervisor.warm.start(argv, env, cwd, write_fd, supervisor.let_go))
            else:
                self.child = subprocess.Popen(
                    argv,
                    env={**os.environ, **env},
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=write_fd,
                    stderr=write_fd,
                    start_new_session=True,
                    preexec_fn=_come_first,
                )
        except OSError as error:
            self.code = 127
            self.fault = {"program": argv[0], "cwd": cwd, "errno": error.errno, "said": error.strerror}
        finally:
            os.close(write_fd)
        # A pidfd wakes the loop the moment the child ends, whoever still holds the pipe.
        self.pid_fd = os.pidfd_open(self.child.pid) if self.child else -1
        if self.child:
            supervisor.selector.register(self.pid_fd, selectors.EVENT_READ, self.poll)

    def read(self) -> None:
        """Take what has been written."""
        try:
            data = os.read(self.read_fd, 1 << 20)
        except BlockingIOError:
            return
        if data:
            self.log.feed(data)
        else:
            self._close("read_fd")

    def poll(self) -> None:
        """Note the end of the child."""
        if self.code is None and self.child is not None and self.child.poll() is not None:
            code = self.child.returncode
            self.code = 128 - code if code < 0 else code
            self.seconds = self.seconds or time.monotonic() - self.begun
            self._close("pid_fd")

    def end(self) -> None:
        """End it and everything it started."""
        if self.child is not None and self.code is None:
            self.standing = standing(session(self.child.pid))
            self.seconds = time.monotonic() - self.begun
            self.child.kill()
            self.child.wait()
            self.poll()
        if self.child is not None:
            kill_session(self.child.pid, self.supervisor.spared - {self.child.pid})
        if self.read_fd >= 0:
            self.read()
        self._close("read_fd")
        self._close("pid_fd")

    def _close(self, name: str) -> None:
        fd = getattr(self, name)
        if fd >= 0:
            self.supervisor.selector.unregister(fd)
            os.close(fd)
            setattr(self, name, -1)

    def report(self) -> dict[str, Any]:
        """What it did."""
        code = None if self.timed_out else self.code
        return {
            "code": code,
            "timed_out": self.timed_out,
            "seconds": self.seconds,
            "log": self.log.text(),
            "fault": self.fault,
            **self.standing,
        }


def _come_first() -> None:
    with open("/proc/self/oom_score_adj", "w") as stream:
        stream.write("1000")


def kill_session(leader: int, spared: set[int]) -> None:
    """Kill whoever is left of a service: its session, and orphans, which come to this process as their reaper."""
    for _ in range(100):
        left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _belongs(pid, leader, spared)]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not left:
            return
        time.sleep(0.01)


def _belongs(pid: int, leader: int, spared: set[int]) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            state, parent, _, session = stream.read().rsplit(")", 1)[1].split()[:4]
    except OSError:
        return False
    if pid in spared or int(session) in spared:
        return False
    return int(parent) == os.getpid() or (int(session) == leader and state != "Z")
