"""The persistent bash of a sandbox. Runs inside it; standard library only.

It is an interactive bash without a terminal, as that is the one kind which abandons a running loop on SIGINT and lives
on. A command reaches it through a pipe as one ``eval`` with /dev/null for stdin. The line behind it reports status and
folder on a pipe of its own, together with a word that bash first reads when the command is over, so that no command can
print it.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from typing import TYPE_CHECKING

from .processes import STATUS_FD, Stream, processes, signal_all, spawn, widen_pipe

if TYPE_CHECKING:
    from .loop import Job, Warden

INTERRUPT_STEPS = (0.0, 0.1, 0.25, 0.4, 0.55)
"""Seconds after the time-out at which the command is interrupted, more firmly each time."""
GIVE_UP = 0.7
"""Seconds after the time-out at which the shell itself is replaced."""
MANY = 64
"""More processes than can be caught one by one."""

_BEGIN = b"PS1= PS2= PS4='+ '; set +o history +o histexpand; unset HISTFILE\n"
# A plain assignment cannot be redefined, and it switches POSIX mode on, where special builtins are found before
# functions: so a command that redefined every builtin used here is still answered.
_MARKER = (
    b"{ __status=$? POSIXLY_CORRECT=; \\unset -f builtin eval printf trap unset; \\trap - DEBUG; "
    b'\\unset POSIXLY_CORRECT PROMPT_COMMAND PS0; \\builtin printf \'%%s %%d %%s\\0\' %s "$__status" "$PWD" >&%d; } '
    b"2>/dev/null\n"
)


def quote(command: bytes) -> bytes:
    """The command as one $'…' word of bash. NUL cannot be part of a command and is dropped."""
    text = command.replace(b"\0", b"").replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    return b"$'" + text.replace(b"\n", b"\\n").replace(b"\r", b"\\r") + b"'"


class Shell:
    """bash, the command it runs at the moment, and its replacement when it dies."""

    def __init__(self, warden: Warden) -> None:
        self.warden = warden
        self.pid = 0
        self.cwd = os.environ.get("RTL_GYM_CWD", "/code")
        self.job: Job | None = None
        self.waiting: bytes | None = None
        """The command of `job` while bash is still starting."""
        self.reason: str | None = None
        self.failures = 0
        self.survivors: set[tuple[int, tuple[int, int]]] = set()

    def start(self) -> None:
        """Start bash. It is ready when it answers its first marker."""
        read_end, self.commands = os.pipe()
        widen_pipe(self.commands)
        os.set_blocking(self.commands, False)
        self.output, self.status = Stream(), Stream()
        out = self.output.write_fd
        self.pid = self.spawn({0: read_end, 1: out, 2: out, STATUS_FD: self.status.write_fd})
        os.close(read_end)
        self.output.close_writer()
        self.status.close_writer()
        self.unsent, self.report = bytearray(), b""
        self.starting = True
        self.warden.watch(self.status.read_fd, self.on_status)
        self.send(_BEGIN)
        self.send_marker()

    def spawn(self, fds: dict[int, int]) -> int:
        argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        env = {**os.environ, "PS1": "", "PS2": ""}
        for _ in range(20):
            try:
                return spawn(argv, env, self.cwd, fds)
            except OSError:  # no process to be had: a fork bomb has them all
                signal_all([-1], signal.SIGKILL)
                time.sleep(0.05)
        return spawn(argv, env, self.cwd, fds)

    def send(self, data: bytes) -> None:
        """Write to bash's stdin, now or as soon as it takes more."""
        self.unsent += data
        self.flush()

    def flush(self) -> None:
        """Write as much of what is unsent as bash takes now."""
        try:
            while self.unsent:
                del self.unsent[: os.write(self.commands, self.unsent[: 1 << 16])]
        except BlockingIOError:
            self.warden.watch(self.commands, self.flush, write=True)
            return
        except BrokenPipeError:  # bash is gone; that is dealt with when it is reaped
            self.unsent.clear()
        self.warden.unwatch(self.commands)

    def send_marker(self) -> None:
        """Ask for status and folder behind whatever bash has been told before."""
        self.word = secrets.token_hex(16).encode()
        self.send(_MARKER % (self.word, STATUS_FD))

    def run(self, job: Job, command: bytes) -> None:
        """Take a command; at once, or when bash has started."""
        self.job, self.waiting = job, command
        if not self.starting:
            self.begin()

    def begin(self) -> None:
        if self.job is None or self.waiting is None:
            return
        self.output.drain(self.job.output.feed)  # what background jobs have said since
        self.warden.watch(self.output.read_fd, self.on_output)
        command, self.waiting = self.waiting, None
        # Both redirections change nothing, but they make bash put stdout and stderr back after an `exec >file`.
        self.send(b"\\eval " + quote(command) + b" </dev/null 1>&2 2>&1\n")
        self.send_marker()

    def on_output(self) -> None:
        if self.job is None or not self.output.drain(self.job.output.feed, 1 << 22):
            # Between commands, background jobs' words wait in the pipe, up to its size, for the next observation.
            self.warden.unwatch(self.output.read_fd)

    def on_status(self) -> None:
        if not self.status.drain(self.take_report):
            self.warden.unwatch(self.status.read_fd)

    def take_report(self, data: bytes) -> None:
        self.report = (self.report + data)[-(1 << 16) :]
        while b"\0" in self.report:
            line, self.report = self.report.split(b"\0", 1)
            word, _, rest = line.partition(b" ")
            if word[-32:] == self.word:
                code, _, cwd = rest.partition(b" ")
                self.cwd = os.fsdecode(cwd) or "/"
                self.answered(int(code))

    def answered(self, code: int) -> None:
        """bash has come back to its prompt."""
        self.failures = 0
        if self.starting:
            self.starting = False
            self.output.drain(lambda data: None)  # its greeting
            self.begin()
            return
        job, self.job = self.job, None
        if job is None:
            return
        if job.timed_out:  # interrupted, but its background processes ignore that
            self.end_victims()
        self.output.drain(job.output.feed)
        self.warden.unwatch(self.output.read_fd)
        self.finish(job, code)

    def finish(self, job: Job, code: int) -> None:
        reason, self.reason = self.reason, None
        job.done(code, restarted=reason, cwd=self.cwd)
        # Behind the answer, where it costs nobody time: whoever lives now is no part of the next command.
        self.survivors = set(processes().items())

    def victims(self) -> list[int]:
        """The running command's processes: all that came since it began, but for the offspring of older ones."""
        now = processes()
        old = {pid for pid, entry in now.items() if (pid, entry) in self.survivors} | set(self.warden.running)
        old.discard(self.pid)
        victims = []
        for pid in now:
            line = pid
            while line in now and line not in old and line != self.pid:
                line = now[line][0]
            if line not in old and pid != self.pid:
                victims.append(pid)
        return victims

    def end_victims(self) -> None:
        """Kill what is left of the command, and see it die: 50 ms at most, as only the kernel is waited for."""
        for _ in range(10):
            victims = self.victims()
            if not victims:
                return
            signal_all(victims, signal.SIGKILL)
            time.sleep(0.005)

    def next_time(self) -> float | None:
        """When `check_time` wants to be called next, on the monotonic clock."""
        if self.job is None:
            return None
        step, deadline = self.job.step, float(self.job.deadline)
        return deadline + (INTERRUPT_STEPS[step] if step < len(INTERRUPT_STEPS) else GIVE_UP)

    def check_time(self, now: float) -> None:
        """Interrupt a command whose time is over."""
        job, due = self.job, self.next_time()
        if job is None or due is None or now < due:
            return
        job.timed_out = True
        if job.step >= len(INTERRUPT_STEPS):
            self.reason = "it did not come back from the interrupted command"
            signal_all([*self.victims(), self.pid], signal.SIGKILL)
            job.deadline = now + 3600  # its end, reaped in a moment, ends the job
            return
        victims = self.victims()
        if len(victims) > MANY:
            self.reason = "the command had more processes than can be ended one by one"
            signal_all([-1], signal.SIGKILL)
        if job.step:  # they did not mind SIGINT; but bash goes on with its loop when a child dies of anything else
            signal_all(victims, signal.SIGKILL)
            time.sleep(0.005)
            self.on_status()
            if self.job is not job:
                return
            ended, victims = victims, self.victims()
            if ended and not victims:  # bash is on its way back: a SIGINT now would only meet its answer
                job.step += 1
                return
        signal_all([self.pid, *victims], signal.SIGINT)
        job.step += 1

    def on_death(self, code: int) -> None:
        """bash has ended, by the command's own doing or killed. A new one takes its place."""
        job = self.job
        begun = job is not None and self.waiting is None
        if job is not None:
            self.output.drain(job.output.feed)
        for fd in (self.commands, self.status.read_fd, self.output.read_fd):
            self.warden.unwatch(fd)
            os.close(fd)
        if self.starting:
            self.failures += 1
            if self.failures > 5:
                os.write(2, b"bash does not start\n")
                os._exit(3)
        died = f"it exited with status {code}" if code < 128 else f"signal {code - 128} ended it"
        self.reason = self.reason or died
        self.start()
        if job is not None and begun:
            self.job = None
            self.finish(job, code)
