"""A program that runs in a sandbox beside its shell."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..errors import SandboxError
from .channel import Channel, Reply, Request
from .results import CommandResult, cut
from .warden.output import Output

BUFFER = 1 << 20
"""Bytes of unread output that are buffered before a process is paused; twice as many at most."""


class Process:
    """A program that runs in a sandbox beside the shell. It and what it started are gone when `wait` returns.

    Methods raise `SandboxLost` or `SandboxBroken` as those of `Sandbox` do.

    Args:
        channel: To the sandbox's warden.
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
        self.output = asyncio.StreamReader(BUFFER)
        """stdout and stderr in the order they were written. Ends when the process has ended or is lost; `wait` tells
        which. While it is not read and the buffers are full, the process waits when it writes."""
        self.output.set_transport(_Flow(self._hold))
        self._end = channel.send(b"X", header, b"", self.output.feed_data)
        self._end.reply.add_done_callback(lambda _: self.output.feed_eof())
        self._address = {"worker": header["worker"], "process": self._end.number}
        self._stdin_open = True

    def _hold(self, held: bool) -> None:
        self._channel.tell(b"H", {**self._address, "held": held})

    @property
    def exit_code(self) -> int | None:
        """The exit status (128 + n after signal n); None while it runs, and when it was lost."""
        end = self._end.reply
        return int(end.result()[0]["exit_code"]) if end.done() and end.exception() is None else None

    async def write(self, data: bytes) -> None:
        """Write to its stdin; return when the process's pipe has taken everything.

        Raises:
            BrokenPipeError: It has ended, or reads no more.
        """
        if data:  # an empty piece would end its stdin
            await self._reply(self._channel.send(b"I", self._address, data), None)

    async def close_stdin(self) -> None:
        """End its stdin after everything that was written. Idempotent."""
        if self._stdin_open:
            self._stdin_open = False
            with contextlib.suppress(BrokenPipeError):
                await self._reply(self._channel.send(b"I", self._address), None)

    async def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status. 127 for a program that cannot be run; `output` says why.

        Raises:
            TimeoutError: It has not ended within `timeout` seconds; it runs on.
        """
        async with asyncio.timeout(timeout):
            header, _ = await self._reply(self._end, None)
        return int(header["exit_code"])

    async def kill(self) -> None:
        """Kill it and everything it started; return when it has ended. Idempotent.

        A tracer learns of a process's end first and could hide it. So if it is not seen in time, all processes of the
        sandbox are killed.
        """
        self._channel.tell(b"K", {**self._address, "all": False})
        await asyncio.wait({self._end.reply}, timeout=self._grace / 2)
        if not self._end.reply.done():
            self._channel.tell(b"K", {**self._address, "all": True})
        await self._reply(self._end, self._grace)

    async def communicate(
        self, stdin: bytes = b"", *, timeout: float = 600.0, max_output: int = 1_000_000
    ) -> CommandResult:
        """Write its stdin, read its output, and wait for it; kill it at the time-out.

        Args:
            stdin: The rest of its stdin, which ends after it.
            timeout: Seconds from now.
            max_output: Characters to keep of the output, half of them from the head and half from the tail.
        """
        begun = time.monotonic()
        head = bytearray()
        kept = Output(8 * max_output, head.extend)

        async def feed() -> None:
            with contextlib.suppress(BrokenPipeError, SandboxError):  # `wait` tells what happened to it
                await self.write(stdin)
                await self.close_stdin()

        async def finish() -> int:
            while data := await self.output.read(1 << 20):
                kept.feed(data)
            return await self.wait()

        feeding = asyncio.ensure_future(feed())
        code = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    code = await finish()
            if code is None:
                await self.kill()
                await finish()
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        text, truncated = cut(bytes(head) + kept.rest(), kept.size, kept.chars, max_output)
        return CommandResult(
            output=text,
            exit_code=code,
            timed_out=code is None,
            truncated=truncated,
            output_chars=kept.chars,
            seconds=time.monotonic() - begun,
        )


class _Flow(asyncio.ReadTransport):
    """Calls `hold` when an `asyncio.StreamReader` pauses or resumes reading."""

    def __init__(self, hold: Callable[[bool], None]) -> None:
        super().__init__()
        self._hold = hold

    def pause_reading(self) -> None:
        self._hold(True)

    def resume_reading(self) -> None:
        self._hold(False)
