"""The supervisor's child processes: starting them, reading their output, and ending them with all they started."""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import subprocess
import time

from . import warm
from .bounds import Log
from .measures import ProcessorShare, processes
from .messages import ProcessReport, Signal, StartFault
from .tracing import Child, Tracer


class ChildProcess:
    """A child process whose output goes to a pipe. The out-of-memory killer chooses it before the supervisor.

    `env` has the variables added for it. A `service` is traced.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        tracer: Tracer,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        *,
        service: bool = False,
    ) -> None:
        self.selector, self.tracer, self.service, self.log = selector, tracer, service, Log()
        self.signals: list[Signal] = []
        self.stopped = False
        if service:
            tracer.begin()
        self.code: int | None = None
        """The exit status; None until it ends by itself."""
        self.fault: StartFault | None = None
        self.share: ProcessorShare | None = None
        """None if it could not be started."""
        self.begun, self.seconds = time.monotonic(), 0.0
        self.child: Child | None = None
        self.read_fd, write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        selector.register(self.read_fd, selectors.EVENT_READ, self.read)
        try:
            os.makedirs(cwd, exist_ok=True)
            self.child = start(argv, env, cwd, write_fd, selector, tracer if service else None)
            tracer.attach(self.child, service=service)
        except OSError as error:
            self.code = 127
            self.fault = {"program": argv[0], "cwd": cwd, "errno": error.errno or 0, "text": error.strerror or ""}
        finally:
            os.close(write_fd)
        if self.child:
            self.share = ProcessorShare(self.child.pid)

    def read(self) -> None:
        try:
            data = os.read(self.read_fd, 1 << 20)
        except BlockingIOError:
            return
        if data:
            self.log.feed(data)
        else:
            self._close()

    def poll(self) -> None:
        code = self.child.returncode if self.child and self.code is None else None
        if code is not None:
            self.code = 128 - code if code < 0 else code
            self.seconds = time.monotonic() - self.begun

    def end(self, spared: set[int]) -> None:
        """Kill it and everything it started, except the `spared` children and what they started."""
        self.tracer.serve()
        self.poll()
        if self.service:
            self.signals, self.stopped = list(self.tracer.found), bool(self.tracer.held)
        if self.child and self.code is None:  # its time is over
            if self.share:
                self.share.measure()
            self.seconds = time.monotonic() - self.begun
            os.kill(self.child.pid, signal.SIGKILL)
            self.tracer.reap(self.child)
        if self.child:
            kill_session(self.child.pid, spared, self.tracer)
        if self.read_fd >= 0:
            self.read()
        self._close()

    @property
    def waited(self) -> float:
        """Seconds for which it had to wait for a processor, as far as known."""
        return self.share.waited if self.share else 0.0

    def _close(self) -> None:
        if self.read_fd >= 0:
            self.selector.unregister(self.read_fd)
            os.close(self.read_fd)
            self.read_fd = -1

    def report(self) -> ProcessReport:
        return {
            "code": self.code,
            "seconds": self.seconds,
            "log": self.log.text(),
            "fault": self.fault,
            "stopped": self.code is None and (self.stopped or (self.share is not None and self.share.stopped)),
            "signals": self.signals,
            "waited": self.waited,
        }


def start(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    output: int,
    selector: selectors.BaseSelector,
    tracer: Tracer | None,
) -> Child:
    """Run a command in a child: pytest in a fork if this process has loaded it (`warm`), else as a new program.

    Raises:
        OSError: The fork failed, or the program cannot be run; no part of it has run.
    """
    loaded = warm.can_start(argv, env, cwd)

    def prepare() -> None:
        """Runs in the child."""
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")
        for key in list(selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.detach()  # so that it is not closed for the parent
        selector.close()
        if loaded:
            gc.enable()  # subprocess has disabled it
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # including subprocess's pipe: closing it reports success
        if tracer:
            tracer.enter(execs=not loaded)
        if loaded:
            warm.run(argv, env, cwd)

    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=cwd,
        env={**os.environ, **env},
        start_new_session=True,
        restore_signals=not loaded,  # a new interpreter ignores the same signals
        preexec_fn=prepare,
    )


def kill_session(leader: int, spared: set[int], tracer: Tracer) -> None:
    """Kill the remaining processes of a service: its session, and orphans, whose parent is now this process."""
    for _ in range(100):
        left = [
            pid
            for pid, state, parent, session, _ in processes()
            if not {pid, session} & spared and (parent == os.getpid() or (session == leader and state != "Z"))
        ]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        tracer.serve()
        if not left:
            return
        time.sleep(0.01)
