"""Runs the services of a harness inside a scoring sandbox, and is the parent of everything that runs there.

It prints one `Report`. It reads the services' output from pipes, so no text of a design reaches the client directly. It
receives messages from the guards of the simulators and from the witnesses in pytest and cocotb (`messages`). It starts
before there is a submission, imports what the services will need (`warm`), and waits for its `GradingRequest` on stdin.
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

from . import bounds, compiled, warm
from .children import ChildProcess
from .line import OK, SOCKET, encode
from .measures import MOST_ADDED, POLL_SECONDS, Waits, memory, times_of
from .messages import GradingRequest, Message, Report, ServiceReport, ServiceRequest
from .tracing import Tracer

MOST_MESSAGES = 200_000
"""Upper bound on the messages of one grading. Tests and simulations, whose number the harness sets, send a few each."""
SCRATCH = ("/tmp", "/rundir")
"""Folders that the services of a harness do not share, as in the official runner."""
FOLDERS = ("/code/rtl", "/code/verif", "/code/docs", "/code/rundir")
"""Folders that exist for every harness, empty or not."""
_SET_CHILD_SUBREAPER = 36


class LineConnection:
    """The supervisor's end of a `Line`."""

    def __init__(self, supervisor: Supervisor, connection: socket.socket) -> None:
        self.supervisor, self.connection, self.received = supervisor, connection, b""
        settings, named = supervisor.request["settings"], list(supervisor.named)
        self._send(encode({"settings": settings, "seed": supervisor.seed, "named": named, "times": supervisor.times}))
        supervisor.selector.register(connection, selectors.EVENT_READ, self.read)

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the other end may have been killed while it waited
            self.connection.sendall(data)

    def read(self) -> None:
        """Record the new messages and acknowledge them."""
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self.connection.recv(1 << 20)
        if not data:
            self.supervisor.selector.unregister(self.connection)
            self.connection.close()
            return
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            self.supervisor.record(json.loads(line))
            self._send(OK)


class Supervisor:
    """Runs the services and serves the socket."""

    def __init__(self, request: GradingRequest, tracer: Tracer) -> None:
        self.request, self.tracer = request, tracer
        editable = ("/code",) if request["settings"].get("checkout") else compiled.EDITABLE
        self.times = times_of(editable, SCRATCH[0])
        self.limited = request["settings"]["limits"]
        self.seconds = request["seconds"] if self.limited else 1e9
        self.deadline = time.monotonic() + self.seconds
        """Of the current service, or else of the previous one."""
        if not self.limited:
            bounds.lift()
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.messages: list[Message] = []
        """Messages of the running service."""
        self.message_count = 0
        self.seed = 0
        """Of the running service's next simulation."""
        self.named: dict[str, None] = {}
        """Files that the running service has named in parameters of designs."""
        self.complaints = bounds.Complaints()
        self.faults: list[str] = []
        """Why messages may be missing."""
        self.waits = Waits()
        self.waited, self.most_added = 0.0, MOST_ADDED * request["seconds"]
        """Seconds for which the last service waited for a processor; maximum extension of a service's time limit."""
        self.spared: set[int] = set()
        """Children that are not killed at the end of a service."""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(SOCKET)
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(tracer.fd, selectors.EVENT_READ, tracer.serve)

    def accept(self) -> None:
        LineConnection(self, self.listener.accept()[0])

    def record(self, message: Message) -> None:
        """Keep a message of a guard or a witness."""
        self.message_count += 1
        self.seed += message["kind"] == "plan"  # each simulation has its own stimuli, as in the official run
        if message["kind"] == "compiler":
            self.named.update(dict.fromkeys(message.pop("named", ())))
        if message["kind"] == "fault":
            self.faults.append(message["text"])
        elif self.message_count > MOST_MESSAGES:
            self.faults.append(f"the harness reports more than {MOST_MESSAGES} events")
        else:
            self.messages.append(self.complaints.fit(message) if self.limited else message)

    def start(self, argv: list[str], env: dict[str, str], cwd: str, *, service: bool = False) -> ChildProcess:
        return ChildProcess(self.selector, self.tracer, argv, env, cwd, service=service)

    def run(self) -> Report:
        before = memory()
        lint = self.start(self.request["lint"], {}, "/code/rundir") if self.request["lint"] else None
        if lint is not None and lint.child is not None:
            self.spared.add(lint.child.pid)
        services = [self.run_service(service) for service in self.request["services"]]
        if lint is not None:
            self.spared.clear()
            self.wait(lint)
        linted = lint.report() if lint is not None else None
        bounds.fit_logs([*services, *([linted] if linted else [])])
        now = memory()
        now["kills"] -= before["kills"]
        return {
            "services": services,
            "lint": linted,
            "faults": self.faults[:5],
            "memory": now,
            "lost": self.waits.lost,
        }

    def run_service(self, service: ServiceRequest) -> ServiceReport:
        """Run one service to its end, and kill what it left running. Each has the full time, as in the official run."""
        self.deadline = time.monotonic() + self.seconds
        self.seed = service["seed"]
        self.named = {entry: None for entry in self.named if not entry.startswith("/")}  # digests hold for all services
        process = self.start(service["argv"], service["env"], service["cwd"], service=True)
        self.wait(process)
        self.waited = process.waited
        if len(self.request["services"]) > 1:
            for folder in SCRATCH:
                empty(folder)
        messages, self.messages = self.messages, []
        added = min(process.waited, self.most_added)
        return {"name": service["name"], "messages": messages, "added": added, **process.report()}

    def wait(self, process: ChildProcess) -> None:
        """Serve until a process has ended or its time is over.

        Time does not count while the sandbox did not run, or, up to `MOST_ADDED`, while a service waited for a
        processor.
        """
        self.waits.begin()
        while process.code is None and (left := self.left(process)) > 0:
            self.turn(min(left, POLL_SECONDS))
            process.poll()
            if process.service and process.share and process.code is None:
                process.share.look()
        process.end(self.spared)
        self.waits.begin()
        while self.turn(0):  # the last messages
            pass

    def left(self, process: ChildProcess) -> float:
        """Seconds until the time of the running service, or else of the previous one, is over."""
        waited = process.waited if process.service else self.waited
        return self.deadline + min(waited, self.most_added) - time.monotonic()

    def turn(self, timeout: float) -> bool:
        """Serve the descriptors that are ready. Returns whether there were any."""
        before = self.waits.lost
        ready = self.waits.select(self.selector, timeout)
        self.deadline += self.waits.lost - before
        for key, _ in ready:
            if self.selector.get_map().get(key.fd) is key:
                callback: Callable[[], None] = key.data
                callback()
        return bool(ready)


def empty(folder: str) -> None:
    """Empty a folder as far as possible."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def main() -> None:
    """Serve the request on stdin."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    tracer = Tracer()
    with contextlib.suppress(ImportError):  # an image without pytest
        warm.preload()
    request: GradingRequest = json.loads(sys.stdin.buffer.read())
    for folder in FOLDERS:
        with contextlib.suppress(FileExistsError):  # a heavy row's submission may have a file of this name
            os.makedirs(folder, exist_ok=True)
    supervisor = Supervisor(request, tracer)
    sys.stdout.write(bounds.encode_report(supervisor.run()))
