"""What runs on a node: the owner of its Docker daemon's containers, budget and scorers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SandboxLost
from ..problems import Problem
from ..sandboxes import CommandResult, DockerSandboxes, FoundFiles, Sandbox, SandboxSpec
from ..sandboxes.budget import set_limits, usage
from ..scoring import RewardWeights, Scorer
from ..scoring.cache import default_cache_dir
from ..scoring.score import Score


@dataclass(frozen=True)
class Facts:
    """What a node says of itself."""

    host: str
    daemon: str
    """The address of its Docker daemon, as seen from there."""
    image: str
    """The id of its simulation image."""
    cpus: float
    """Submissions that it grades at the same time."""


class Machine:
    """A node's sandboxes and gradings; a Ray actor, whose methods run on one event loop.

    Whoever calls names a sandbox before it is made, so that it can be closed even if the answer never arrives.

    Args:
        limits: What sandboxes may use of the node; see `sandboxes.limits.read_limits`.
        waiting: Scoring sandboxes that are kept ready.
    """

    def __init__(self, limits: str = "", waiting: int = 4) -> None:
        set_limits(limits)
        self._provider = DockerSandboxes()
        self._waiting = waiting
        self._sandboxes: dict[str, asyncio.Task[Sandbox]] = {}
        self._scorers: dict[tuple[RewardWeights | None, bool], Scorer] = {}

    async def facts(self) -> Facts:
        """Connect, and describe the node. Raises `DaemonError` or `ImageError`."""
        image, budget = await self._provider.image(), await self._provider.budget()
        return Facts(socket.gethostname(), os.environ.get("DOCKER_HOST", ""), image, budget.limits.cpus)

    async def create(self, name: str, spec: SandboxSpec) -> tuple[str, str]:
        """Make a sandbox; returns its id and that of its image."""
        task: asyncio.Task[Sandbox] = asyncio.ensure_future(self._provider.create(spec))
        self._sandboxes[name] = task
        sandbox = await asyncio.shield(task)
        return sandbox.id, str(getattr(sandbox, "image_id", ""))

    async def run(self, name: str, command: str, timeout: float, max_output: int) -> CommandResult:
        """See `Sandbox.run`."""
        return await (await self._sandbox(name)).run(command, timeout=timeout, max_output=max_output)

    async def write_files(self, name: str, files: Mapping[str, str | bytes], options: Mapping[str, Any]) -> None:
        """See `Sandbox.write_files`."""
        await (await self._sandbox(name)).write_files(files, **options)

    async def read_files(self, name: str, paths: Sequence[str], options: Mapping[str, Any]) -> FoundFiles:
        """See `Sandbox.read_files`."""
        found = await (await self._sandbox(name)).read_files(paths, **options)
        return found if isinstance(found, FoundFiles) else FoundFiles(found)

    async def ping(self, name: str) -> None:
        """See `Sandbox.ping`."""
        await (await self._sandbox(name)).ping()

    async def close_sandbox(self, name: str) -> None:
        """End a sandbox, also one that is still starting or waits for its turn. Idempotent."""
        task = self._sandboxes.pop(name, None)
        if task is None:
            return
        if not task.done():
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await task.result().close()

    async def _sandbox(self, name: str) -> Sandbox:
        if name not in self._sandboxes:
            raise SandboxLost(f"{socket.gethostname()} has no sandbox {name}: it has been closed")
        return await asyncio.shield(self._sandboxes[name])

    async def score(
        self,
        problem: Problem,
        files: Mapping[str, str | bytes],
        timeout: float,
        seed: int | None,
        weights: RewardWeights | None,
        cached: bool,
    ) -> Score:
        """See `Scorer.score`. `cached` uses the node's cache of gradings."""
        key = (weights, cached)
        if key not in self._scorers:
            cache = default_cache_dir() if cached else None
            self._scorers[key] = Scorer(self._provider, weights=weights, cache=cache, waiting=self._waiting)
        return await self._scorers[key].score(problem, files, timeout, seed=seed)

    async def usage(self) -> dict[str, float]:
        """The state of the node's budget; see `Budget.usage`."""
        return usage()

    async def close(self) -> None:
        """End every container of this node."""
        for scorer in self._scorers.values():
            await scorer.close()
        await self._provider.close()
