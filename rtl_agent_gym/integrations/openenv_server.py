"""The server of ``rtl-agent-gym serve``: what it serves of OpenEnv's routes, and how it starts and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.types import ServerMode

from ..episodes.rewards import Reward
from ..episodes.rules import EpisodeConfig
from ..episodes.runtime import acquire
from ..errors import UsageError
from ..evaluation.viewer.page import is_loopback
from ..problems import Problem
from .openenv import RTLAction, RTLObservation, ServedEnvironment
from .openenv_guard import App, Connection, Guard, NewConnections, is_worth_logging

NAME = "rtl"
"""The environment's name in OpenEnv's paths of tasks."""
MAX_MESSAGE = 8 << 20
"""Bytes of the longest message that the server reads; a longer one ends its connection. No model's turn is as long."""
MIN_TOKEN = 16
"""Characters of the shortest token."""
ENDING = 30
"""Seconds that running turns have when the server ends."""
OTHERS = 256
"""Connections beside those of sessions: that have sent no request yet, and as many again that have."""

_ROUTES = {"/ws", "/health", "/schema", "/metadata", "/list_environments"}
"""OpenEnv's routes that are served, beside those of tasks. Its other ones begin an episode for each request."""


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
        if self.token is None and not is_loopback(self.host):
            raise UsageError(
                f"host {self.host} lets other machines call: whoever reaches it can run commands in sandboxes, so it "
                "needs a token"
            )
        if self.token is not None and (len(self.token) < MIN_TOKEN or not self.token.isascii()):
            raise UsageError(f"token must have at least {MIN_TOKEN} characters, all of them ASCII")


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
    most = config.max_sessions + OTHERS  # as many may connect at the same moment
    options = uvicorn.Config(
        make_app(config),
        http=partial(Connection, new=NewConnections(most)),
        log_level="warning",
        ws_max_size=MAX_MESSAGE,
        limit_concurrency=2 * most,
        timeout_graceful_shutdown=ENDING,
        proxy_headers=False,
        server_header=False,
    )
    logging.getLogger("uvicorn.error").addFilter(is_worth_logging)
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
