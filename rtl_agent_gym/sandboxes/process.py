"""The client's end of a process that a warden runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .channel import Channel, Reply, Request
from .protocol import Process

BUFFER = 1 << 20
"""Bytes of unread output that are buffered before the process is held back; twice as many at most."""


class WardenProcess(Process):
    """A process beside the shell; implements `Process`.

    Args:
        channel: To the warden.
        reply: Waits for the reply to a request, for some seconds or without a limit.
        header: ``argv``, ``cwd``, ``env``, and whether it is the second warden's (``worker``).
        grace: Seconds within which a killed process must end.
    """

    def __init__(
        self,
        channel: Channel,
        reply: Callable[[Request, float | None], Awaitable[Reply]],
        header: Mapping[str, Any],
        grace: float,
    ) -> None:
        self._channel, self._reply, self._grace = channel, reply, grace
        self._output = asyncio.StreamReader(BUFFER)
        self._output.set_transport(_Flow(self._hold))
        self._end = channel.send(b"X", header, b"", self._output.feed_data)
        self._end.reply.add_done_callback(lambda _: self._output.feed_eof())
        self._address = {"worker": header["worker"], "process": self._end.number}
        self._stdin_open = True

    def _hold(self, held: bool) -> None:
        self._channel.tell(b"H", {**self._address, "held": held})

    @property
    def output(self) -> asyncio.StreamReader:
        return self._output

    @property
    def exit_code(self) -> int | None:
        end = self._end.reply
        return int(end.result()[0]["exit_code"]) if end.done() and end.exception() is None else None

    async def write(self, data: bytes) -> None:
        if data:  # an empty piece would end its stdin
            await self._reply(self._channel.send(b"I", self._address, data), None)

    async def close_stdin(self) -> None:
        if self._stdin_open:
            self._stdin_open = False
            with contextlib.suppress(BrokenPipeError):
                await self._reply(self._channel.send(b"I", self._address), None)

    async def wait(self, timeout: float | None = None) -> int:
        async with asyncio.timeout(timeout):
            header, _ = await self._reply(self._end, None)
        return int(header["exit_code"])

    async def kill(self) -> None:
        self._channel.tell(b"K", self._address)
        await self._reply(self._end, self._grace)


class _Flow(asyncio.ReadTransport):
    """Calls `hold` when an `asyncio.StreamReader` pauses or resumes reading."""

    def __init__(self, hold: Callable[[bool], None]) -> None:
        super().__init__()
        self._hold = hold

    def pause_reading(self) -> None:
        self._hold(True)

    def resume_reading(self) -> None:
        self._hold(False)
