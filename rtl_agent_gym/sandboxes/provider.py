"""Makes sandboxes in Docker containers, within the budget of the daemon's machine.

`DockerSandboxes` owns its client and every sandbox that it made.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from ..errors import SandboxError, SandboxLost
from ..metrics import STARTS
from .budget import Budget, Tokens
from .client import DockerClient
from .container import DockerSandbox
from .image import build_from, find_image
from .protocol import SandboxProvider, SandboxSpec

CLOSED = "this provider is closed; make another DockerSandboxes"


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
        self._sandboxes: dict[DockerSandbox, Callable[[], None]] = {}
        """With what returns its part of the budget."""
        self._building = asyncio.Lock()
        self._closed = False

    async def create(self, spec: SandboxSpec | None = None) -> DockerSandbox:
        spec, budget = spec or SandboxSpec(), await self.budget()
        await budget.tokens[spec.role].take(budget.memory(spec))
        return await self._open(spec, budget, budget.tokens[spec.role])

    async def create_ahead(self, spec: SandboxSpec) -> DockerSandbox:
        budget = await self.budget()
        if not budget.tokens["waiting"].try_take(budget.memory(spec)):
            raise SandboxError("there is no room for another sandbox that is started in advance")
        return await self._open(spec, budget, budget.tokens["waiting"])

    async def budget(self) -> Budget:
        """The budget of the daemon's machine. Raises `DaemonError`, and `SandboxLost` if this provider is closed."""
        if self._closed:
            raise SandboxLost(CLOSED)
        return await self._client.budget()

    async def _open(self, spec: SandboxSpec, budget: Budget, tokens: Tokens) -> DockerSandbox:
        """Start a sandbox whose memory has been taken from `tokens`; it is returned when the sandbox has ended."""
        sandbox = DockerSandbox(self._client, spec, spec.image or self._image, self._ended)
        self._sandboxes[sandbox] = functools.partial(tokens.give_back, budget.memory(spec))
        try:
            async with budget.tokens["start"].held(1):
                if self._closed:
                    raise SandboxLost(CLOSED)
                await sandbox.open()
                STARTS.labels(spec.role).inc()
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    def _ended(self, sandbox: DockerSandbox) -> None:
        if (give_back := self._sandboxes.pop(sandbox, None)) is not None:
            give_back()

    @contextlib.asynccontextmanager
    async def grading(self) -> AsyncIterator[None]:
        async with (await self._client.budget()).tokens["grading"].held(1):
            yield

    async def image(self) -> str:
        return self._image if self._image else await self._client.call(lambda: find_image(self._client.docker()))

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        async with self._building:
            return await self._client.call(lambda: build_from(self._client.docker(), files, dockerfile))

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
            self._ended(sandbox)

    def client(self) -> Any:
        """docker-py's low-level client, connected at first use."""
        return self._client.docker().api
