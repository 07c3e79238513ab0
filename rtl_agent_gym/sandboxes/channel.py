"""The client's end of the conversation with a warden: requests and replies over one socket.

The socket is the warden's stdin and stdout, and carries its frames (`warden/frames.py`). A hijacked Docker socket packs
stdout and stderr into frames of Docker's own: stream, three zero bytes, length; then the payload.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import SandboxLost
from .warden.frames import pack, split, unpack

Reply = tuple[dict[str, Any], bytes]
"""Header and body of a final reply."""
SECOND_WAIT = 5.0
"""Seconds in which a reply is read that came while this process stood still."""

_open_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_children(sock: socket.socket) -> None:
    """Close a socket in every process that is forked from this one, so that its other end ends with this one."""
    _open_sockets.add(sock)


def _close_in_child() -> None:
    """A forked child must not keep a sandbox alive that its parent meant to end with itself."""
    for sock in list(_open_sockets):
        descriptor = sock.detach()
        if descriptor >= 0:  # closed ones stay in the set until they are collected
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
    """Of those who wait for the reply: whether there is one."""

    def fail(self, error: Exception) -> None:
        """There will be no reply."""
        self.reply.set_exception(error)
        self.reply.exception()  # marks it as retrieved, since it may never be awaited
        self._wake()

    def succeed(self, reply: Reply) -> None:
        """This is the reply."""
        self.reply.set_result(reply)
        self._wake()

    def _wake(self) -> None:
        for waiter in self.waiters:
            set_once(waiter, True)

    async def settled(self, patience: float | None) -> bool:
        """Wait for the reply, at most `patience` seconds. Whether there is one, or will be none.

        The waiter runs in the loop's next round. With `asyncio.wait_for` and `asyncio.shield`, it would take two more.
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


class Pieces:
    """The output of a request in pieces, of which the caller may be told as they arrive.

    Args:
        on_piece: The caller's function; None for none.
    """

    def __init__(self, on_piece: Callable[[bytes], None] | None) -> None:
        self._on_piece, self._data = on_piece, bytearray()
        self._error: Exception | None = None

    def take(self, piece: bytes) -> None:
        """Add a piece. An error of the caller's function is kept: raised here, it would end the channel."""
        self._data += piece
        if self._on_piece is not None and self._error is None:
            try:
                self._on_piece(piece)
            except Exception as error:
                self._error = error

    def joined(self) -> bytes:
        """The pieces in one. Raises what the caller's function has raised."""
        if self._error is not None:
            raise self._error
        return bytes(self._data)


def set_once(future: asyncio.Future[bool], value: bool) -> None:
    """Set a result, unless there is one or the future was cancelled."""
    if not future.done():
        future.set_result(value)


class Channel(asyncio.Protocol):
    """One warden's requests and replies. Owns its socket: closing the channel, or losing it, ends the warden.

    Args:
        name: The sandbox's name, for messages.
        read_errors: The warden's stderr, if it does not come over the socket; None for a socket of Docker's.
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
        """Why the warden could not continue, if it reported that."""
        self.memory_full = False
        """Whether the warden's last report says that half of the sandbox's own memory is in use."""

    @classmethod
    async def open(cls, sock: socket.socket, name: str, read_errors: Callable[[], bytes] | None = None) -> Channel:
        """Take over a connected socket. The warden behind it need not run yet. Arguments as for the class."""
        sock.setblocking(False)
        close_in_children(sock)
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
        """Send a message that has no reply. Nothing happens if the warden is gone."""
        if self._transport is not None:
            self._transport.write(pack(kind, header, body))

    async def wait(self, request: Request, patience: float | None) -> Reply:
        """Wait for the final reply to a request.

        Args:
            request: The request.
            patience: Seconds after which a silent warden counts as lost; None for no limit.

        Raises:
            SandboxLost: The warden is gone or silent. If it is silent, the channel stays open: see `give_up`.
            OSError: The warden could not do it; the errno is the sandbox's.
        """
        # Where this process stood still itself, what came meanwhile is read in the second wait.
        if not await request.settled(patience) and not await request.settled(SECOND_WAIT):
            raise SandboxLost(f"sandbox {self.name} has not answered for {patience:g} s{self._stderr()}")
        return request.reply.result()

    @property
    def idle(self) -> bool:
        """Whether there is no unanswered request."""
        return not self._unanswered

    def close(self) -> None:
        """End the channel, and with it the warden. Idempotent."""
        self.give_up(f"sandbox {self.name} is closed")

    def give_up(self, reason: str) -> None:
        """End it. Every unanswered or later request fails with the first reason given."""
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
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
