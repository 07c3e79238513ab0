"""The client's end of the conversation with a warden: requests and replies over one hijacked Docker socket.

Docker carries a container's stdout and stderr as frames of its own (stream, three zero bytes, length; then the
payload); inside its stdout lie the warden's frames (`warden/frames.py`).
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
from dataclasses import dataclass
from typing import Any

from ..errors import SandboxLost
from .warden.frames import pack, split, unpack

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
    """The final reply to a request."""

    header: dict[str, Any]
    body: bytes


@dataclass
class Pending:
    """A request that has no final reply yet."""

    number: int
    future: asyncio.Future[Reply]
    on_piece: Piece


class Channel(asyncio.Protocol):
    """One warden's requests and replies. Owns its socket: closing the channel, or losing it, ends the warden.

    Args:
        name: The sandbox's name, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._raw, self._frames, self._errors = bytearray(), bytearray(), bytearray()
        self._ids = itertools.count(1)
        self._greeting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending = {0: Pending(0, self._greeting, lambda piece: None)}
        self._transport: asyncio.Transport | None = None
        self._lost: str | None = None
        self.broken: str | None = None
        """Why the warden could not continue, if it reported that."""
        self.memory_full = False
        """Whether the warden's last report says that the sandbox's own memory is full."""

    @classmethod
    async def open(cls, sock: socket.socket, name: str) -> Channel:
        """Take over a connected socket of Docker's. `greeting` waits for the warden behind it."""
        sock.setblocking(False)
        _open_sockets.add(sock)
        _, channel = await asyncio.get_running_loop().create_connection(lambda: cls(name), sock=sock)
        return channel

    async def greeting(self, timeout: float) -> None:
        """Wait for the warden's first message.

        Raises:
            SandboxLost: There was none within `timeout` seconds, or the warden ended.
        """
        try:
            await asyncio.wait_for(asyncio.shield(self._greeting), timeout)
        except TimeoutError:
            raise SandboxLost(f"sandbox {self.name} did not start within {timeout:g} s{self._stderr()}") from None

    async def request(
        self,
        kind: bytes,
        header: Mapping[str, Any],
        body: bytes = b"",
        *,
        patience: float | None,
        on_piece: Piece | None = None,
    ) -> Reply:
        """Send a request and wait for its reply; output pieces are put before the reply's body.

        Args:
            patience: Seconds after which a silent warden counts as lost; None for no limit.
            on_piece: Called with each piece of output as it arrives.

        Raises:
            SandboxLost: The warden is gone or silent. If it is silent, the channel stays open: see `give_up`.
            OSError: The warden could not do it; the errno is the sandbox's.
        """
        pieces: list[bytes] = []

        def take(piece: bytes) -> None:
            pieces.append(piece)
            if on_piece is not None:
                on_piece(piece)

        reply = await self.wait(self.send(kind, header, body, take), patience)
        return Reply(reply.header, b"".join([*pieces, reply.body]))

    def send(self, kind: bytes, header: Mapping[str, Any], body: bytes, on_piece: Piece) -> Pending:
        """Send a request without waiting. Raises `SandboxLost` when the warden is gone."""
        number = next(self._ids)
        pending = Pending(number, asyncio.get_running_loop().create_future(), on_piece)
        self.tell(kind, {**header, "id": number}, body)
        self._pending[number] = pending
        return pending

    def tell(self, kind: bytes, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message that has no reply. Raises `SandboxLost` when the warden is gone."""
        if self._lost is not None or self._transport is None:
            raise SandboxLost(self._lost or f"sandbox {self.name} is closed")
        self._transport.write(pack(kind, header, body))

    async def wait(self, pending: Pending, patience: float | None) -> Reply:
        """Wait for the reply to a request of `send`. See `request`."""
        try:
            return await asyncio.wait_for(asyncio.shield(pending.future), patience)
        except TimeoutError:
            raise SandboxLost(f"sandbox {self.name} has not answered for {patience:g} s") from None

    @property
    def idle(self) -> bool:
        """Whether every request has had its reply."""
        return not self._pending

    def close(self) -> None:
        """End the channel, and with it the warden. Idempotent."""
        self.give_up(f"sandbox {self.name} is closed")

    def give_up(self, reason: str) -> None:
        """End it. Every pending or later request fails with the first reason given."""
        if self._lost is None:
            self._lost = reason
            for pending in self._pending.values():
                pending.future.set_exception(SandboxLost(reason))
                pending.future.exception()  # marks it as retrieved, since nobody may await it
            self._pending.clear()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # The event loop calls the following methods.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=1 << 26)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.give_up(f"sandbox {self.name} went away{f' ({exc})' if exc else ''}{self._stderr()}")

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
        for frame in split(self._frames):
            self._take(*unpack(frame))

    def _take(self, kind: bytes, header: dict[str, Any], body: bytes) -> None:
        if kind == b"b":
            self.broken = str(header["message"])
            return
        if kind == b"m":
            self.memory_full = bool(header["full"])
            return
        number = header.pop("id")
        if number not in self._pending:
            return
        if kind == b"o":
            self._pending[number].on_piece(body)
            return
        future = self._pending.pop(number).future
        if kind == b"e":
            future.set_exception(OSError(header.get("errno") or 0, header["message"]))
            future.exception()  # marks it as retrieved, since nobody may await it
        else:
            future.set_result(Reply(header, body))

    def _stderr(self) -> str:
        text = bytes(self._errors).decode(errors="replace").strip()
        return f"; it said: {text}" if text else ""
