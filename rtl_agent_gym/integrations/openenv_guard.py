"""Who may use the server of ``rtl-agent-gym serve``, and when an idle connection ends.

The types are those of the ASGI specification: https://asgi.readthedocs.io/en/latest/specs/main.html
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

MAX_BODY = 64 << 10
"""Bytes of an HTTP request's body."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Refuses requests without the token, requests from web pages, and long bodies; ends connections that are idle.

    A browser lets any page open a WebSocket to this machine, but names the page in the header ``Origin``, which no
    trainer sends.
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
        if b"origin" in headers:
            return 403
        if self._token is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._token):
            return 401
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit() or int(length) > MAX_BODY:
            return 413
        return None


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
