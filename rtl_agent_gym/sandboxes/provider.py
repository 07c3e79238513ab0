"""Makes sandboxes in Docker containers, within the budget of the daemon's machine.

`DockerSandboxes` owns its client and every sandbox that it made.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from ..errors import ImageError, SandboxError, SandboxLost
from ..visible import plural
from .admission import Budget, given_limits, read_limits, require_enforced
from .budgeted import CLOSED, BudgetedSandboxes
from .client import OWNER_LABEL, DockerClient, owner_label, owner_lives, sweep
from .container import DockerSandbox
from .daemon import connect, docker_errors
from .image import checked_content, content_of, find_image
from .image_build import build_from
from .protocol import SandboxSpec

BUILDS = 3
"""Failed builds of an image after which it is not built again for `BUILD_PAUSE` seconds."""
BUILD_PAUSE = 600.0
TIDY = 600.0
"""Seconds between two searches for containers without an owner."""
MOST_NAMED = 5
"""Other processes that a warning names, at most."""


class DockerSandboxes(BudgetedSandboxes[DockerSandbox]):
    """Makes sandboxes in containers of the local (or ``DOCKER_HOST``'s) daemon.

    Args:
        image: Image for specs that name none; None for the package's own simulation image.

    Example:
        async with DockerSandboxes() as provider:
            sandbox = await provider.create()
            print((await sandbox.run("iverilog -V | head -1")).output)
    """

    def __init__(self, image: str | None = None) -> None:
        super().__init__()
        self._image = image
        self._client = DockerClient()
        self._building = asyncio.Lock()
        self._unbuildable: dict[str, tuple[int, float, str]] = {}
        """By content: how often a build failed, when, and why."""
        self._tidied = time.monotonic()  # a client does so when it connects

    async def _tidy(self) -> None:
        if time.monotonic() - self._tidied > TIDY:
            self._tidied = time.monotonic()
            await self._client.call(lambda: sweep(self._client.docker().api, podman=self._client.podman))

    async def budget(self) -> Budget:
        """The budget of the daemon's machine. Raises `DaemonError`, and `SandboxLost` if this provider is closed."""
        if self._closed:
            raise SandboxLost(CLOSED)
        return await self._client.budget()

    async def _ready_for(self, spec: SandboxSpec) -> Budget:
        budget = await self.budget()
        await self._tidy()
        if spec.role == "scoring":
            require_enforced(self._client.missing_limits)
        return budget

    def _make(self, spec: SandboxSpec) -> DockerSandbox:
        return DockerSandbox(self._client, spec, spec.image or self._image, self._ended)

    async def _started(self) -> None:
        await self._client.remove_left()

    def _known_budget(self) -> Budget:
        return self._client.known_budget

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
        await super().close()
        await self._client.remove_left()
        self._client.close()

    def client(self) -> Any:
        """docker-py's low-level client, connected at first use."""
        return self._client.docker().api


def other_owners() -> dict[str, int]:
    """The number of running containers of each other process at the daemon; ``host:pid`` names a process.

    Raises:
        SandboxError: The daemon does not answer.
    """
    with docker_errors(), closing(connect()) as client:
        api: Any = client.api
        owners = [found["Labels"][OWNER_LABEL] for found in api.containers(filters={"label": OWNER_LABEL})]
    return dict(Counter(owner for owner in owners if owner != owner_label() and owner_lives(owner)))


def warning_of_others(option: str, limits: str = "") -> str:
    """A warning if other processes have containers there, and the user has not limited this one; empty otherwise.

    It is also empty if the daemon does not answer: a run that needs it says so itself.

    Args:
        option: The name of the run's option for limits.
        limits: Its value.

    Raises:
        UsageError: The user's limits cannot be read.
    """
    if {"memory", "cpus"} & (given_limits() | read_limits(limits, option)).keys():
        return ""
    try:
        owners = other_owners()
    except SandboxError:
        return ""
    if not owners:
        return ""
    named = ", ".join(sorted(owners)[:MOST_NAMED]) + (", …" if len(owners) > MOST_NAMED else "")
    others = "another process" if len(owners) == 1 else f"{len(owners)} other processes"
    return (
        f"{plural(sum(owners.values()), 'container')} of {others} on this Docker host ({named}), and each process "
        f"plans with the whole machine; give each its part, with {option}, such as memory=8G,cpus=2"
    )
