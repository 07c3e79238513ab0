"""The server of ``rtl-agent-gym serve``: OpenEnv's routes, who may use them, and how it starts and ends."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.types import ServerMode

from ..episodes.rewards import Reward
from ..episodes.rules import EpisodeConfig
from ..episodes.runtime import acquire
from ..errors import UsageError
from ..problems import Problem
from .openenv import RTLAction, RTLObservation, ServedEnvironment

NAME = "rtl"
"""The environment's name in OpenEnv's paths of tasks."""
MAX_MESSAGE = 8 << 20
"""Bytes of the longest message that the server reads; a longer one ends its connection. No model's turn is as long."""
MAX_BODY = 64 << 10
"""Bytes of an HTTP request's body."""
MIN_TOKEN = 16
"""Characters of the shortest token."""
ENDING = 30
"""Seconds that running turns have when the server ends."""

_ROUTES = {"/ws", "/health", "/schema", "/metadata", "/list_environments"}
"""OpenEnv's routes that are served, beside those of tasks. Its other ones begin an episode for each request."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class ServerConfig:
    """What is served, where, and to whom.

    Raises:
        UsageError: The address is not this machine's own and there is no token, or the token is short.
    """

    problems: Sequence[Problem]
    """Those that can be scored here."""
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    """The rules of the episodes."""
    reward: Reward = None
    """How the score becomes a reward; see `read_reward`."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8000
    """0 takes a free one."""
    max_sessions: int = 64
    """Connections at the same time; further ones are refused."""
    token: str | None = None
    """What callers must send as ``Authorization: Bearer TOKEN``; None lets every process of this machine call."""
    idle: float = 3600.0
    """Seconds without a message after which a connection is closed and its episode ends; 0 for no limit. A trainer that
    was stopped without closing its connections would keep its containers otherwise."""

    def __post_init__(self) -> None:
        if self.token is None and not _is_loopback(self.host):
            raise UsageError(
                f"host {self.host} lets other machines call: whoever reaches it can run commands in sandboxes, so it "
                "needs a token"
            )
        if self.token is not None and (len(self.token) < MIN_TOKEN or not self.token.isascii()):
            raise UsageError(f"token must have at least {MIN_TOKEN} characters, all of them ASCII")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_app(config: ServerConfig) -> App:
    """The application: OpenEnv's, behind `Guard`."""
    server = HTTPEnvServer(
        partial(ServedEnvironment, config.problems, config.episode, config.reward),
        RTLAction,
        RTLObservation,
        max_concurrent_envs=config.max_sessions,
        env_name=NAME,
    )
    app = FastAPI(openapi_url=None)
    server.register_routes(app, mode=ServerMode.PRODUCTION)
    app.router.routes[:] = [route for route in app.router.routes if _is_served(getattr(route, "path", ""))]
    return Guard(app, config.token, config.idle)


def _is_served(path: str) -> bool:
    return path in _ROUTES or path.startswith("/{env_name}/")


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


class _Server(uvicorn.Server):
    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # `serve` handles them, as containers have to end before the process


async def serve(config: ServerConfig, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM. Ends all containers.

    Args:
        config: What is served.
        on_ready: Called with the address.

    Raises:
        UsageError: The address cannot be listened on.
    """
    listening = _listen(config.host, config.port)
    options = uvicorn.Config(
        make_app(config),
        log_level="warning",
        ws_max_size=MAX_MESSAGE,
        limit_concurrency=config.max_sessions + 32,
        timeout_graceful_shutdown=ENDING,
        proxy_headers=False,
        server_header=False,
    )
    server, loop = _Server(options), asyncio.get_running_loop()
    lease = acquire()  # scorers stay ready between episodes
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.handle_exit, number, None)
        host, port = listening.getsockname()[:2]
        on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        await server.serve(sockets=[listening])
    finally:
        listening.close()
        await lease.release()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"host {host}, port {port}: cannot listen there: {error.strerror or error}") from error
