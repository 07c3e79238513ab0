"""Who may use the server of ``rtl-agent-gym serve``, and when its idle connections end.

The types are those of the ASGI specification: https://asgi.readthedocs.io/en/latest/specs/main.html
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from ..evaluation.viewer.page import names_this_machine

MAX_BODY = 64 << 10
"""Bytes of an HTTP request's body."""
FIRST_REQUEST = 10.0
"""Seconds that a new connection has for its first request."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Refuses requests without the token, requests from web pages, and long bodies; ends WebSockets that are idle.

    A browser lets any page open a WebSocket to this machine, but names the page in the header ``Origin``, which no
    trainer sends. It sends none with a page's own address, which may resolve to this machine (DNS rebinding), so
    without a token ``Host`` must name this machine.
    """

    def __init__(self, app: App, token: str | None, idle: float) -> None:
        self._app, self._token, self._idle = app, None if token is None else f"Bearer {token}".encode(), idle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        status = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if status is None and scope["type"] == "websocket":
            send = _until_gone(send)
            await self._app(scope, _unless_idle(receive, send, self._idle) if self._idle else receive, send)
        elif status is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the caller reads 403
        else:
            await send({"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": b""})

    def _refusal(self, scope: Scope) -> int | None:
        headers = dict(scope["headers"])
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if b"origin" in headers or (self._token is None and not names_this_machine(*hosts)):
            return 403
        if self._token is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._token):
            return 401
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit() or int(length) > MAX_BODY:
            return 413
        return None


class NewConnections:
    """The connections that have sent no request yet. One more than `most` closes the oldest.

    So they never take the places of callers that `Guard` admits; it closes the connection of any other request.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._deadlines: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def add(self, transport: asyncio.Transport) -> None:
        """Close this connection after `FIRST_REQUEST` seconds, unless `remove` is called first."""
        while len(self._deadlines) >= self._most:
            oldest = next(iter(self._deadlines))
            self.remove(oldest)
            oldest.abort()
        self._deadlines[transport] = asyncio.get_running_loop().call_later(FIRST_REQUEST, transport.abort)

    def remove(self, transport: asyncio.Transport) -> None:
        """It has sent a request, or is closed. Idempotent."""
        if (deadline := self._deadlines.pop(transport, None)) is not None:
            deadline.cancel()


class Connection(H11Protocol):
    """uvicorn's connection, among the new ones until its first request is complete."""

    def __init__(self, *, new: NewConnections, **options: Any) -> None:
        super().__init__(**options)
        self._new = new

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._new.add(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.headers is not None:
            self._new.remove(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._new.remove(self.transport)
        super().connection_lost(exc)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """A filter of uvicorn's log, which has a traceback for a message that is not UTF-8, the caller's fault."""
    return record.exc_info is None or not isinstance(record.exc_info[1], UnicodeDecodeError)


def _until_gone(send: Send) -> Send:
    """Send until the caller is gone, which OpenEnv then learns where it receives, and not amid a turn's answer."""
    gone = False

    async def send_or_drop(message: Scope) -> None:
        nonlocal gone
        try:
            if not gone:
                await send(message)
        except OSError:
            gone = True

    return send_or_drop


def _unless_idle(receive: Receive, send: Send, seconds: float) -> Receive:
    """Receive a WebSocket's messages; if none comes for so many seconds, close it, as if the caller had left."""
    closed: Scope = {}

    async def receive_in_time() -> Scope:
        nonlocal closed
        if not closed:
            try:
                return await asyncio.wait_for(receive(), seconds)
            except TimeoutError:
                closed = {"type": "websocket.disconnect", "code": 1001, "reason": f"idle for {seconds:g} s"}
                await send({"type": "websocket.close", "code": 1001, "reason": closed["reason"]})
        return closed

    return receive_in_time
