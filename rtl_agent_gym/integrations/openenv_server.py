"""The server of ``rtl-agent-gym serve``: how it starts and ends, which of OpenEnv's routes it serves, and to whom.

The types of the guard are those of the ASGI specification: https://asgi.readthedocs.io/en/latest/specs/main.html
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.types import ServerMode
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..episodes.rules import EpisodeConfig, Reward
from ..episodes.runtime import acquire
from ..errors import UsageError
from ..evaluation.viewer.page import is_loopback, names_this_machine
from ..problems import Problem
from .openenv import RTLAction, RTLObservation, ServedEnvironment

NAME = "rtl"
"""The environment's name in OpenEnv's task paths."""
MAX_MESSAGE = 8 << 20
"""Size of the longest message that the server reads, in bytes; a longer one ends its connection. No model's turn is
this long."""
MIN_TOKEN = 16
"""Minimum length of a token, in characters."""
ENDING = 30
"""Seconds that running turns get to finish when the server ends."""
OTHERS = 256
"""Connections allowed beyond `max_sessions`; counted separately before and after a connection's first request."""

MAX_BODY = 64 << 10
"""Maximum size of an HTTP request's body, in bytes."""
FIRST_REQUEST = 10.0
"""Seconds that a new connection has for its first request."""
_ROUTES = {"/ws", "/health", "/schema", "/metadata", "/list_environments"}
"""OpenEnv's routes that are served, in addition to its task routes. Its others begin an episode for each request."""


@dataclass(frozen=True)
class ServerConfig:
    """What is served, where, and to whom.

    Raises:
        UsageError: Other machines can reach the address and there is no token, or the token is too short or not ASCII.
    """

    problems: Sequence[Problem]
    """Problems that can be scored here."""
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    """The rules of the episodes."""
    reward: Reward = None
    """How the score becomes a reward; see `read_reward`."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8000
    """0 takes a free port."""
    max_sessions: int = 64
    """Connections at the same time; further connections are refused."""
    token: str | None = None
    """What callers must send as ``Authorization: Bearer TOKEN``; None lets every process on this machine call."""
    idle: float = 3600.0
    """Seconds without a message after which a connection is closed and its episode ends; 0 for no limit. Otherwise a
    trainer that stopped without closing its connections would keep its containers."""

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise UsageError(
                f"host {self.host} lets other machines call, and every caller can run commands in sandboxes: set a "
                "token"
            )
        if self.token is not None and (len(self.token) < MIN_TOKEN or not self.token.isascii()):
            raise UsageError(f"token must have at least {MIN_TOKEN} characters, all of them ASCII")


def make_app(config: ServerConfig) -> ASGIApp:
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
    paths = [(getattr(route, "path", ""), route) for route in app.router.routes]
    served = [route for path, route in paths if path in _ROUTES or path.startswith("/{env_name}/")]
    app.router.routes[:] = served
    return Guard(app, config.token, config.idle)


class _Server(uvicorn.Server):
    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # `serve` handles them, since containers must end before the process


async def serve(config: ServerConfig, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM, then end all containers.

    Args:
        config: What is served.
        on_ready: Called with the address.

    Raises:
        UsageError: The address cannot be listened on.
    """
    listening = _listen(config.host, config.port)
    most = config.max_sessions + OTHERS  # this many may connect at the same moment
    options = uvicorn.Config(
        make_app(config),
        http=partial(Connection, new=NewConnections(most)),
        log_level="warning",
        ws_max_size=MAX_MESSAGE,
        ws_ping_timeout=config.idle or None,  # a caller with a busy event loop does not answer pings
        limit_concurrency=2 * most,
        timeout_graceful_shutdown=ENDING,
        proxy_headers=False,
        server_header=False,
    )
    logging.getLogger("uvicorn.error").addFilter(is_worth_logging)
    server, loop = _Server(options), asyncio.get_running_loop()
    async with acquire(sandbox=config.episode.sandbox.kind):  # scorers stay ready between episodes
        with listening:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, server.handle_exit, number, None)
            host, port = listening.getsockname()[:2]
            on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            await server.serve(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"host {host}, port {port}: cannot listen there: {error.strerror or error}") from error


class Guard:
    """Refuses requests without the token, requests from web pages, and long bodies; ends WebSockets that are idle.

    A browser lets any page open a WebSocket to this machine, but names the page in the header ``Origin``, which no
    trainer sends. It omits the header in requests to the page's own host, whose name may resolve to this machine (DNS
    rebinding); so without a token, ``Host`` must name this machine.
    """

    def __init__(self, app: ASGIApp, token: str | None, idle: float) -> None:
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
    """The connections that have sent no request yet, at most `most`: a further one closes the oldest.

    So they never take the places of callers that `Guard` admits. `Guard` closes the connections of all other requests.
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
        """Call this when the connection has sent a request or is closed. Idempotent."""
        if (deadline := self._deadlines.pop(transport, None)) is not None:
            deadline.cancel()


class Connection(H11Protocol):
    """uvicorn's connection, among the new connections until the headers of its first request have arrived."""

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
    """A filter of uvicorn's log that drops tracebacks for messages that are not UTF-8: those are the caller's fault."""
    return record.exc_info is None or not isinstance(record.exc_info[1], UnicodeDecodeError)


def _until_gone(send: Send) -> Send:
    """Drop messages once the caller is gone, so that OpenEnv notices it when receiving, not while answering a turn."""
    gone = False

    async def send_or_drop(message: Message) -> None:
        nonlocal gone
        try:
            if not gone:
                await send(message)
        except OSError:
            gone = True

    return send_or_drop


def _unless_idle(receive: Receive, send: Send, seconds: float) -> Receive:
    """Receive a WebSocket's messages; if none comes for `seconds`, close it, as if the caller had disconnected."""
    closed: Message = {}

    async def receive_in_time() -> Message:
        nonlocal closed
        if not closed:
            try:
                return await asyncio.wait_for(receive(), seconds)
            except TimeoutError:
                closed = {"type": "websocket.disconnect", "code": 1001, "reason": f"idle for {seconds:g} s"}
                await send({"type": "websocket.close", "code": 1001, "reason": closed["reason"]})
        return closed

    return receive_in_time
