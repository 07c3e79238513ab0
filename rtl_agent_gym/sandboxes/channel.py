"""The client's end of the conversation with a warden: requests and replies over one hijacked Docker socket.

Docker carries a container's stdout and stderr as frames of its own (stream, three zero bytes, length; then the
payload); inside its stdout lie the warden's frames (`warden/loop.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import SandboxLost
from .warden.relay import HEADER

Piece = Callable[[bytes], None]

_open_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child must not keep a sandbox alive that its parent meant to end with itself."""
    for sock in list(_open_sockets):
        descriptor = sock.detach()
        if descriptor >= 0:  # closed ones stay in the set until they are collected
            with contextlib.suppress(OSError):
                os.close(descriptor)


os.register_at_fork(after_in_child=_close_in_child)


@dataclass
class Reply:
    """The end of one request."""

    header: dict[str, Any]
    body: bytes


@dataclass
class Pending:
    """A request under way."""

    number: int
    channel: Channel
    future: asyncio.Future[Reply]
    on_piece: Piece | None = None
    pieces: list[bytes] = field(default_factory=list)

    async def reply(self, patience: float) -> Reply:
        """Wait for the reply; see `Channel.request`."""
        return await self.channel.wait(self, patience)


class Channel(asyncio.Protocol):
    """One warden's requests and replies. Owns its socket: closing the channel, or losing it, ends the warden.

    Args:
        name: What to call the sandbox in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._raw, self._frames, self._errors = bytearray(), bytearray(), bytearray()
        self._ids = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._lost: str | None = None
        self.broken: str | None = None
        """Why the warden could not go on, in its own words; None where it has said nothing of the kind."""
        self.memory_full = False
        """Whether the warden has last said that the sandbox's own memory is full."""
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._closed = asyncio.Event()

    @classmethod
    async def open(cls, sock: socket.socket, name: str) -> Channel:
        """Take over a connected socket of Docker's. `greeting` waits for the warden behind it."""
        sock.setblocking(False)
        _open_sockets.add(sock)
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(name), sock=sock)
        channel._socket = sock
        channel._pending[0] = Pending(0, channel, loop.create_future())
        return channel

    async def greeting(self, timeout: float) -> None:
        """Wait until the warden says that it is there.

        Raises:
            SandboxLost: It said nothing within `timeout` seconds, or ended.
        """
        pending = self._pending.get(0)
        if pending is None:
            return
        try:
            await asyncio.wait_for(asyncio.shield(pending.future), timeout)
        except TimeoutError:
            raise SandboxLost(f"sandbox {self.name} did not start within {timeout:g} s{self._said()}") from None

    async def request(
        self, kind: bytes, header: dict[str, Any], body: bytes = b"", *, patience: float, on_piece: Piece | None = None
    ) -> Reply:
        """Send a request and wait for its reply; output pieces are put before the reply's body.

        Args:
            patience: Seconds after which a silent warden counts as lost.
            on_piece: Told of each piece of output as it comes.

        Raises:
            SandboxLost: The warden is gone, or is silent. After its silence the channel is still open: see `give_up`.
            OSError: The warden could not do it; the errno is the one from inside.
        """
        return await self.wait(self.send(kind, header, body, on_piece), patience)

    def send(self, kind: bytes, header: dict[str, Any], body: bytes = b"", on_piece: Piece | None = None) -> Pending:
        """Send a request, and wait for nothing. Raises `SandboxLost` when the warden is gone."""
        if self._lost is not None or self._transport is None:
            raise SandboxLost(self._lost or f"sandbox {self.name} is closed")
        number = next(self._ids)
        pending = Pending(number, self, asyncio.get_running_loop().create_future(), on_piece)
        self._pending[number] = pending
        text = json.dumps({**header, "id": number}).encode()
        self._transport.write(struct.pack(HEADER, kind, len(text), len(body)) + text + body)
        return pending

    async def wait(self, pending: Pending, patience: float) -> Reply:
        """Wait for the reply to what `send` has sent. See `request`."""
        try:
            reply = await asyncio.wait_for(pending.future, patience)
        except TimeoutError:
            raise SandboxLost(f"sandbox {self.name} has not answered for {patience:g} s") from None
        finally:
            self._pending.pop(pending.number, None)
        if pending.pieces:
            reply.body = b"".join([*pending.pieces, reply.body])
        return reply

    def close(self) -> None:
        """End the channel, and with it the warden. Idempotent."""
        self.give_up(f"sandbox {self.name} is closed")

    def give_up(self, reason: str) -> None:
        """The same for a reason, which every later request is refused with."""
        self._lose(reason)

    def abandon(self) -> None:
        """End it when its event loop cannot any more."""
        if self._socket is not None:
            self._socket.close()

    @property
    def lost(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._lost is not None

    # What follows is called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=1 << 26)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose(f"sandbox {self.name} went away{f' ({exc})' if exc else ''}{self._said()}")

    def data_received(self, data: bytes) -> None:
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
        self._take_frames()

    def _take_frames(self) -> None:
        start, fixed = 0, struct.calcsize(HEADER)
        while len(self._frames) - start >= fixed:
            kind, header_size, body_size = struct.unpack_from(HEADER, self._frames, start)
            body_at = start + fixed + header_size
            if len(self._frames) < body_at + body_size:
                break
            header = json.loads(self._frames[start + fixed : body_at])
            body = bytes(self._frames[body_at : body_at + body_size])
            start = body_at + body_size
            self._take(kind, header, body)
        del self._frames[:start]

    def _take(self, kind: bytes, header: dict[str, Any], body: bytes) -> None:
        if kind == b"b":
            self.broken = str(header["message"])
            return
        if kind == b"m":
            self.memory_full = bool(header["full"])
            return
        pending = self._pending.get(header["id"])
        if pending is None or pending.future.done():
            return
        if kind == b"o":
            pending.pieces.append(body)
            if pending.on_piece is not None:
                pending.on_piece(body)
        elif kind == b"e":
            pending.future.set_exception(OSError(header.get("errno") or 0, header["message"]))
        else:
            pending.future.set_result(Reply(header, body))

    def _said(self) -> str:
        text = bytes(self._errors).decode(errors="replace").strip()
        return f"; it said: {text}" if text else ""

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            for pending in self._pending.values():
                if not pending.future.done():
                    pending.future.set_exception(SandboxLost(reason))
                    pending.future.exception()  # seen: nobody need await it
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
