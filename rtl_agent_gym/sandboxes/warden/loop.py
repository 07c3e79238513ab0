"""The warden's loop: reads requests, replies, reaps children, enforces time-outs.

As process 1 it reaps orphans, and no signal from inside can end it: the kernel drops those that process 1 does not
handle. It ends when its stdin does, because the client closed the sandbox or died; the container ends with it.

Frames (`frames.py`) go both ways on stdin and stdout. Requests: ``R`` a command for the shell, ``X`` a process, ``I`` a
piece of a process's stdin (empty at its end), ``W`` write files, ``G`` get files, ``M`` count the processes that
ran out of memory, ``P`` ping. Each has an ``id``, and so do its replies: ``o`` a piece of output or of files, ``d``
done, ``e`` an error. Two messages have no reply: ``H`` pauses or resumes a process's output; ``K`` kills a process,
whose end is the reply to its ``X``. The warden begins with a ``d`` of id 0. With ``m``, it reports whether the
sandbox's memory is full; with ``b``, why it cannot continue, and then it exits with status `BROKEN`.

With ``keeper=UID worker=UID`` among the arguments, there are two wardens with different users (`relay.py`): requests
with ``worker`` in their header go to the second one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from .files import read_files, write_files
from .frames import LARGE, Watcher, reply, split, unpack
from .memory import MemoryWatch
from .processes import ChildWatch, Process, open_oom_score, refuse, show_name
from .relay import Relay, become, divide, name_users
from .shell import Job, Shell
from .zygote import Zygote, finish

BROKEN = 70
"""Exit status of a warden that failed unexpectedly."""
LONGEST_SLEEP = 3600.0


class Warden:
    """The state of the loop."""

    def __init__(self, has_shell: bool, line: socket.socket | None = None, memory: int = 0) -> None:
        self.watcher, self.received = Watcher(), bytearray()
        self.running: dict[int, Process] = {}
        """The processes beside the shell, by process id."""
        self.relay = Relay(line, self.watcher) if line is not None else None
        self.watcher.watch(0, self.on_input)
        children = ChildWatch(self.watcher, self.on_end)
        self.shell = Shell(self.watcher, children.reap, self.running) if has_shell else None
        self.memory = MemoryWatch(memory)

    def on_input(self) -> None:
        data = os.read(0, 1 << 20)
        if not data:
            os._exit(0)
        self.received += data
        for frame in split(self.received):
            kind, header, body = unpack(frame)
            try:
                if self.relay is not None and header.get("worker"):
                    self.relay.outbox.send(frame)
                else:
                    self.request(kind, header, body)
            except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
                number = getattr(error, "errno", 0)
                reply(b"e", {"id": header.get("id", -1), "message": str(error), "errno": number})

    def request(self, kind: bytes, header: Mapping[str, Any], body: bytes) -> None:
        if kind == b"R" and self.shell is not None:
            self.shell.run(Job(header, self.report_memory), body)
        elif kind == b"X":
            process = Process(header, self.watcher)
            self.running[process.pid] = process
        elif kind in b"IHK":
            self.request_of_process(kind, header, body)
        elif kind == b"W":
            write_files(header, body)
            reply(b"d", {"id": header["id"]})
        elif kind == b"G":
            self.send_files(header)
        elif kind == b"M":
            reply(b"d", {"id": header["id"], "oom_kills": self.memory.oom_kills()})
        elif kind == b"P":
            reply(b"d", {"id": header["id"]})

    def report_memory(self) -> None:
        """Report to the client if the memory has become full, or no longer is."""
        if self.memory.look():
            reply(b"m", {"id": 0, "full": self.memory.full})

    def watch_memory(self) -> None:
        """Do the same if a check is due while commands could be taking memory."""
        if self.takes_memory and time.monotonic() >= self.memory.due:
            self.report_memory()

    @property
    def takes_memory(self) -> bool:
        """Whether an agent's commands or processes, or any processes without a cgroup, could be taking memory."""
        by_agent = self.shell is not None and (self.shell.busy or bool(self.running))
        return by_agent or bool(self.memory.limit and self.running)

    def send_files(self, header: Mapping[str, Any]) -> None:
        """Send files, small ones together, since each frame costs the daemon and the client as much as a file."""
        unsent = bytearray()

        def send(piece: bytes) -> None:
            unsent.extend(piece)
            if len(unsent) >= LARGE:
                reply(b"o", {"id": header["id"]}, bytes(unsent))
                unsent.clear()
                self.watch_memory()

        self.watch_memory()
        found = read_files(header, send)
        reply(b"d", {"id": header["id"], **found}, bytes(unsent))

    def request_of_process(self, kind: bytes, header: Mapping[str, Any], body: bytes) -> None:
        """Handle a request about a process that was started earlier, and may have ended."""
        process = next((known for known in self.running.values() if known.id == header["process"]), None)
        if process is None:
            if kind == b"I":
                refuse(header["id"])
        elif kind == b"I":
            process.write(header["id"], body)
        elif kind == b"H":
            process.hold(header["held"])
        else:
            process.kill(header["all"])

    def on_end(self, pid: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if self.shell is not None and pid == self.shell.pid:
            self.shell.on_death(code)
        elif pid in self.running:
            process = self.running.pop(pid)
            process.on_death(128 - code if code < 0 else code, alone=self.shell is None and not self.running)

    def wait_seconds(self) -> float | None:
        """Seconds until the shell's next time-out or the next check of the memory; None for no limit."""
        due = self.shell.next_time() if self.shell is not None else None
        left = [] if due is None else [due - time.monotonic()]
        if self.takes_memory:
            left.append(self.memory.period)
        return max(0.0, min(*left, LONGEST_SLEEP)) if left else None

    def loop(self) -> None:
        if self.shell is not None:
            self.shell.restart()
        reply(b"d", {"id": 0})
        while True:
            self.watcher.turn(self.wait_seconds())
            if self.shell is not None:
                self.shell.check_time(time.monotonic())
            self.watch_memory()


def main() -> None:
    """Run the warden, or with ``zygote=single`` or ``zygote=ranged`` and ``filter=HEXADECIMAL`` a process that becomes
    wardens (`zygote.py`).
    """
    words = dict(word.partition("=")[::2] for word in sys.argv[1:])
    show_name(b"warden")
    if "zygote" in words:
        Zygote(words["zygote"] == "single", bytes.fromhex(words["filter"]), run).serve()
    run(words)


def run(words: Mapping[str, str], filter_program: bytes | None = None) -> None:
    """Run the warden.

    Args:
        words: ``shell`` gives it a shell; ``keeper`` and ``worker`` are the users of two wardens, ``kept`` the keeper's
            folders; ``agent`` is a user to become instead of root; ``memory`` is a limit in bytes that no control group
            enforces (`memory.py`).
        filter_program: The filter of a sandbox that `zygote.py` made; None for a container.
    """
    line = None
    if "keeper" in words:
        line = divide(int(words["keeper"]), int(words["worker"]), words.get("kept", "").split())
    if "agent" in words:
        become(int(words["agent"]))
    if filter_program is not None:
        finish(filter_program)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: the change of user cleared it, so /proc/self belongs to root
        open_oom_score()
        prctl(4, 0, 0, 0, 0)  # processes of the same user cannot trace or open it
    os.umask(0o022)
    if line is not None:
        name_users(int(words["worker"]), int(words["keeper"]) if words["keeper"] != words["worker"] else None)
    elif "keeper" not in words:
        name_users(os.getuid(), None)
    try:
        # The keeper's warden may not kill the commands' processes, so the worker's limits their memory.
        Warden("shell" in words, line, int(words.get("memory", 0)) if line is None else 0).loop()
    except Exception as error:  # reported, so that it does not count as the machine's fault
        reply(b"b", {"id": 0, "message": f"{type(error).__name__}: {error}"})
        os._exit(BROKEN)
