"""The client's end of the zygote, the process that forks into sandboxes of namespaces (`warden/zygote.py`).

Bubblewrap or Apptainer starts it in a root folder, in its own namespaces, where no other program runs. It ends with
this process, even by SIGKILL, and when its control socket is closed; its sandboxes end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SandboxError, SandboxLost
from .cgroups import ROOT as GROUPS
from .channel import closed_in_children
from .programs import PLACE
from .seccomp import compile_filter
from .warden import program
from .warden.zygote import CAPABILITIES
from .warden_sandbox import START_PATIENCE

_NAMESPACES = ("pid", "net", "ipc", "uts", "cgroup")
_LONGEST_MESSAGE = 256
ENDING = 10.0
"""Seconds within which a sandbox or a zygote ends by itself once its socket is closed."""
_EXIT_SECONDS = 1.0
"""Seconds to wait without an event loop for the process's end, which takes milliseconds."""
_LIBC = ctypes.CDLL(None, use_errno=True)
"""For functions that some builds of Python lack: `os.memfd_create`, `os.pidfd_open`, `signal.pidfd_send_signal`."""
_PIDFD_OPEN, _PIDFD_SEND_SIGNAL = 434, 424


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def memory_file(content: bytes = b"") -> int:
    """A descriptor of an unnamed file in memory, at its beginning. The caller closes it."""
    descriptor = _checked(_LIBC.memfd_create(b"", 1))
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class Started:
    """Process 1 of a sandbox. Owns a process descriptor (pidfd) of it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            found = re.search(r"^Pid:\s*(\d+)$", file.read(), re.MULTILINE)
        self.pid = int(found[1]) if found else 0
        """Its id outside of the sandbox; 0 if it has ended."""
        self.ended = asyncio.Event()
        """Set when all of the sandbox has ended."""
        self.killed = False
        """Whether it was ended by SIGKILL; False if that is unknown."""

    def kill(self) -> None:
        """End it at once, and with it everything in the sandbox."""
        with contextlib.suppress(ProcessLookupError):
            _checked(_LIBC.syscall(_PIDFD_SEND_SIGNAL, self.descriptor, signal.SIGKILL, None, 0))

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@dataclass(frozen=True)
class Launch:
    """How to start a zygote in its root."""

    command: Sequence[str]
    """The words before the zygote's own command."""
    single: bool
    """Whether each of its sandboxes gets its own user namespace."""
    descriptors: Sequence[int] = ()
    """Descriptors that the command inherits."""
    environment: Mapping[str, str] = field(default_factory=dict)


class Zygote:
    """Owns the process until `close`, in the loop that makes it. Raises `SandboxError` if it cannot be started."""

    def __init__(self, launch: Launch) -> None:
        self._numbers = itertools.count(1)
        self._starting: dict[int, asyncio.Future[Started]] = {}
        self._sandboxes: dict[int, Started] = {}
        self._loop = asyncio.get_running_loop()
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        closed_in_children.add(self._control)
        self._errors = self._descriptor = -1
        words = [f"zygote={'single' if launch.single else 'ranged'}", f"filter={compile_filter().hex()}"]
        try:
            self._errors = memory_file()
            # Not in another thread: the kernel ends bubblewrap when the thread that started it ends.
            self._process = subprocess.Popen(
                [*launch.command, "/usr/bin/python3", "-ISBc", program().encode(), *words],
                stdin=far.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=tuple(launch.descriptors),
                env=dict(launch.environment),
                start_new_session=True,  # Ctrl-C in this process's terminal must not reach it
            )
            self._descriptor = _checked(_LIBC.syscall(_PIDFD_OPEN, self._process.pid, 0))
        except OSError as error:
            self.abandon()
            raise SandboxError(f"no sandbox can be started: {error}") from error
        finally:
            far.close()
        self.ended = asyncio.Event()
        """Set when it has ended, and with it all of its sandboxes."""
        self._gone = False
        """Whether it has closed its control socket, or hangs."""
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._on_message)
        self._loop.add_reader(self._descriptor, self._on_end)

    @property
    def works(self) -> bool:
        """Whether it can still start sandboxes, as far as this process knows."""
        return self._control.fileno() >= 0 and not self._gone

    async def start(self, wanted: Mapping[str, Any], line: socket.socket, errors: int) -> Started:
        """Start a sandbox.

        Args:
            wanted: Its description; see `warden/zygote.py`.
            line: Its end of the socket; the caller closes it.
            errors: Its stderr; the caller closes it.

        Raises:
            SandboxError: The kernel refuses its namespaces.
            SandboxLost: The zygote has ended, or hangs and is killed.
        """
        number = next(self._numbers)
        request = memory_file(json.dumps(wanted).encode())
        try:
            socket.send_fds(self._control, [b"%d" % number], [line.fileno(), errors, request])
        except OSError as error:
            raise SandboxLost(f"no sandbox can be started: {error}{self._why()}") from error
        finally:
            os.close(request)
        started = self._starting[number] = self._loop.create_future()
        # If this process itself was stopped, answers that arrived meanwhile are read in the second wait.
        for seconds in (START_PATIENCE, ENDING):
            if (await asyncio.wait([started], timeout=seconds))[0]:
                break
        else:
            self.kill(f"; the process that starts them has not answered for {START_PATIENCE + ENDING:g} s")
        return await asyncio.shield(started)

    def kill(self, why: str = "; the process that starts them hangs") -> None:
        """End it at once, and with it all of its sandboxes. Pending starts fail for this reason."""
        if self.works:
            self._lose(why)
        self._process.kill()

    def _lose(self, why: str) -> None:
        """Read no more of its messages, and fail pending starts. Its sandboxes end with the process."""
        self._loop.remove_reader(self._control)
        self._gone = True
        for waiting in self._starting.values():
            waiting.set_exception(SandboxLost(f"no sandbox can be started{why}"))
        self._starting.clear()

    def _on_message(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, _LONGEST_MESSAGE, 1)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        if not message:
            self._lose(self._why())
            return
        kind, number, *rest = message.decode(errors="replace").split(" ", 2)
        if kind == "ended":
            sandbox = self._sandboxes.pop(int(number), None)
            if sandbox is None:  # its descriptor did not arrive, or the zygote ended first
                return
            status = int(rest[0])
            sandbox.killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            sandbox.ended.set()
        elif kind == "started":
            starting = self._starting.pop(int(number))
            try:
                [descriptor] = descriptors  # the kernel omits it if this process cannot open more files
                sandbox = Started(descriptor)
            except (OSError, ValueError):
                for descriptor in descriptors:
                    os.close(descriptor)
                starting.set_exception(SandboxError("no sandbox can be started: this process has too many open files"))
                return
            self._sandboxes[int(number)] = sandbox
            if self.ended.is_set():
                sandbox.ended.set()
            starting.set_result(sandbox)
        else:
            self._starting.pop(int(number)).set_exception(SandboxError(f"no sandbox can be started: {rest[0]}"))

    def _on_end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._process.wait()
        self.ended.set()
        while self._sandboxes:
            self._sandboxes.popitem()[1].ended.set()

    def _why(self) -> str:
        text = os.pread(self._errors, 4096, 0).decode(errors="replace").strip() if self._errors >= 0 else ""
        return f"; its stderr: {text}" if text else ""

    def abandon(self) -> None:
        """End it without its event loop. Idempotent."""
        self._control.close()
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1
        if self._loop.is_closed() and self._descriptor >= 0:  # nothing will call `_on_end`
            os.close(self._descriptor)
            self._descriptor = -1
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_SECONDS)

    async def close(self) -> None:
        """End it; return when it is gone. Idempotent."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
        self.abandon()
        if not await set_within(self.ended, ENDING):  # it hangs, and does not see that its socket is closed
            self.kill()
            await set_within(self.ended, ENDING)


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; return whether it is set within this time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


def missing_folders(root: Path, folders: Iterable[str]) -> tuple[str, ...]:
    """The given folders in memory that do not exist in the root, except those below another given folder.

    Raises `SandboxError` if one would have to be created in a folder of the root, which is read-only.
    """
    wanted = sorted(folders)
    missing = tuple(
        path
        for path in wanted
        if not (root / path.lstrip("/")).is_dir() and not any(path.startswith(f"{other}/") for other in wanted)
    )
    for path in missing:
        if len(Path(path).parts) > 2 and (root / Path(path).parts[1]).is_dir():
            raise SandboxError(f"the folder {path} of a sandbox without Docker is not in the image")
    return missing


def bubblewrap_options(
    root: Path, missing: Collection[str], *, ranged: bool, groups: bool, programs: Path | None
) -> Iterator[str]:
    """The options with which bubblewrap starts a zygote. See `NamespaceHost.launch` for the arguments."""
    yield from (f"--unshare-{name}" for name in _NAMESPACES)
    yield from ("--hostname", "rtl", "--as-pid-1", "--die-with-parent", "--new-session")
    yield from ("--cap-drop", "ALL")
    for name in CAPABILITIES if ranged else ():
        yield from ("--cap-add", name)
    if not missing:
        yield from ("--ro-bind", str(root), "/")
    else:  # mount each entry of the root, so that folders can be created beside them
        made = {"dev", "proc", "sys", *(Path(path).parts[1] for path in missing if len(Path(path).parts) == 2)}
        with os.scandir(root) as entries:
            for entry in sorted(entries, key=lambda found: found.name):
                if entry.is_symlink():
                    yield from ("--symlink", os.readlink(entry.path), f"/{entry.name}")
                elif entry.name not in made:
                    yield from ("--ro-bind", entry.path, f"/{entry.name}")
        for path in missing:
            yield from ("--dir", path)
    if programs is not None:
        yield from ("--ro-bind", str(programs), PLACE)
    yield from ("--dev", "/dev", "--remount-ro", "/dev", "--proc", "/proc")
    if groups or missing:
        yield from ("--tmpfs", "/sys")
    if groups:
        yield from ("--ro-bind", str(GROUPS), str(GROUPS))
    yield from ("--remount-ro", "/", "--chdir", "/")
