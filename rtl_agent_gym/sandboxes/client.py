"""The Docker daemon's client of one provider: connected at first use, its blocking calls made in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import docker.errors

from ..errors import DaemonError
from .daemon import connect, docker_errors
from .hosting import OWNER_LABEL, owner_lives, uid_range

START_LIMIT = 4
"""Containers that one process creates at the same time; the daemon manages about twenty starts a second in all."""

T = TypeVar("T")


class DockerClient:
    """Owns its connections and threads until `close`."""

    def __init__(self) -> None:
        self._client: docker.DockerClient | None = None
        self._connecting = threading.Lock()
        self._starters = ThreadPoolExecutor(START_LIMIT, thread_name_prefix="rtl-gym-docker")
        self._enders = ThreadPoolExecutor(START_LIMIT, thread_name_prefix="rtl-gym-docker-end")
        self._uids: set[int] = set()

    def docker(self) -> docker.DockerClient:
        """docker-py's client."""
        with self._connecting:
            if self._client is None:
                client = connect(timeout=120)
                self._client, self._uid_range = client, uid_range(client.api.info())
                _sweep(client.api)
        return self._client

    def api(self) -> Any:
        """docker-py's low-level client, connected at first use."""
        return self.docker().api

    async def call(self, work: Callable[[], T], *, ending: bool = False) -> T:
        """Run blocking Docker work in a thread. Creating never waits for ending. Raises `SandboxError`."""

        def translated() -> T:
            with docker_errors():
                return work()

        future = asyncio.get_running_loop().run_in_executor(self._enders if ending else self._starters, translated)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])  # a thread cannot be cancelled, so wait for its result
            raise

    def take_uid(self) -> int:
        """A user id that no other sandbox of this client has; see `hosting.UIDS`."""
        while (uid := secrets.choice(self._uid_range)) in self._uids:
            pass
        self._uids.add(uid)
        return uid

    def return_uid(self, uid: int) -> None:
        """Release the user id of a sandbox that has ended."""
        self._uids.discard(uid)

    def attach(self, container: str) -> socket.socket:
        """The raw stream of a container that has not been started. Its stdin ends when this one socket is closed."""
        stream = self.api().attach_socket(container, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        try:
            if not isinstance(stream, socket.SocketIO):
                raise DaemonError("cannot attach to containers at this DOCKER_HOST: use unix:// or tcp:// without TLS")
            return socket.socket(fileno=os.dup(stream.fileno()))
        finally:
            stream._response.close()
            stream.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._starters.shutdown(wait=False)
        self._enders.shutdown(wait=False)


def _sweep(api: Any) -> None:
    """Remove containers of clients that were killed between creating and starting them. Only then does a container
    outlive its owner.
    """
    for found in api.containers(all=True, filters={"label": OWNER_LABEL, "status": "created"}):
        if not owner_lives(found["Labels"][OWNER_LABEL]):
            with contextlib.suppress(docker.errors.APIError):
                api.remove_container(found["Id"], force=True)
