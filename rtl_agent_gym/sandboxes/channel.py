"""The client's end of the connection to a warden: requests, replies and processes, over one socket.

The socket is the warden's stdin and stdout, and carries its frames (`warden/frames.py`). A hijacked Docker socket also
wraps stdout and stderr in Docker's own frames: stream, three zero bytes, length; then the payload.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import SandboxError, SandboxLost
from .results import CommandResult, cut
from .warden.frames import Output, pack, split, unpack

Reply = tuple[dict[str, Any], bytes]
"""The header and body of a final reply."""
SECOND_WAIT = 5.0
"""Seconds for reading a reply that arrived while this process was stopped."""
BUFFER = 1 << 20
"""Bytes of unread output from which a process is paused; up to twice as many are buffered."""

closed_in_children: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""Sockets to close in every forked child of this process, so that their other ends see it when this process ends."""


def _close_in_child() -> None:
    """A forked child must not keep a sandbox alive that should end with its parent."""
    for sock in list(closed_in_children):
        descriptor = sock.detach()
        if descriptor >= 0:  # closed ones stay in the set until they are garbage-collected
            with contextlib.suppress(OSError):
                os.close(descriptor)


os.register_at_fork(after_in_child=_close_in_child)


@dataclass
class Request:
    """A request to a warden, and its final reply."""

    number: int
    on_piece: Callable[[bytes], None] | None
    """Called with each piece of output as it arrives."""
    reply: asyncio.Future[Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    waiters: list[asyncio.Future[bool]] = field(default_factory=list)
    """The callers that wait for the reply; each gets whether the request is settled."""

    def fail(self, error: Exception) -> None:
        self.reply.set_exception(error)
        self.reply.exception()  # marks it as retrieved, since it may never be awaited
        self._wake()

    def succeed(self, reply: Reply) -> None:
        self.reply.set_result(reply)
        self._wake()

    def _wake(self) -> None:
        for waiter in self.waiters:
            set_once(waiter, True)

    async def settled(self, patience: float | None) -> bool:
        """Wait at most `patience` seconds; return whether the request has been answered or has failed.

        The caller continues in the loop's next iteration; `asyncio.wait_for` and `asyncio.shield` would take two more.
        """
        if self.reply.done():
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self.waiters.append(waiter)
        timer = None if patience is None else loop.call_later(patience, set_once, waiter, False)
        try:
            return await waiter
        finally:
            self.waiters.remove(waiter)
            if timer is not None:
                timer.cancel()


def set_once(future: asyncio.Future[bool], value: bool) -> None:
    """Set the result, unless the future is done or cancelled."""
    if not future.done():
        future.set_result(value)


class Channel(asyncio.Protocol):
    """One warden's requests and replies. Owns its socket: closing the channel, or losing it, ends the warden.

    `name` is the sandbox's, for messages. `read_errors` reads the warden's stderr; None if it comes over the socket,
    which is Docker's.
    """

    def __init__(self, name: str, read_errors: Callable[[], bytes] | None = None) -> None:
        self.name, self._read_errors = name, read_errors
        self._raw, self._frames, self._errors = bytearray(), bytearray(), bytearray()
        self._numbers = itertools.count(1)
        self.greeting = Request(0, None)
        """Its reply is the warden's first message."""
        self._unanswered = {0: self.greeting}
        self._transport: asyncio.Transport | None = None
        self._lost: str | None = None
        self.broken: str | None = None
        """Why the warden could not continue, if it has reported that."""
        self.memory_full = False
        """Whether half of the sandbox's own memory is in use, according to the warden's last report."""

    @classmethod
    async def open(cls, sock: socket.socket, name: str, read_errors: Callable[[], bytes] | None = None) -> Channel:
        """Take over a connected socket. The warden need not run yet."""
        sock.setblocking(False)
        closed_in_children.add(sock)
        _, channel = await asyncio.get_running_loop().create_connection(lambda: cls(name, read_errors), sock=sock)
        return channel

    def send(
        self,
        kind: bytes,
        header: Mapping[str, Any],
        body: bytes = b"",
        on_piece: Callable[[bytes], None] | None = None,
    ) -> Request:
        """Send a request; `wait` waits for its reply."""
        request = Request(next(self._numbers), on_piece)
        if self._lost is None:
            self._unanswered[request.number] = request
            self.tell(kind, {**header, "id": request.number}, body)
        else:
            request.fail(SandboxLost(self._lost))
        return request

    def tell(self, kind: bytes, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message that has no reply. Does nothing if the warden is gone."""
        if self._transport is not None:
            self._transport.write(pack(kind, header, body))

    async def wait(self, request: Request, patience: float | None) -> Reply:
        """Wait for the final reply to a request, at most `patience` seconds; None for no limit.

        Raises:
            SandboxLost: The warden is gone, or does not reply: then the channel stays open (see `give_up`).
            OSError: The warden could not perform the request; the errno is the sandbox's.
        """
        # If this process itself was stopped, replies that arrived meanwhile are read in the second wait.
        if not await request.settled(patience) and not await request.settled(SECOND_WAIT):
            raise SandboxLost(f"sandbox {self.name} has not answered for {patience:g} s{self._stderr()}")
        return request.reply.result()

    @property
    def idle(self) -> bool:
        return not self._unanswered

    def close(self) -> None:
        """End the channel, and with it the warden. Idempotent."""
        self.give_up(f"sandbox {self.name} is closed")

    def give_up(self, reason: str) -> None:
        """End the channel. Every unanswered or later request fails with the first given reason."""
        if self._lost is None:
            self._lost = reason
            for request in self._unanswered.values():
                request.fail(SandboxLost(reason))
            self._unanswered.clear()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # The event loop calls the following methods.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._transport.set_write_buffer_limits(high=1 << 26)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.give_up(f"sandbox {self.name} went away{f' ({exc})' if exc else ''}{self._stderr()}")

    def data_received(self, data: bytes) -> None:
        if self._read_errors is None:
            self._take_docker_frames(data)
        else:
            self._frames += data
        for frame in split(self._frames):
            self._take(*unpack(frame))

    def _take_docker_frames(self, data: bytes) -> None:
        self._raw += data
        start = 0
        while len(self._raw) - start >= 8:
            stream, size = struct.unpack_from(">BxxxL", self._raw, start)
            if len(self._raw) - start < 8 + size:
                break
            payload = self._raw[start + 8 : start + 8 + size]
            if stream == 1:
                self._frames += payload
            else:
                self._errors = (self._errors + payload)[-4096:]
            start += 8 + size
        del self._raw[:start]

    def _take(self, kind: bytes, header: dict[str, Any], body: bytes) -> None:
        if kind == b"b":
            self.broken = str(header["message"])
        elif kind == b"m":
            self.memory_full = bool(header["full"])
        elif (request := self._unanswered.get(header.pop("id"))) is not None:
            if kind == b"o":
                if request.on_piece is not None:
                    request.on_piece(body)
                return
            del self._unanswered[request.number]
            if kind == b"e":
                request.fail(OSError(header.get("errno") or 0, header["message"]))
            else:
                request.succeed((header, body))

    def _stderr(self) -> str:
        errors = bytes(self._errors) if self._read_errors is None else self._read_errors()
        text = errors.decode(errors="replace").strip()
        return f"; its stderr: {text}" if text else ""


class Process:
    """A program that runs in a sandbox beside the shell. When `wait` returns, it and all that it started have ended.

    Methods raise `SandboxLost` or `SandboxBroken` as those of `Sandbox` do.

    Args:
        channel: To the warden.
        reply: Waits for a reply, for some seconds or, with None, without a limit.
        header: ``argv``, ``cwd``, ``env``, and whether the second warden runs it (``worker``).
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
        which. While it is not read and the buffers are full, the process blocks when it writes."""
        self.output.set_transport(_Flow(self._hold))
        self._end = channel.send(b"X", header, b"", self.output.feed_data)
        self._end.reply.add_done_callback(lambda _: self.output.feed_eof())
        self._address = {"worker": header["worker"], "process": self._end.number}
        self._stdin_open = True

    def _hold(self, held: bool) -> None:
        self._channel.tell(b"H", {**self._address, "held": held})

    @property
    def exit_code(self) -> int | None:
        """The exit status (128 + n after signal n); None while it runs, or if it was lost."""
        end = self._end.reply
        return int(end.result()[0]["exit_code"]) if end.done() and end.exception() is None else None

    async def write(self, data: bytes) -> None:
        """Write to its stdin; return when everything is in the process's pipe.

        Raises `BrokenPipeError` if it has ended or no longer reads.
        """
        if data:  # an empty piece would end its stdin
            await self._reply(self._channel.send(b"I", self._address, data), None)

    async def close_stdin(self) -> None:
        """Close its stdin after everything that was written. Idempotent."""
        if self._stdin_open:
            self._stdin_open = False
            with contextlib.suppress(BrokenPipeError):
                await self._reply(self._channel.send(b"I", self._address), None)

    async def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status; 127 if the program cannot be run, with the reason in `output`.

        Raises `TimeoutError` if it has not ended within `timeout` seconds; it keeps running.
        """
        async with asyncio.timeout(timeout):
            header, _ = await self._reply(self._end, None)
        return int(header["exit_code"])

    async def kill(self) -> None:
        """Kill it and everything it started; return when it has ended. Idempotent.

        A tracer is told of a process's end first and could hide it. So if the end is not seen in time, all processes of
        the sandbox are killed.
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
            stdin: The rest of its stdin, which is then closed.
            timeout: Seconds from now.
            max_output: Characters to keep of the output, half of them from the head and half from the tail.
        """
        begun = time.monotonic()
        head = bytearray()
        kept = Output(8 * max_output, head.extend)

        async def feed() -> None:
            with contextlib.suppress(BrokenPipeError, SandboxError):  # `wait` raises the reason
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
