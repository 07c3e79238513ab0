"""Detects signals that reached a service's processes from outside the container: ``docs/scoring.md``, "Signals".

The supervisor traces every process of a service (ptrace(2)), so it sees the end of each process before its parent does,
and each signal, with its sender, before it is delivered. The sender of SIGKILL cannot be read. But a system call filter
reports each SIGKILL that a process of the service sends, the kernel counts those of its out-of-memory killer
(`measures`), and a process shows whether it used up its processor time. Any other SIGKILL comes from outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
import subprocess
from typing import Any

from .messages import Signal

Child = subprocess.Popen[bytes]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long
_TRACEME, _CONT, _DETACH, _GETSIGINFO, _SEIZE, _LISTEN, _GET_SYSCALL_INFO = 0, 7, 17, 0x4202, 0x4206, 0x4208, 0x420E
_OPTIONS = 0x2 | 0x4 | 0x8 | 0x80
"""Also trace what a process starts by fork, vfork and clone, and stop at system calls that the filter reports."""
_EVENT_SECCOMP, _EVENT_STOP = 7, 128
_WALL = 0x40000000
_ENDED = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
_SENT_BY_CALL, _QUEUED = (0, -6), -1
"""`si_code` of kill and tkill, and of sigqueue, whose caller chooses the sender."""

_STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_HARMLESS = {*_STOPPING, signal.SIGCONT, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH}
"""Signals that by default do not end a process. Stopping signals count if a process is stopped at its time limit."""
_BY_ITSELF = {
    signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS,
    signal.SIGXCPU, signal.SIGXFSZ, signal.SIGPIPE, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF,
}  # fmt: skip
"""Signals that a process causes itself."""
_NEAR = 0.5
"""Share of its processor time limit from which a process counts as killed for it. The kernel applies the limit to time
counted in ticks, which on a busy machine is far more than the exact time."""
_TICKS = os.sysconf("SC_CLK_TCK")

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_CALLS = {
    "x86_64": (0xC000003E, {62: 1, 200: 1, 234: 2}, (129, 297, 424), 157),
    "aarch64": (0xC00000B7, {129: 1, 130: 1, 131: 2}, (138, 240, 424), 167),
}
"""By machine: its architecture's number; kill, tkill and tgkill, each with the index of its signal argument;
rt_sigqueueinfo, rt_tgsigqueueinfo and pidfd_send_signal; prctl."""
_MOST = 20
"""Maximum signals that are reported of one service."""
_EVERY = -1
"""A target that stands for any process."""


class Tracer:
    """Traces the services' processes. It waits for all children of this process, so nothing else may wait for them.

    Attributes:
        fd: Readable when there is something to `serve`.
        found: The signals from outside since `begin`.
        held: Processes that are stopped by a signal.
    """

    def __init__(self) -> None:
        self.active = _works()
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._children: dict[int, Child] = {}
        self.held: set[int] = set()
        self.begin()

    def begin(self) -> None:
        """Reset before the next service."""
        self.found: list[Signal] = []
        self._known: set[int] = set()
        """The service's processes, ended ones included."""
        self._targets: set[int] = set()
        """Targets of SIGKILL that they sent: process ids, negative group ids, or `_EVERY`."""
        self._forged = False
        """Whether one of them sent a signal with a forged sender."""
        self._warned = False
        """Whether one of them got SIGXCPU: it comes before the kill for processor time, if its limit is lower."""

    def enter(self, *, execs: bool) -> None:
        """In a traced child: the last step before it runs its program, by exec or in this process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if not self.active:
            return
        _LIBC.ptrace(_TRACEME, 0, None, None)
        if not execs:
            os.kill(os.getpid(), signal.SIGSTOP)
        _filter()  # last, since nothing handles its reports before `attach`

    def attach(self, child: Child, *, service: bool) -> None:
        """In the parent: wait for this child's end from now on. A service's child, which calls `enter`, is traced."""
        self._children[child.pid] = child
        if not service:
            return
        self._known.add(child.pid)
        if not self.active:
            return
        _, status = os.waitpid(child.pid, 0)
        if not os.WIFSTOPPED(status):
            if os.WIFSIGNALED(status):  # its program had not begun, so the signal was not its own
                self._note(child.pid, os.WTERMSIG(status))
            self._end(child.pid, os.waitstatus_to_exitcode(status))
            return
        # It stopped before its first instruction. Only seized processes can be stopped and continued as if untraced.
        with contextlib.suppress(OSError):  # it was killed
            _ptrace(_DETACH, child.pid, 0, signal.SIGSTOP)
            _ptrace(_SEIZE, child.pid, 0, _OPTIONS)
            os.kill(child.pid, signal.SIGCONT)

    def serve(self) -> None:
        """Handle all pending events of the processes."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 1 << 16)
        with contextlib.suppress(ChildProcessError):  # there are none
            while event := os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT | _WALL):
                ended = event.si_code in _ENDED
                if ended and event.si_status == signal.SIGKILL and event.si_code == os.CLD_KILLED:
                    self._judge_kill(event.si_pid)
                # Consuming the event lets its parent see the end.
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PID, event.si_pid, (os.WEXITED if ended else os.WSTOPPED) | os.WNOHANG | _WALL)
                if ended:
                    self._end(event.si_pid, event.si_status if event.si_code == os.CLD_EXITED else -event.si_status)
                elif event.si_code == os.CLD_TRAPPED:
                    with contextlib.suppress(OSError):  # it was killed meanwhile
                        self._resume(event.si_pid, event.si_status)

    def reap(self, child: Child) -> None:
        """Wait for the end of a killed child."""
        while child.returncode is None:
            select.select([self.fd], [], [], 0.1)
            self.serve()

    def _end(self, pid: int, code: int) -> None:
        self.held.discard(pid)
        child = self._children.pop(pid, None)
        if child is None:
            return
        child.returncode = code
        if not self.active and pid in self._known and code < 0 and -code not in _BY_ITSELF:
            self._note(pid, -code)

    def _resume(self, pid: int, status: int) -> None:
        self._known.add(pid)
        number, event = status & 0xFF, status >> 8
        if event == _EVENT_STOP and number in _STOPPING:
            self.held.add(pid)
            _ptrace(_LISTEN, pid, 0, 0)
            return
        self.held.discard(pid)
        if event == _EVENT_SECCOMP:
            try:
                self._read_call(pid)
            except OSError:  # an older kernel does not say what the call is
                self._targets.add(_EVERY)
        elif not event and number not in _HARMLESS:
            self._warned = self._warned or number == signal.SIGXCPU
            self._judge_signal(pid, number)
        _ptrace(_CONT, pid, 0, 0 if event else number)

    def _judge_signal(self, pid: int, number: int) -> None:
        """Record a signal that is about to be delivered, if it was sent from outside."""
        found = _read(_GETSIGINFO, pid, 0, 128)
        code, sender = struct.unpack_from("=8xi4xi", found)
        by_call = code in _SENT_BY_CALL and sender not in self._known
        if (by_call or code == _QUEUED) and not self._forged:
            self._note(pid, number)

    def _judge_kill(self, pid: int) -> None:
        """Record the end of a process by SIGKILL, unless the signal was sent inside or because of a limit."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/status") as stream:
                fields = dict(line.split(":", 1) for line in stream)
            if int(fields["Tgid"]) != pid or pid not in self._known or not self.active:
                return  # a thread, which ends with its process
            if self._targets & {pid, -os.getpgid(pid), _EVERY} or _used_up(pid, self._warned):
                return
            self._note(pid, signal.SIGKILL)

    def _read_call(self, pid: int) -> None:
        """Record the target of a reported system call that sends SIGKILL, or may forge a sender."""
        _, number, *arguments = struct.unpack_from("=B23xQ6Q", _read(_GET_SYSCALL_INFO, pid, 84, 84))
        _, kills, (*queueing, by_descriptor), prctl = _CALLS[os.uname().machine]
        target = ctypes.c_int(arguments[0]).value
        if number in kills:
            self._targets.add(target if target else -os.getpgid(pid))
        elif number == prctl:
            self._targets.add(_EVERY)  # any process whose parent dies
        else:
            self._forged = self._forged or number in queueing or arguments[2] != 0
            if ctypes.c_int(arguments[2 if number == queueing[1] else 1]).value == signal.SIGKILL:
                self._targets.add(_EVERY if number == by_descriptor else target)

    def _note(self, pid: int, number: int) -> None:
        program = "?"
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as stream:
            program = stream.read().strip()
        if len(self.found) < _MOST:
            self.found.append({"number": int(number), "program": program})


def _ptrace(request: int, pid: int, address: int, data: int) -> int:
    done: int = _LIBC.ptrace(request, pid, address, data)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


def _read(request: int, pid: int, address: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    _ptrace(request, pid, address, ctypes.addressof(buffer))
    return buffer.raw


def _works() -> bool:
    """Whether processes can be traced here, tried with a child."""
    pid = os.fork()
    if not pid:
        _LIBC.ptrace(_TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    try:
        _ptrace(_DETACH, pid, 0, signal.SIGSTOP)
        _ptrace(_SEIZE, pid, 0, _OPTIONS)
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        while not os.WIFEXITED(status) and not os.WIFSIGNALED(status):
            _, status = os.waitpid(pid, _WALL)


def _used_up(pid: int, warned: bool) -> bool:
    """Whether an ended process may have been killed for exceeding its processor time limit."""
    with open(f"/proc/{pid}/limits") as stream:
        ((warning, limit),) = (line.split()[3:5] for line in stream if line.startswith("Max cpu time"))
    with open(f"/proc/{pid}/stat") as stream:
        words: Any = stream.read().rsplit(")", 1)[1].split()
    if limit == "unlimited" or not (warned or warning == limit):
        return False
    return sum(map(int, words[11:13])) / _TICKS >= _NEAR * int(limit)


_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def _filter() -> None:
    """Make this process and its future descendants stop at calls that send SIGKILL or may forge a sender."""
    if os.uname().machine not in _CALLS:
        return
    architecture, kills, queueing, prctl = _CALLS[os.uname().machine]
    allow, trace = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _TRACE)

    def when(number: int, *tests: tuple[int, int]) -> list[tuple[int, int, int, int]]:
        """Instructions that trace a call if each tested argument has the given value."""
        steps = [
            step
            for at, (place, value) in enumerate(tests)
            for step in ((_LOAD, 0, 0, _ARGUMENTS + 8 * place), (_EQUAL, 0, 2 * (len(tests) - at) - 1, value))
        ]
        return [(_EQUAL, 0, len(steps) + 2, number), *steps, trace, allow]

    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        allow,
        (_LOAD, 0, 0, _NUMBER),
        *(step for number, place in kills.items() for step in when(number, (place, signal.SIGKILL))),
        *(step for number in queueing for step in when(number)),
        *when(prctl, (0, _PR_SET_PDEATHSIG), (1, signal.SIGKILL)),
        allow,
    ]
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("=H6xQ", len(program), ctypes.addressof(text)))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _LIBC.prctl(_PR_SET_SECCOMP, 2, header, 0, 0)
