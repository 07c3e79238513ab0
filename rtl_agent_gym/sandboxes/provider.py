"""Makes sandboxes in Docker containers, within the budget of the daemon's machine.

`DockerSandboxes` owns its client and every sandbox that it made.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DaemonError, ImageError, SandboxError, SandboxLost
from ..metrics import STARTS
from .budget import Budget, Tokens
from .client import DockerClient, sweep
from .container import DockerSandbox
from .image import checked_content, content_of, find_image
from .image_build import build_from
from .limits import require_enforced
from .protocol import Sandbox, SandboxProvider, SandboxSpec

BUILDS = 3
"""Failed builds of an image after which it is not built again for `BUILD_PAUSE` seconds."""
BUILD_PAUSE = 600.0
TIDY = 600.0
"""Seconds between two searches for containers without an owner."""
CLOSED = "this provider is closed; make another DockerSandboxes"


@dataclass
class _Share:
    """The memory that a sandbox holds of the budget."""

    budget: Budget
    spec: SandboxSpec
    tokens: Tokens

    @property
    def memory(self) -> int:
        return self.budget.memory(self.spec)

    def move(self) -> None:
        """Hold it as a sandbox in use, if there is room among these."""
        tokens = self.budget.tokens[self.spec.role]
        if self.tokens is not tokens and tokens.try_take(self.memory):
            self.tokens.give_back(self.memory)
            self.tokens = tokens


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
        self._sandboxes: dict[DockerSandbox, _Share] = {}
        self._building = asyncio.Lock()
        self._unbuildable: dict[str, tuple[int, float, str]] = {}
        """By content: how often a build failed, when, and why."""
        self._closed = False
        self._tidied = time.monotonic()  # a client does so when it connects

    async def create(self, spec: SandboxSpec | None = None) -> DockerSandbox:
        spec = spec or SandboxSpec()
        budget = await self._ready_for(spec)
        await self._tidy()
        tokens, memory = budget.tokens[spec.role], budget.memory(spec)
        await tokens.take(memory)
        async with contextlib.AsyncExitStack() as stack:
            if spec.role == "agent":
                try:
                    await stack.enter_async_context(self._client.room.promised(memory))
                except BaseException:
                    tokens.give_back(memory)
                    raise
            return await self._open(spec, budget, tokens)

    async def create_ahead(self, spec: SandboxSpec) -> DockerSandbox:
        budget = await self._ready_for(spec)
        fits = spec.role == "scoring" or not self._client.room.short_of(budget.memory(spec))
        if not fits or not budget.tokens["waiting"].try_take(budget.memory(spec)):
            raise SandboxError("there is no room for another sandbox that is started in advance")
        return await self._open(spec, budget, budget.tokens["waiting"])

    def handed_out(self, sandbox: Sandbox) -> None:
        # Not one for gradings: pools keep some of these open after their use, in the place of those that are needed.
        share = self._sandboxes.get(sandbox) if isinstance(sandbox, DockerSandbox) else None
        if share is not None and share.spec.role == "agent":
            share.move()

    async def _tidy(self) -> None:
        """Remove containers without an owner, now and then."""
        if time.monotonic() - self._tidied > TIDY:
            self._tidied = time.monotonic()
            await self._client.call(lambda: sweep(self._client.docker().api, podman=self._client.podman))

    async def budget(self) -> Budget:
        """The budget of the daemon's machine. Raises `DaemonError`, and `SandboxLost` if this provider is closed."""
        if self._closed:
            raise SandboxLost(CLOSED)
        return await self._client.budget()

    async def _ready_for(self, spec: SandboxSpec) -> Budget:
        """The budget, if the daemon may have a sandbox of this kind. Raises `DaemonError`."""
        budget = await self.budget()
        if spec.role == "scoring":
            require_enforced(self._client.missing_limits)
        return budget

    async def _open(self, spec: SandboxSpec, budget: Budget, tokens: Tokens) -> DockerSandbox:
        """Start a sandbox whose memory has been taken from `tokens`; it is returned when the sandbox has ended."""
        sandbox = DockerSandbox(self._client, spec, spec.image or self._image, self._ended)
        self._sandboxes[sandbox] = _Share(budget, spec, tokens)
        try:
            async with budget.tokens["start"].held(1):
                if self._closed:
                    raise SandboxLost(CLOSED)
                await budget.breaker.ready()
                await sandbox.open()
                STARTS.labels(spec.role).inc()
            await self._client.remove_left()
        except BaseException as error:
            # Also one whose container starts and is silent, which keeps others from starting for a minute.
            if isinstance(error, DaemonError | SandboxLost) and not self._closed:
                budget.breaker.failed(error)
            await asyncio.shield(sandbox.close())
            raise
        budget.breaker.worked()
        return sandbox

    def _ended(self, sandbox: DockerSandbox) -> None:
        if (share := self._sandboxes.pop(sandbox, None)) is not None:
            share.tokens.give_back(share.memory)

    @contextlib.asynccontextmanager
    async def grading(self) -> AsyncIterator[None]:
        async with (await self._client.budget()).tokens["grading"].held(1):
            yield

    async def image(self) -> str:
        return self._image if self._image else await self._client.call(lambda: find_image(self._client.docker()))

    async def image_digest(self) -> str:
        def read() -> str:
            client = self._client.docker()
            if self._image is None:
                return checked_content(client, find_image(client)).digest
            return content_of(client, str(client.images.get(self._image).id)).digest

        return await self._client.call(read)

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        key = hashlib.sha256(repr((dockerfile, sorted(files.items()))).encode()).hexdigest()
        async with self._building:
            failures, when, why = self._unbuildable.get(key, (0, 0.0, ""))
            if failures >= BUILDS and time.monotonic() - when < BUILD_PAUSE:
                raise ImageError(f"not tried again, since {failures} builds failed, the last one with: {why}")
            try:
                image = await self._client.call(lambda: build_from(self._client.docker(), files, dockerfile))
            except ImageError as error:
                self._unbuildable[key] = (failures + 1, time.monotonic(), str(error))
                raise
            self._unbuildable.pop(key, None)
            return image

    async def close(self) -> None:
        """Close every sandbox that is still open. Idempotent."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))
        await self._client.remove_left()
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
