"""Runs the services of a harness inside a scoring sandbox. Standard library only; sent there as text, with its modules
``children.py``, ``evidence.py`` and ``report.py``.

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
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from .children import Process
from .evidence import Waits, memory, memory_since
from .report import Complaints, encode, fit_logs

SOCKET = "\0rtl-agent-gym"
MOST_MESSAGES = 200_000
"""Messages of one grading. There are a few of each test and each simulation; how many those are, the harness says."""
SCRATCH = ("/tmp", "/rundir")
"""Folders that services of one harness do not share: each has its own in the official runner."""
FOLDERS = ("/code/rtl", "/code/verif", "/code/docs", "/code/rundir")
"""Folders that every harness finds, empty or not."""
SUPPORT = "/opt/rtl-agent-gym"
"""Where the image has its modules for gradings."""
_SET_CHILD_SUBREAPER = 36


class Line:
    """One connection of a guard or a witness."""

    def __init__(self, connection: socket.socket, settings: dict[str, Any]) -> None:
        self.connection, self.received = connection, b""
        with contextlib.suppress(ConnectionError):  # it may have been killed while it waited
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
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.messages: list[dict[str, Any]] = []
        self.complaints = Complaints()
        self.faults: list[str] = []
        """Why what was heard is not everything."""
        self.memory, self.waits = memory(), Waits()
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
            else:
                for message in messages:
                    self.note(message)

        self.selector.register(connection, selectors.EVENT_READ, hear)

    def note(self, message: dict[str, Any]) -> None:
        """Keep what a guard or a witness has said."""
        if "fault" in message:
            self.faults.append(str(message["fault"]))
        elif len(self.messages) >= MOST_MESSAGES:
            self.faults.append(f"the harness reports more than {MOST_MESSAGES} events")
        else:
            kept = self.complaints.fit(message) if self.limited else message
            self.messages.append({**kept, "service": self.service})

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
        if self.limited:
            fit_logs([part for part in (*services, linted) if part])
        return {
            "services": services,
            "lint": linted,
            "messages": self.messages,
            "faults": self.faults[:5],
            "memory": memory_since(self.memory),
            "lost": self.waits.lost,
        }

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
        """Serve until a process has ended or its time is over. Time in which nothing here could run is not its own."""
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
        before = self.waits.lost
        ready = self.waits.select(self.selector, timeout)
        self.deadline += self.waits.lost - before
        for key, _ in ready:
            if self.selector.get_map().get(key.fd) is key:
                callback: Callable[[], None] = key.data
                callback()
        return bool(ready)


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
    supervisor = Supervisor(request, warm)
    sys.stdout.write(encode(supervisor.run(), supervisor.limited))
