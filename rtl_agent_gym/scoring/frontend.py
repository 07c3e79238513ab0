"""Reads SystemVerilog in separate processes, which may crash or hang without harm.

How the process ended, as reported by the kernel, decides what was at fault. Sources that exceed the limits on processor
time or memory are at fault. A process that was killed from outside, or got no processor time, is a machine fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import json
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import HarnessError, UsageError

_WORKER = Path(__file__).with_name("slang_worker.py")
LARGEST = 8 << 20
"""Maximum bytes of submitted Verilog that are read; the request to the child is up to six times as large."""
READERS = min(8, max(2, len(os.sched_getaffinity(0))))
"""Maximum simultaneous readings of one `Frontend`, each in a child process of about 50 MB, so that a slow reading does
not delay the others."""
_LINE = 1 << 28
"""Longest reply, in bytes."""
_TRIES = 2
"""Consecutive crashes after which the sources are at fault."""
_HOG = 1 << 30
"""Half of a reading's memory limit, in bytes. Sources whose reading used this much are at fault when memory runs out,
whichever limit was reached; otherwise they could cause machine faults at will."""
_GRACE = 15.0
"""Seconds after a reading's time limit until a child that does not answer counts as stopped."""
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS}
"""Signals that a crashing program causes itself."""


@functools.cache
def frontend_version() -> str:
    """The version of pyslang, which decides what is a syntax error."""
    return importlib.metadata.version("pyslang")


@dataclass(frozen=True)
class Port:
    """A port of an elaborated module."""

    name: str
    direction: str
    """``in``, ``out``, ``inout``, ``ref`` or ``interface``."""
    width: int | None
    """Bits; None if unknown."""


@dataclass(frozen=True)
class Reading:
    """What the front end found in some sources."""

    errors: tuple[tuple[str, int, str], ...] = ()
    """Syntax errors: path, line, message."""
    modules: tuple[str, ...] = ()
    ports: Mapping[str, tuple[Port, ...]] = field(default_factory=dict)
    """The ports of each top module that was found."""
    unread: bool = False
    """Whether an included file was not found."""
    fault: str = ""
    """Why the sources could not be read at all; empty if they could."""
    repeatable: bool = True
    """Whether another reading would give the same result; False if the machine's speed or memory decided."""


def _request(files: Mapping[str, bytes], sources: Sequence[str], **options: Sequence[str]) -> bytes:
    texts = {path: content.decode("latin-1") for path, content in files.items()}
    nothing: dict[str, Sequence[str]] = {"tops": (), "folders": (), "defines": ()}
    return json.dumps({"files": texts, "sources": sources, **nothing, **options}, default=list).encode() + b"\n"


class Frontend:
    """Runs pyslang in up to `READERS` child processes, which end with `close` or with this process.

    Args:
        processor: Seconds of processor time for one reading, rounded up, after which the sources count as unreadable.
        patience: Seconds of wall time after which the machine counts as too slow; None for six times `processor`.
    """

    def __init__(self, processor: int = 20, patience: float | None = None) -> None:
        self._processor = max(1, math.ceil(processor))
        self._patience = patience if patience is not None else 6.0 * self._processor
        self._readers, self._idle = asyncio.Semaphore(READERS), list[asyncio.subprocess.Process]()
        self._closed = False

    async def read(
        self,
        files: Mapping[str, bytes],
        sources: Sequence[str],
        tops: Sequence[str] = (),
        submitted: int = 0,
        *,
        folders: Sequence[str] = (),
        defines: Sequence[str] = (),
    ) -> Reading:
        """Read `sources`, in order, as one compilation unit.

        Args:
            files: All files that may be read or included, by path relative to the work folder.
            sources: Paths of `files`.
            tops: Modules whose ports are wanted.
            submitted: Bytes of `files` that a model wrote; above `LARGEST`, nothing is read.
            folders: Include folders, searched after the including file's own folder.
            defines: Macros, as ``NAME`` or ``NAME=value``.

        Raises:
            HarnessError: The machine failed: the child cannot be started, was killed, or got no processor time.
            UsageError: The front end was closed.
        """
        present = [path for path in sources if path in files]
        if not present:
            return Reading()
        if submitted > LARGEST:
            return Reading(fault=f"more than {LARGEST >> 20} MiB of Verilog were submitted")
        async with self._readers:
            if self._closed:
                raise UsageError("the SystemVerilog front end is closed, like its Scorer; create a new one")
            request = await asyncio.to_thread(_request, files, present, tops=tops, folders=folders, defines=defines)
            for _ in range(_TRIES):
                reply = await self._ask(request)
                if "reading" in reply:
                    return _reading(reply["reading"])
                if (blamed := self._blame(reply["ended"])) is not None:
                    return blamed
            if "reading" not in await self._ask(_request({"m.sv": b"module m; endmodule"}, ["m.sv"])):
                raise HarnessError(
                    "the SystemVerilog front end crashes on everything; is pyslang installed correctly, and do "
                    "`ulimit -Hv` and `ulimit -Hf` allow 2 GiB of memory and files of 64 MiB?"
                )
        return Reading(fault="the SystemVerilog front end crashed on it")

    def _blame(self, ended: Mapping[str, Any]) -> Reading | None:
        """The result of a reading that a limit ended; None for a crash, which may not happen again.

        Raises:
            HarnessError: The child was killed from outside, or got too little processor time.
        """
        number, used = ended["signal"], ended["seconds"]
        if ended["long"]:
            return Reading(fault="the SystemVerilog front end's output is too long")
        if number == signal.SIGXCPU or used >= self._processor:
            fault = f"the SystemVerilog front end did not end within {self._processor} s of processor time"
            return Reading(fault=fault, repeatable=False)
        if ended["peak"] >= _HOG:
            return Reading(fault="the SystemVerilog front end needed more memory than it may have", repeatable=False)
        if ended["overdue"]:
            raise HarnessError(
                f"the SystemVerilog front end got only {used:.1f} s of processor time in {self._patience:g} s; "
                "the host is too busy, or has stopped it"
            )
        if number and number not in _OWN_SIGNALS:
            raise HarnessError(f"the SystemVerilog front end was ended by signal {number} from outside")
        return None

    async def close(self) -> None:
        """End the child processes after the current readings."""
        self._closed = True
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(READERS):
                await stack.enter_async_context(self._readers)
            while self._idle:
                await _end(self._idle.pop())

    async def _ask(self, request: bytes) -> dict[str, Any]:
        """A child's reply. Sources can end only its fork, never the child, so if it ends, the machine is at fault."""
        child: asyncio.subprocess.Process | None = None
        try:
            async with asyncio.timeout(self._patience + _GRACE):
                while self._idle and child is None:  # skip children that were killed meanwhile
                    idle = self._idle.pop()
                    child = idle if idle.returncode is None else None
                child = child or await self._start()
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(request)
                await child.stdin.drain()
                reply: dict[str, Any] = json.loads(await child.stdout.readuntil())
        except BaseException as error:
            if child is not None:
                await _end(child)
            if isinstance(error, TimeoutError):
                raise HarnessError("the SystemVerilog front end does not answer; the host has stopped it") from None
            if isinstance(error, ConnectionError | EOFError):
                raise HarnessError(
                    "the SystemVerilog front end was ended from outside, or does not start; "
                    f"try: {sys.executable} -c 'import pyslang'"
                ) from None
            raise
        self._idle.append(child)
        return reply

    async def _start(self) -> asyncio.subprocess.Process:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            command = (sys.executable, "-P", str(_WORKER), str(self._processor), str(self._patience))
            return await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=null, limit=_LINE, start_new_session=True
            )
        except OSError as error:
            raise HarnessError(f"cannot start the SystemVerilog front end: {error}") from error


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and its fork, which does the reading
    await child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _reading(reply: Mapping[str, Any]) -> Reading:
    return Reading(
        errors=tuple((path, line, message) for path, line, message in reply["errors"]),
        modules=tuple(reply["modules"]),
        unread=reply["unread"],
        ports={top: tuple(Port(*port) for port in ports) for top, ports in reply["ports"].items()},
    )
