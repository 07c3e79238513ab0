"""The persistent bash of a sandbox. Runs inside it; standard library only.

ARCHITECTURE.md describes how it runs a command. The line after a command, sent together with it, reports status and
folder with a new random word. While the command runs, that line may be in bash's input buffer, but never in a variable,
so no command prints it by accident. Lines and reports use bash's stdin, a socket, which cannot be reopened
through /proc.

While a command runs, bash keeps the descriptors that its redirections replace at 10 to 17. If a command opens one of
them by its number (``exec 12>file``), what it writes there may become part of the observation or get lost.

A command that changes bash itself can still report anything. That deceives only its own agent: a report is read in
linear time, and only as a status and a folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .files import read_files
from .frames import Outbox, Output, Watcher, reply
from .processes import (
    COMMAND_FD,
    OUTPUT_FD,
    Stream,
    alone,
    folder_of_last_sharer,
    fork_sharing_folder,
    kill_until_gone,
    processes,
    signal_all,
    spawn,
)

INTERRUPT_STEPS = (0.0, 0.1, 0.25, 0.4, 0.55)
"""Seconds after the time-out at which the command is interrupted, more firmly each time."""
GIVE_UP = 0.7
"""Seconds after the time-out at which the shell itself is replaced."""
PURGE = 0.85
"""Seconds after the time-out at which everything is killed, because the shell could not be replaced."""
MANY = 64
"""With more processes than this, all are killed at once."""
FEW_STARTS, MOST_STARTS = 2, 6
"""Consecutive shells that end before their first report: until everything is killed, and until the command fails."""
LONGEST_REPORT = 1 << 14
LONGEST_FOLDER = 4096

# Errors of `exec` end a script, but should not end this shell.
_BEGIN = b"PS1= PS2=; set +o history +o histexpand; history -c; shopt -s execfail; unset HISTFILE\n"
# The outer redirections serve a trap on EXIT. Those of the group are in effect when bash traces `eval`. Those of `eval`
# itself make bash restore stdout and stderr after an `exec >file`. `.` would run a trap on RETURN.
_RUN = b"\\. /proc/self/fd/%d 1>&%d 2>&1\n" % (COMMAND_FD, OUTPUT_FD)
_COMMAND = b"{ \\eval %%s </dev/null 1>&%d 2>&1 %d>&- %d>&-; __status=$?; \\trap - RETURN; } >/dev/null 2>&1\n"
_COMMAND %= (OUTPUT_FD, OUTPUT_FD, COMMAND_FD)
# An assignment cannot be redefined, and this one enables POSIX mode, which finds special builtins before functions. So
# bash reports even after a command that redefined every builtin used here. What follows the report delays no reply.
_MARKER = (
    b"{ __status=${__status-$?} POSIXLY_CORRECT=; \\unset -f . builtin eval; "
    b'\\builtin printf \'%%s %%d %%s\\0\' %s "$__status" "${PWD-}" >&0; '
    b"\\trap - DEBUG RETURN; \\set +v; \\unset POSIXLY_CORRECT PROMPT_COMMAND PS0 TMOUT __status; }\n"
)


def quote(command: bytes) -> bytes:
    """The command as one $'…' word of bash. NUL characters, which no command can contain, are dropped."""
    text = command.replace(b"\0", b"").replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    return b"$'" + text.replace(b"\n", b"\\n").replace(b"\r", b"\\r") + b"'"


def read_report(data: bytes, word: bytes) -> tuple[int, bytes] | None:
    """The status and the folder that bash has reported with this word; None if there is no such report yet."""
    at = data.find(word + b" ")
    while at >= 0:
        begin = at + len(word) + 1
        end = data.find(b"\0", begin)
        if end < 0:
            return None
        code, _, folder = data[begin : min(end, begin + LONGEST_REPORT)].partition(b" ")
        if code.isdigit() and len(code) <= 3:
            return int(code), folder
        at = data.find(word + b" ", end)
    return None


class Job:
    """A command: its output and its deadline.

    Args:
        header: The request's: ``id``; ``timeout`` in seconds; ``limit``, the bytes of output to keep; ``stream``,
            whether to send output before the end; ``read``, the files to send at the end, as for `read_files`.
        at_end: Called when the command has ended, before its files are read.
    """

    def __init__(self, header: Mapping[str, Any], at_end: Callable[[], None] = lambda: None) -> None:
        self.id, self.at_end = header["id"], at_end
        self.begun = time.monotonic()
        self.deadline: float = self.begun + header["timeout"]
        self.step, self.timed_out = 0, False
        self.read, self.head = header.get("read"), bytearray()
        self.output = Output(header["limit"], self.stream if header.get("stream") else self.head.extend)

    def stream(self, data: bytes) -> None:
        reply(b"o", {"id": self.id}, data)

    def done(self, exit_code: int, **more: object) -> None:
        """Report the end with the unsent output and the files, all in one frame."""
        self.at_end()
        header: dict[str, Any] = {
            "id": self.id,
            "exit_code": None if self.timed_out else exit_code,
            "timed_out": self.timed_out,
            "size": self.output.size,
            "output_chars": self.output.chars,
            "seconds": time.monotonic() - self.begun,
            **more,
        }
        body = [bytes(self.head), self.output.rest()]
        if self.read is not None:
            with contextlib.suppress(OSError, ValueError):  # the client requests them again, and then gets the error
                contents: list[bytes] = []
                header["read"] = read_files(self.read, contents.append)
                body += contents
        reply(b"d", header, b"".join(body))


class Shell:
    """bash, the command that it runs, and its replacement when it dies. `reap` reaps the children that have ended.
    `others` are the processes beside the shell, which the end of a command does not affect.
    """

    def __init__(self, watcher: Watcher, reap: Callable[[], None], others: Iterable[int]) -> None:
        self.watcher, self.reap, self.others = watcher, reap, others
        self.pid = 0
        """0 while there is no bash."""
        self.cwd = os.environ.get("RTL_GYM_CWD", "/code")
        self.command = os.memfd_create("command")
        self.job: Job | None = None
        self.waiting: bytes | None = None
        """The command of `job` while bash is still starting."""
        self.reason: str | None = None
        self.failures = 0
        self.proven = False
        """Whether a bash has ever answered here."""
        self.survivors: set[tuple[int, int]] = set()
        """Ids and start times of the processes alive after the last command, since their parents may end later."""
        self.resting = False
        """Whether bash is stopped, as it is between commands."""

    def start(self) -> None:
        """Start bash. It is ready when it has answered its first marker."""
        self.output = Stream()
        null = os.open("/dev/null", os.O_WRONLY)
        commands, script = socket.socketpair()
        self.status = os.dup(commands.fileno())  # a copy, as the outbox watches its own for writing
        self.commands = Outbox(commands.detach(), self.watcher)
        fds = {0: script.fileno(), 1: null, 2: null, OUTPUT_FD: self.output.write_fd, COMMAND_FD: self.command}
        try:
            self.pid = self.spawn(fds)
        except OSError:
            self.close()
            raise
        finally:
            os.close(null)
            script.close()
            os.close(self.output.write_fd)
        self.report = b""
        self.starting, self.resting = True, False
        self.watcher.watch(self.status, self.on_status)
        self.commands.send(_BEGIN + self.marker())

    @property
    def busy(self) -> bool:
        """Whether a command runs, or a process left by an earlier command."""
        return self.job is not None or len(self.survivors) > 1

    def close(self) -> None:
        """Close the connections to a bash that is gone."""
        self.commands.close()
        for fd in (self.status, self.output.read_fd):
            self.watcher.unwatch(fd)
            os.close(fd)

    def spawn(self, fds: dict[int, int]) -> int:
        argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        for _ in range(20):
            try:
                return spawn(argv, os.environ, self.cwd, fds, fork_sharing_folder)
            except OSError:  # no process can be started: a fork bomb has used them all
                signal_all([-1], signal.SIGKILL)
                time.sleep(0.05)
                self.reap()  # dead processes count until they are reaped
        return spawn(argv, os.environ, self.cwd, fds, fork_sharing_folder)

    def marker(self) -> bytes:
        """A line that reports status and folder with a new word."""
        self.word = os.urandom(16).hex().encode()  # importing `secrets` takes 5 ms of a start
        return _MARKER % self.word

    def run(self, job: Job, command: bytes) -> None:
        """Run a command now, or when bash has started."""
        self.job, self.waiting = job, command
        if not self.pid:
            self.failures = 0
            self.restart()
        elif not self.starting:
            self.begin()

    def begin(self) -> None:
        if self.job is None or self.waiting is None:
            return
        self.output.drain(self.job.output.feed)  # output of background jobs since the last command
        self.watcher.watch(self.output.read_fd, self.on_output)
        command, self.waiting = self.waiting, None
        line = _COMMAND % quote(command)
        os.pwrite(self.command, line, 0)
        os.ftruncate(self.command, len(line))
        self.commands.send(_RUN + self.marker())  # in one piece, since each piece wakes bash
        self.resume()

    def on_output(self) -> None:
        if self.job is None or not self.output.drain(self.job.output.feed, 1 << 22):
            # Between commands, background jobs' output waits in the pipe, up to its size, for the next observation.
            self.watcher.unwatch(self.output.read_fd)

    def on_status(self) -> None:
        """Check for a report. Reads only once per turn of the loop, since a writer may never stop."""
        try:
            data = os.read(self.status, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.watcher.unwatch(self.status)
        self.report += data
        found = read_report(self.report, self.word)
        if found is None:
            self.report = self.report[-LONGEST_REPORT:]
            return
        self.report = b""
        code, folder = found
        if folder.startswith(b"/") and len(folder) <= LONGEST_FOLDER:
            self.cwd = os.fsdecode(folder)
        self.answered(code)

    def answered(self, code: int) -> None:
        """Handle bash's return to its prompt."""
        self.failures = 0
        self.proven = True
        if self.starting:
            self.starting = False
            self.begin()
            return
        job, self.job = self.job, None
        if job is None:
            return
        if job.timed_out:  # interrupted, but its background processes ignore that
            kill_until_gone(self.victims)
        self.output.drain(job.output.feed)
        self.watcher.unwatch(self.output.read_fd)
        self.finish(job, code)

    def finish(self, job: Job, code: int) -> None:
        """Report a command's end. If it left nothing running, stop bash until the next command.

        Otherwise bash's traps or timers could start something while the memory is not watched.
        """
        reason, self.reason = self.reason, None
        job.done(code, restarted=reason, cwd=self.cwd)
        # After the reply, so that it delays nothing. What is alive now does not belong to the next command.
        if self.pid and not self.starting:
            self.resting = True
            signal_all([self.pid], signal.SIGSTOP)
        self.survivors = set() if alone(self.pid) else {(pid, start) for pid, (_, start) in processes().items()}
        if self.busy:
            self.resume()

    def resume(self) -> None:
        if self.resting:
            self.resting = False
            signal_all([self.pid], signal.SIGCONT)

    def victims(self) -> list[int]:
        """The running command's processes: all started since it began, except descendants of older ones."""
        now = processes()
        spared = {pid for pid, (_, start) in now.items() if (pid, start) in self.survivors} | set(self.others)
        spared.discard(self.pid)
        known = dict.fromkeys(spared, False) | {self.pid: True}
        for pid in now:
            line = []
            while pid in now and pid not in known:
                line.append(pid)
                known[pid] = True  # for now, since reused ids could form a cycle
                pid = now[pid][0]
            known.update(dict.fromkeys(line, known.get(pid, True)))
        return [pid for pid in now if known[pid] and pid != self.pid]

    def next_time(self) -> float | None:
        """The monotonic time at which `check_time` must be called next; None without a command."""
        if self.job is None:
            return None
        step, deadline = self.job.step, self.job.deadline
        if step < len(INTERRUPT_STEPS):
            return deadline + INTERRUPT_STEPS[step]
        purges = step - len(INTERRUPT_STEPS)
        return deadline + (PURGE * purges or GIVE_UP)

    def check_time(self, now: float) -> None:
        """Interrupt a command after its time-out."""
        job, due = self.job, self.next_time()
        if job is None or due is None or now < due:
            return
        job.timed_out = True
        if job.step >= len(INTERRUPT_STEPS) or self.waiting is not None:
            self.replace(job)
            return
        victims = self.victims()
        if len(victims) > MANY:
            self.reason = "the command had more processes than can be ended one by one"
            signal_all([-1], signal.SIGKILL)
        if job.step:  # they ignored SIGINT; but after another signal kills a child, bash continues its loop
            signal_all(victims, signal.SIGKILL)
            time.sleep(0.005)
            self.on_status()
            if self.job is not job:
                return
            ended, victims = victims, self.victims()
            if ended and not victims:  # bash is returning; a SIGINT would only interrupt its report
                job.step += 1
                return
        signal_all([self.pid, *victims], signal.SIGINT)
        job.step += 1

    def replace(self, job: Job) -> None:
        """Kill bash, which does not return or never started; its end, which is reaped soon, ends the job."""
        first = job.step <= len(INTERRUPT_STEPS) and self.waiting is None
        self.reason = "it did not come back from the interrupted command"
        # A tracer sees a process's end first and could hide it from the warden, so the second time, all are killed.
        signal_all([*self.victims(), self.pid] if first else [-1], signal.SIGKILL)
        job.step = max(job.step, len(INTERRUPT_STEPS)) + 1

    def on_death(self, code: int) -> None:
        """Replace bash, which has ended with status `code`, or by signal -`code` if negative."""
        job = self.job
        over = job is not None and (self.waiting is None or job.timed_out)
        if job is not None:
            self.output.drain(job.output.feed)
        if not self.starting:
            self.cwd = folder_of_last_sharer(self.cwd)
        self.pid = 0
        self.close()
        died = f"it exited with status {code}" if code >= 0 else f"signal {-code} ended it"
        self.reason = self.reason or died
        if self.starting:
            self.failures += 1
            if self.failures >= FEW_STARTS:
                signal_all([-1], signal.SIGKILL)
            if self.failures >= MOST_STARTS:
                self.fail("each new one was ended at once, too")
                return
        self.restart()
        if job is not None and over and self.job is job:
            self.job = self.waiting = None
            self.finish(job, 128 - code if code < 0 else code)

    def restart(self) -> None:
        """Start another bash, or report that none can be started."""
        try:
            self.start()
        except OSError as error:
            self.fail(f"no new one can be started: {error.strerror}")

    def fail(self, reason: str) -> None:
        """Give up starting bash. The next command tries again; if no bash has ever answered, the sandbox ends."""
        if not self.proven:
            os.write(2, f"bash does not start: {self.reason}; {reason}\n".encode())
            os._exit(3)
        self.reason = f"{self.reason}; {reason}" if self.reason else reason
        job, self.job, self.waiting = self.job, None, None
        if job is not None:
            self.finish(job, 126)
