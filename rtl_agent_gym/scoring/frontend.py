"""Reads SystemVerilog in a process of its own, which may crash or hang without harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
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


class Frontend:
    """pyslang in a child process. Owns the child: `close` ends it, and so does the end of this process.

    Args:
        patience: Seconds for one reading, after which the sources count as unreadable.
    """

    def __init__(self, patience: float = 20.0) -> None:
        self._patience = patience
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def read(self, files: Mapping[str, bytes], sources: Sequence[str], tops: Sequence[str] = ()) -> Reading:
        """Read `sources`, in order, as one compilation unit; `files` is everything they may include.

        Raises:
            HarnessError: The child cannot be started.
        """
        present = [path for path in sources if path in files]
        if not present:
            return Reading()
        texts = {path: content.decode("latin-1") for path, content in files.items()}
        request = json.dumps({"files": texts, "sources": present, "tops": list(tops)}).encode() + b"\n"
        async with self._turn:
            reply = None
            for _ in range(_TRIES):
                try:
                    reply = await asyncio.wait_for(self._ask(request), self._patience)
                except TimeoutError:
                    await self._end()
                    return Reading(fault=f"the SystemVerilog front end did not end within {self._patience:g} s")
                except BaseException:
                    await self._end()
                    raise
                if reply is not None:
                    return _reading(reply)
                await self._end()
        return Reading(fault="the SystemVerilog front end crashed on it")

    async def close(self) -> None:
        """End the child."""
        async with self._turn:
            await self._end()

    async def _ask(self, request: bytes) -> dict[str, Any] | None:
        """One reply; None when the child died over it."""
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
            return await asyncio.create_subprocess_exec(
                sys.executable, "-I", str(_WORKER), stdin=pipe, stdout=pipe, stderr=null, limit=_LINE
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
