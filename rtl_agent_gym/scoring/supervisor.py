"""Runs the services of a harness inside a scoring sandbox. Standard library only; sent there as text.

It is the parent of everything that runs. What it prints is one JSON document; what the services print goes into a pipe
that ends here, so no text of a design ever stands where the client reads. It listens on an abstract socket to the guard
in front of the simulators (``image_context/harness/guard.py``) and to the witnesses in pytest and cocotb: a design
cannot connect to a socket, not even one that may open files.

The first line on each connection is the settings; then each message, one JSON document a line, is answered with ``ok``.

It is started before there is a submission, loads what the services will want (``image_context/harness/warm.py``) and
then waits for its request on stdin.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SOCKET = "\0rtl-agent-gym"
HEAD, TAIL = 16_000, 48_000
"""Bytes kept of a service's output."""
MOST_MESSAGES = 20_000
SCRATCH = ("/tmp", "/rundir")
"""Folders that services of one harness do not share: each has its own in the official runner."""
FOLDERS = ("/code/rtl", "/code/verif", "/code/docs", "/code/rundir")
"""Folders that every harness finds, empty or not."""
SUPPORT = "/opt/rtl-agent-gym"
"""Where the image has its modules for gradings."""
_SET_CHILD_SUBREAPER = 36


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


class Line:
    """One connection of a guard or a witness."""

    def __init__(self, connection: socket.socket, settings: dict[str, Any]) -> None:
        self.connection, self.received = connection, b""
        connection.sendall(json.dumps(settings).encode() + b"\n")

    def messages(self) -> list[dict[str, Any]] | None:
        """What has come since, each answered; None when the other side is gone."""
        try:
            data = self.connection.recv(1 << 20)
        except ConnectionError:
            return None
        if not data:
            return None
        *lines, self.received = (self.received + data).split(b"\n")
        for _ in lines:
            with contextlib.suppress(ConnectionError):
                self.connection.sendall(b"ok\n")
        return [json.loads(line) for line in lines]


class Supervisor:
    """Everything the loop knows.

    Args:
        request: ``services`` (name, argv, env, cwd each), ``seconds`` for all of them, ``settings`` for the guards, and
            ``lint``: the command that lints the design beside the first service, or None.
        warm: The module that forks pytest; None where every command gets an interpreter of its own.
    """

    def __init__(self, request: dict[str, Any], warm: Any = None) -> None:
        self.request, self.warm = request, warm
        self.limited: bool = request["settings"].get("limits", True)
        self.deadline = time.monotonic() + (request["seconds"] if self.limited else 1e9)
        self.selector = selectors.DefaultSelector()
        self.messages: list[dict[str, Any]] = []
        self.service = ""
        self.spared: set[int] = set()
        """Children that outlive a service."""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(SOCKET)
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        """A guard or a witness has called."""
        connection, _ = self.listener.accept()
        line = Line(connection, self.request["settings"])

        def hear() -> None:
            messages = line.messages()
            if messages is None:
                self.selector.unregister(connection)
                connection.close()
            elif len(self.messages) < MOST_MESSAGES:
                self.messages += [{**message, "service": self.service} for message in messages]

        self.selector.register(connection, selectors.EVENT_READ, hear)

    def let_go(self) -> None:
        """In a child that has not become another program: give up every connection, without a word on it."""
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.detach()
        self.selector.close()

    def run(self) -> dict[str, Any]:
        """Run everything and say what happened."""
        lint = Process(self, self.request["lint"], {}, "/code/rundir") if self.request["lint"] else None
        if lint is not None and lint.child is not None:
            self.spared.add(lint.child.pid)
        services = [self.run_service(service) for service in self.request["services"]]
        linted = None
        if lint is not None:
            self.wait(lint)
            linted = lint.report()
        return {"services": services, "lint": linted, "messages": self.messages, "out_of_memory": out_of_memory()}

    def run_service(self, service: dict[str, Any]) -> dict[str, Any]:
        """Run one service to its end, and end what it left behind."""
        self.service = service["name"]
        process = Process(self, service["argv"], service["env"], service["cwd"])
        self.wait(process)
        if len(self.request["services"]) > 1:
            for folder in SCRATCH:
                empty(folder)
        return {"name": service["name"], **process.report()}

    def wait(self, process: Process) -> None:
        """Serve until a process has ended or its time is over."""
        while process.code is None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                process.timed_out = True
                break
            self.turn(min(left, 0.5))
            process.poll()
        process.end()
        while self.turn(0):  # what was said last
            pass

    def turn(self, timeout: float) -> bool:
        """Serve whoever calls; whether anybody did."""
        ready = self.selector.select(timeout)
        for key, _ in ready:
            if self.selector.get_map().get(key.fd) is key:
                callback: Callable[[], None] = key.data
                callback()
        return bool(ready)


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

    def __init__(self, supervisor: Supervisor, argv: list[str], env: dict[str, str], cwd: str) -> None:
        self.supervisor, self.log = supervisor, Log(supervisor.limited)
        self.code, self.timed_out, self.fault = None, False, ""
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
            self.code, self.fault = 127, f"cannot run {argv[0]!r} in {cwd}: {error.strerror}"
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
            self.code, self.seconds = (128 - code if code < 0 else code), time.monotonic() - self.begun
            self._close("pid_fd")

    def end(self) -> None:
        """End it and everything it started."""
        if self.child is not None and self.code is None:
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


def out_of_memory() -> bool:
    """Whether the kernel has killed anything of this container for its memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError), open(path) as stream:
            counts = dict(line.split() for line in stream if len(line.split()) == 2)
            return int(counts.get("oom_kill", 0)) > 0
    return False


def empty(folder: str) -> None:
    """Remove what lies in a folder; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def load() -> Any:
    """The module that forks pytest, with everything loaded that it needs; None where the image cannot have it."""
    sys.path[:] = [folder for folder in sys.path if folder]  # not the working folder, whatever it is
    sys.path.append(SUPPORT)
    try:
        import warm  # type: ignore[import-not-found,unused-ignore]

        warm.preload()
    except ImportError:
        return None
    finally:
        sys.path.remove(SUPPORT)
    return warm


def main() -> None:
    """Serve the request on stdin."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    warm = load()
    request = json.loads(sys.stdin.buffer.read())
    for folder in FOLDERS:
        os.makedirs(folder, exist_ok=True)
    report = Supervisor(request, warm).run()
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
