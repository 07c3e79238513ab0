"""The client's end of a process that a warden runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ..errors import SandboxLost
from .channel import Channel
from .protocol import Process

BUFFER = 1 << 20
"""Bytes of unread output that are buffered before the process is held back; twice as many at most."""


class WardenProcess(Process):
    """A process beside the shell; implements `Process`.

    Args:
        channel: To the warden.
        worker: Whether the request is for the second warden.
        argv, cwd, env: See `Sandbox.spawn`.
        classifying: Translates failures; used around each wait for the warden.
        grace: Seconds within which a killed process must end.
    """

    def __init__(
        self,
        channel: Channel,
        worker: bool,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        classifying: Callable[[], AbstractAsyncContextManager[None]],
        grace: float,
    ) -> None:
        self._channel, self._classifying, self._grace = channel, classifying, grace
        self._output = asyncio.StreamReader(BUFFER)
        self._output.set_transport(_Flow(self._hold))
        header = {"worker": worker, "argv": list(argv), "cwd": cwd, "env": dict(env)}
        self._end = channel.send(b"X", header, b"", self._output.feed_data)
        self._end.future.add_done_callback(lambda _: self._output.feed_eof())
        self._address = {"worker": worker, "process": self._end.number}
        self._stdin_open = True

    def _hold(self, held: bool) -> None:
        with contextlib.suppress(SandboxLost):  # `wait` reports it
            self._channel.tell(b"H", {**self._address, "held": held})

    @property
    def output(self) -> asyncio.StreamReader:
        return self._output

    @property
    def exit_code(self) -> int | None:
        ended = self._end.future.done() and self._end.future.exception() is None
        return int(self._end.future.result().header["exit_code"]) if ended else None

    async def write(self, data: bytes) -> None:
        if data:  # an empty piece would end its stdin
            await self._write(data)

    async def close_stdin(self) -> None:
        if self._stdin_open:
            self._stdin_open = False
            with contextlib.suppress(BrokenPipeError):
                await self._write(b"")

    async def _write(self, data: bytes) -> None:
        async with self._classifying():
            await self._channel.request(b"I", self._address, data, patience=None)

    async def wait(self, timeout: float | None = None) -> int:
        async with asyncio.timeout(timeout):
            return await self._wait(None)

    async def kill(self) -> None:
        with contextlib.suppress(SandboxLost):
            self._channel.tell(b"K", self._address)
        await self._wait(self._grace)

    async def _wait(self, patience: float | None) -> int:
        async with self._classifying():
            reply: dict[str, Any] = (await self._channel.wait(self._end, patience)).header
        return int(reply["exit_code"])


class _Flow(asyncio.ReadTransport):
    """Calls `hold` when an `asyncio.StreamReader` pauses or resumes reading."""

    def __init__(self, hold: Callable[[bool], None]) -> None:
        super().__init__()
        self._hold = hold

    def pause_reading(self) -> None:
        self._hold(True)

    def resume_reading(self) -> None:
        self._hold(False)
