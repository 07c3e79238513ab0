"""Reads SystemVerilog in a process of its own, which may crash or hang without harm.

Who is to blame when it does is told by what the kernel says of its end. It may use so much processor time and so much
memory: a source that takes more is at fault. One that was killed from outside, or had no processor to run on, says
nothing about its source.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import json
import math
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import HarnessError

_WORKER = Path(__file__).with_name("slang_worker.py")
_LINE = 1 << 28
"""Longest reply, in bytes."""
_TRIES = 2
"""How often a crash is blamed on chance before it is blamed on the sources."""
_HOG = 1 << 30
"""Bytes: half of what a reading may have. One that had so much is itself to blame when memory runs out, whoever's limit
it was: a source could otherwise choose to fail as the machine."""
_CONTROL = b'{"files": {"m.sv": "module m; endmodule"}, "sources": ["m.sv"], "tops": ["m"]}\n'
"""What a front end that works can read."""
_GRACE = 15.0
"""Seconds beyond a reading's own after which a silent child counts as stopped."""
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS}
"""Signals that a program brings on itself."""


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
    """Bits; None where it cannot be said."""


@dataclass(frozen=True)
class Reading:
    """What a front end makes of some sources."""

    errors: tuple[tuple[str, int, str], ...] = ()
    """Syntax errors: path, line, message."""
    modules: tuple[str, ...] = ()
    ports: Mapping[str, tuple[Port, ...]] = field(default_factory=dict)
    """The ports of each top module that was found."""
    fault: str = ""
    """Why the sources could not be read at all; empty where they could."""
    repeatable: bool = True
    """Whether another reading must come to the same; not so where the speed or the memory of the machine decided."""


class Frontend:
    """pyslang in a child process. Owns the child: `close` ends it, and so does the end of this process.

    Args:
        processor: Whole seconds of processor time for one reading, after which the sources count as unreadable.
        patience: Seconds that may pass meanwhile, after which the machine is too slow; None for six times as many.
    """

    def __init__(self, processor: int = 20, patience: float | None = None) -> None:
        self._processor = max(1, math.ceil(processor))
        self._patience = patience if patience is not None else 6.0 * self._processor
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def read(self, files: Mapping[str, bytes], sources: Sequence[str], tops: Sequence[str] = ()) -> Reading:
        """Read `sources`, in order, as one compilation unit; `files` is everything they may include.

        Raises:
            HarnessError: The machine failed: the child cannot be started, was killed, or was given no time.
        """
        present = [path for path in sources if path in files]
        if not present:
            return Reading()
        texts = {path: content.decode("latin-1") for path, content in files.items()}
        request = json.dumps({"files": texts, "sources": present, "tops": list(tops)}).encode() + b"\n"
        async with self._turn:
            for _ in range(_TRIES):
                reply = await self._ask(request)
                if "reading" in reply:
                    return _reading(reply["reading"])
                if (blamed := self._blame(reply["ended"])) is not None:
                    return blamed
            if "reading" not in await self._ask(_CONTROL):
                raise HarnessError("the SystemVerilog front end crashes on everything; is pyslang installed rightly?")
        return Reading(fault="the SystemVerilog front end crashed on it")

    def _blame(self, ended: Mapping[str, Any]) -> Reading | None:
        """The reading that a limit ended; None for a crash, which may be chance.

        Raises:
            HarnessError: It was ended from outside.
        """
        number, used = ended["signal"], ended["seconds"]
        if ended["long"]:
            return Reading(fault="the SystemVerilog front end had too much to say about it")
        if number == signal.SIGXCPU or used >= self._processor:
            fault = f"the SystemVerilog front end did not end within {self._processor} s of processor time"
            return Reading(fault=fault, repeatable=False)
        if ended["peak"] >= _HOG:
            return Reading(fault="the SystemVerilog front end needed more memory than it may have", repeatable=False)
        if ended["overdue"]:
            raise HarnessError(
                f"the SystemVerilog front end was given {used:.1f} s of processor time in {self._patience:g} s; "
                "the host is too busy, or has stopped it"
            )
        if number and number not in _OWN_SIGNALS:
            raise HarnessError(f"the SystemVerilog front end was ended by signal {number} from outside")
        return None

    async def close(self) -> None:
        """End the child."""
        async with self._turn:
            await self._end()

    async def _ask(self, request: bytes) -> dict[str, Any]:
        """One reply. No source can end the child that gives it; so when it is gone, the machine is to blame."""
        try:
            reply = await asyncio.wait_for(self._exchange(request), self._patience + _GRACE)
        except TimeoutError:
            await self._end()
            raise HarnessError("the SystemVerilog front end does not answer; the host has stopped it") from None
        except BaseException:
            await self._end()
            raise
        if reply is None:
            await self._end()
            raise HarnessError("the SystemVerilog front end was ended from outside, or does not start")
        return reply

    async def _exchange(self, request: bytes) -> dict[str, Any] | None:
        child = self._child = self._child or await self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(request)
            await child.stdin.drain()
            line = await child.stdout.readline()
        except (ConnectionError, ValueError):
            return None
        if not line.endswith(b"\n"):
            return None
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def _start(self) -> asyncio.subprocess.Process:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            limits = (str(self._processor), str(self._patience))
            return await asyncio.create_subprocess_exec(
                sys.executable, "-I", str(_WORKER), *limits, stdin=pipe, stdout=pipe, stderr=null, limit=_LINE
            )
        except OSError as error:
            raise HarnessError(f"cannot start the SystemVerilog front end: {error}") from error

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            if child.stdin is not None:
                child.stdin.close()


def _reading(reply: Mapping[str, Any]) -> Reading:
    return Reading(
        errors=tuple((path, line, message) for path, line, message in reply["errors"]),
        modules=tuple(reply["modules"]),
        ports={top: tuple(Port(*port) for port in ports) for top, ports in reply["ports"].items()},
    )
