"""The warden's loop: requests in, replies out, children reaped, time kept. Runs inside a sandbox, on the
standard library alone.

As process 1 it reaps orphans, and no signal from inside can end it: the kernel drops what process 1 has no handler for.
It ends when its stdin does, which is when the client closed the sandbox or died; the container ends with it.

Frames go both ways on stdin and stdout: kind (1 byte), header length and body length (4 bytes each, big-endian), header
(JSON), body. Requests: ``R`` a command for the shell, ``X`` a process, ``I`` a process's stdin, from when on its time
runs, ``W`` write files, ``G`` get files, ``P`` ping.
Each carries an ``id``, and so do its replies: ``o`` a piece of output or of files, ``d`` done, ``e`` an error. The
warden begins with a ``d`` of id 0. Two kinds answer nothing: ``m`` says whether the sandbox's memory is full, ``b`` why
the warden cannot go on, after which it ends with status `BROKEN`.

With ``keeper=UID worker=UID`` among the arguments there are two wardens, each of another user (`relay.py`): requests
whose header says ``worker`` are the second one's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .files import read_files, write_files
from .memory import PERIOD, MemoryWatch
from .processes import PIPE_SIZE, Output, Stream, processes, signal_all, spawn
from .relay import HEADER, Relay, divide, frame_size
from .shell import Shell
from .users import name_users

Callback = Callable[[], None]

BROKEN = 70
"""Exit status of a warden that met what it was not made for."""
LONGEST_SLEEP = 3600.0


def reply(kind: bytes, header: Mapping[str, Any], body: bytes = b"") -> None:
    """Send one frame to the client."""
    text = json.dumps(header).encode()
    head = struct.pack(HEADER, kind, len(text), len(body)) + text
    for part in [head + body] if len(body) <= PIPE_SIZE else [head, body]:
        data = memoryview(part)
        while data:
            data = data[os.write(1, data) :]


class Job:
    """A command of the shell, or a process beside it: where its output goes, and when its time is over."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self.id, self.header = header["id"], header
        self.begun = time.monotonic()
        self.deadline = self.begun + header["timeout"]
        self.step, self.timed_out = 0, False
        self.output = Output(header["limit"], lambda data: reply(b"o", {"id": self.id}, data))

    def done(self, exit_code: int, **more: object) -> None:
        """Report the end, with the last of the output."""
        header = {
            "id": self.id,
            "exit_code": None if self.timed_out else exit_code,
            "timed_out": self.timed_out,
            "size": self.output.size,
            "chars": self.output.chars,
            "seconds": time.monotonic() - self.begun,
            **more,
        }
        reply(b"d", header, self.output.rest())


class Process:
    """A process beside the shell. It and what it left behind are gone when its end is reported."""

    def __init__(self, warden: Warden, job: Job) -> None:
        self.warden, self.job, self.stream = warden, job, Stream()
        header, out = job.header, self.stream.write_fd
        self.unwritten, self.stdin = memoryview(b""), -1
        if header.get("stdin"):
            source, self.stdin = os.pipe()
            os.set_blocking(self.stdin, False)
        else:
            source = os.open("/dev/null", os.O_RDONLY)
        try:
            self.pid = spawn(
                header["argv"], {**os.environ, **header["env"]}, header["cwd"], {0: source, 1: out, 2: out}
            )
        except OSError:
            self.close_stdin()
            raise
        finally:
            os.close(source)
            self.stream.close_writer()
        warden.watch(self.stream.read_fd, self.on_output)

    def give(self, timeout: float, data: bytes) -> None:
        """Its whole stdin; from now on its time runs."""
        self.job.begun = time.monotonic()
        self.job.deadline = self.job.begun + timeout
        self.unwritten = memoryview(data)
        if self.stdin >= 0:
            self.warden.watch(self.stdin, self.on_room, write=True)

    def on_room(self) -> None:
        """Write what its stdin takes; close it after the last."""
        try:
            self.unwritten = self.unwritten[os.write(self.stdin, self.unwritten) :]
        except BlockingIOError:
            return
        except OSError:
            self.unwritten = memoryview(b"")  # it no longer reads
        if not self.unwritten:
            self.close_stdin()

    def close_stdin(self) -> None:
        """Its stdin ends here."""
        if self.stdin >= 0:
            self.warden.unwatch(self.stdin)
            os.close(self.stdin)
            self.stdin = -1

    def on_output(self) -> None:
        if not self.stream.drain(self.job.output.feed, 1 << 22):
            self.warden.unwatch(self.stream.read_fd)

    def remains(self) -> set[int]:
        """Whatever is alive of its session and its descendants."""
        now, mine = processes(), {self.pid}
        for pid in sorted(now):
            with contextlib.suppress(OSError):
                if now[pid][0] in mine or os.getsid(pid) == self.pid:
                    mine.add(pid)
        return mine & set(now)

    def check_time(self, now: float) -> None:
        """End it when its time is over."""
        if now >= self.job.deadline:
            self.job.timed_out = True
            self.job.deadline = now + 0.1
            signal_all(self.remains(), signal.SIGKILL)

    def on_death(self, code: int) -> None:
        """Its main process has ended: end the rest and report."""
        self.close_stdin()
        if self.warden.shell is None and not self.warden.running:
            signal_all([-1], signal.SIGKILL)  # nobody else lives here
        else:
            signal_all(self.remains(), signal.SIGKILL)
        self.stream.drain(self.job.output.feed)
        self.warden.unwatch(self.stream.read_fd)
        self.stream.close()
        self.job.done(code, cwd=self.job.header["cwd"])


class Warden:
    """Everything the loop knows."""

    def __init__(self, has_shell: bool, line: socket.socket | None = None) -> None:
        # Not epoll, of which the kernel grants each user so much and no more: the commands could use it all up.
        self.selector = selectors.PollSelector()
        self.received = bytearray()
        self.running: dict[int, Process] = {}
        self.shell = Shell(self) if has_shell else None
        self.relay = Relay(line, self) if line is not None else None
        self.memory = MemoryWatch()

    def watch(self, fd: int, callback: Callback, *, write: bool = False) -> None:
        """Call back whenever `fd` can be read (or written). Watching twice is watching once."""
        if fd not in self.selector.get_map():
            self.selector.register(fd, selectors.EVENT_WRITE if write else selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        """No longer call back; nothing if it was not watched."""
        if fd in self.selector.get_map():
            self.selector.unregister(fd)

    def on_input(self) -> None:
        data = os.read(0, 1 << 20)
        if not data:
            os._exit(0)
        self.received += data
        while (size := frame_size(self.received)) is not None and len(self.received) >= size:
            frame = bytes(self.received[:size])
            del self.received[:size]
            kind, header_size, _ = struct.unpack_from(HEADER, frame)
            start = struct.calcsize(HEADER) + header_size
            header, body = json.loads(frame[start - header_size : start]), frame[start:]
            try:
                if self.relay is not None and header.get("worker"):
                    self.relay.send(frame)
                else:
                    self.request(kind, header, body)
            except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
                reply(b"e", {"id": header["id"], "message": str(error), "errno": getattr(error, "errno", 0)})

    def request(self, kind: bytes, header: Mapping[str, Any], body: bytes) -> None:
        """Do what the client asks."""
        if kind == b"R" and self.shell is not None:
            self.shell.run(Job(header), body)
        elif kind == b"X":
            process = Process(self, Job(header))
            self.running[process.pid] = process
        elif kind == b"I":
            for process in self.running.values():
                if process.job.id == header["process"]:
                    process.give(header["timeout"], body)
            reply(b"d", {"id": header["id"]})
        elif kind == b"W":
            write_files(header, body)
            reply(b"d", {"id": header["id"]})
        elif kind == b"G":
            found = read_files(header, lambda piece: reply(b"o", {"id": header["id"]}, piece))
            reply(b"d", {"id": header["id"], **found})
        elif kind == b"P":
            reply(b"d", {"id": header["id"], "pid": os.getpid()})

    def on_child(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
            if self.shell is not None and pid == self.shell.pid:
                self.shell.on_death(code)
            elif pid in self.running:
                self.running.pop(pid).on_death(code)

    def wait_seconds(self) -> float | None:
        """How long nothing need be done on account of time."""
        times = [process.job.deadline for process in self.running.values()]
        if self.shell is not None and (due := self.shell.next_time()) is not None:
            times.append(due)
        if self.shell is not None and self.shell.busy:
            times.append(time.monotonic() + PERIOD)
        return max(0.0, min(min(times) - time.monotonic(), LONGEST_SLEEP)) if times else None

    def loop(self) -> None:
        """Serve until the client is gone."""
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.watch(0, self.on_input)
        self.watch(self.wake, self.on_child)
        if self.shell is not None:
            self.shell.restart()
        reply(b"d", {"id": 0, "pid": os.getpid()})
        while True:
            for key, _ in self.selector.select(self.wait_seconds()):
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
            now = time.monotonic()
            for process in list(self.running.values()):
                process.check_time(now)
            if self.shell is not None:
                self.shell.check_time(now)
                if self.shell.busy and self.memory.look(now):
                    reply(b"m", {"id": 0, "full": self.memory.full})


def main() -> None:
    """Run the warden; ``shell`` among the arguments gives it a shell, ``keeper=UID worker=UID`` a second one."""
    words = dict(word.partition("=")[::2] for word in sys.argv[1:])
    line = divide(int(words["keeper"]), int(words["worker"])) if "keeper" in words else None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: processes of the same user cannot trace or open it
    os.umask(0o022)
    if line is not None:
        name_users(int(words["worker"]), int(words["keeper"]))
    elif "keeper" not in words:
        name_users(os.getuid(), None)
    try:
        Warden("shell" in words, line).loop()
    except Exception as error:  # said, so that nobody takes it for the machine's fault
        reply(b"b", {"id": 0, "message": f"{type(error).__name__}: {error}"})
        os._exit(BROKEN)
