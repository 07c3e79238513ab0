"""Sandboxes in Docker containers.

Who owns what: `DockerSandboxes` owns its client and every sandbox it made; a `DockerSandbox` owns its container and the
socket to the warden in it. The container runs no longer than that socket lives: closing it, an exception, Ctrl-C or
SIGKILL of this process all close it, the warden sees the end of its stdin, and Docker removes the container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..errors import SandboxLost
from .client import DockerClient
from .container import DockerSandbox
from .image import build_from, find_image
from .protocol import SandboxProvider, SandboxSpec


class DockerSandboxes(SandboxProvider):
    """Makes sandboxes in containers of the local (or ``DOCKER_HOST``'s) daemon.

    Args:
        image: Image for specs that name none; None for the package's own simulation image.

    Example:
        async with DockerSandboxes() as provider:
            sandbox = await provider.create()
            print((await sandbox.run("iverilog -V | head -1")).output)
    """

    def __init__(self, image: str | None = None) -> None:
        self._image = image
        self._client = DockerClient()
        self._sandboxes: set[DockerSandbox] = set()
        self._building = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> DockerSandboxes:
        return self

    async def create(self, spec: SandboxSpec | None = None) -> DockerSandbox:
        """Start a sandbox. See `SandboxProvider.create`."""
        if self._closed:
            raise SandboxLost("this provider is closed; make another DockerSandboxes")
        spec = spec or SandboxSpec()
        sandbox = DockerSandbox(self._client, spec, spec.image or self._image, self._sandboxes.discard)
        self._sandboxes.add(sandbox)
        try:
            await sandbox.open()
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def image(self) -> str:
        """The id of the image of specs that name none. See `SandboxProvider.image`."""
        return self._image if self._image else await self._client.call(lambda: find_image(self._client.api()))

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        """The id of an image built from a folder of files. See `SandboxProvider.build_image`."""
        async with self._building:
            return await self._client.call(lambda: build_from(self._client.api(), files, dockerfile))

    async def close(self) -> None:
        """Close every sandbox that is still open. Idempotent."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))
        self._client.close()

    def abandon(self) -> None:
        """End every sandbox without its event loop, which has been closed."""
        self._closed = True
        for sandbox in list(self._sandboxes):
            sandbox.abandon()
        self._sandboxes.clear()

    def client(self) -> Any:
        """docker-py's low-level client, connected at first use."""
        return self._client.api()
