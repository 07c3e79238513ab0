"""A sandbox provider that keeps to the machine's budget: the base of `DockerSandboxes` and `NamespaceSandboxes`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Generic, TypeVar, cast

from ..errors import DaemonError, ImageError, SandboxError, SandboxLost
from ..metrics import STARTS
from .admission import Budget, Permits
from .protocol import Sandbox, SandboxProvider, SandboxSpec
from .warden_sandbox import WardenSandbox

BUILDS = 3
"""Failed builds of an image after which it is not built again for `BUILD_PAUSE` seconds."""
BUILD_PAUSE = 600.0

MadeT = TypeVar("MadeT", bound=WardenSandbox)


class BudgetedSandboxes(SandboxProvider, Generic[MadeT]):
    """Reserves memory for each sandbox, limits simultaneous starts, and owns the sandboxes that it started."""

    def __init__(self) -> None:
        self._sandboxes: dict[MadeT, Permits] = {}
        """The permits from which each sandbox's memory was taken."""
        self._closed = False
        self._building = asyncio.Lock()
        self._unbuildable: dict[str, tuple[int, float, str]] = {}
        """By digest of the files: how often their build failed, when it last did, and why."""

    async def budget(self) -> Budget:
        """The budget of the machine. Raises `SandboxError`, such as `SandboxLost` if this provider is closed."""
        raise NotImplementedError

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxLost("this sandbox provider is closed; create a new one")

    async def _require(self, spec: SandboxSpec) -> None:
        """Raise `SandboxError` if this provider cannot start sandboxes of this spec."""

    def _make(self, spec: SandboxSpec, budget: Budget) -> MadeT:
        """A sandbox that has not been started yet. It calls `_ended` when it has ended."""
        raise NotImplementedError

    async def _started(self) -> None:
        """Called after a sandbox has been started."""

    async def create(self, spec: SandboxSpec | None = None) -> MadeT:
        spec = spec or SandboxSpec()
        budget = await self.budget()
        await self._require(spec)
        permits, memory = budget.permits[spec.room], budget.memory(spec)
        await permits.take(memory)
        async with contextlib.AsyncExitStack() as stack:
            if spec.room == "agent":
                try:
                    await stack.enter_async_context(budget.promised(memory))
                except BaseException:
                    permits.give_back(memory)
                    raise
            return await self._open(spec, budget, permits)

    async def create_ahead(self, spec: SandboxSpec) -> MadeT:
        budget = await self.budget()
        await self._require(spec)
        permits, memory = budget.permits["waiting"], budget.memory(spec)
        fits = spec.room == "scoring" or not budget.shortage(memory)
        if not fits or not permits.try_take(memory):
            raise SandboxError("the budget has no room to start another sandbox in advance")
        return await self._open(spec, budget, permits)

    async def _open(self, spec: SandboxSpec, budget: Budget, permits: Permits) -> MadeT:
        """Start a sandbox; its permits are returned when it has ended."""
        sandbox = self._make(spec, budget)
        self._sandboxes[sandbox] = permits
        try:
            async with budget.starting():
                self._require_open()
                await sandbox.open()
                STARTS.labels(spec.role).inc()
            await self._started()
        except BaseException as error:
            # Also if a started sandbox does not reply, which keeps others from starting for a minute.
            if isinstance(error, DaemonError | SandboxLost) and not self._closed:
                budget.start_failed(error)
            await asyncio.shield(sandbox.close())
            raise
        budget.start_worked()
        return sandbox

    def handed_out(self, sandbox: Sandbox) -> None:
        # Not for gradings: pools keep some used sandboxes open, which would then hold permits that new ones need.
        if isinstance(sandbox, WardenSandbox) and sandbox.spec.room == "agent":
            made, agents = cast(MadeT, sandbox), sandbox.budget.permits["agent"]
            permits, memory = self._sandboxes.get(made, agents), sandbox.budget.memory(sandbox.spec)
            if permits is not agents and agents.try_take(memory):
                permits.give_back(memory)
                self._sandboxes[made] = agents

    def _ended(self, sandbox: MadeT) -> None:
        if (permits := self._sandboxes.pop(sandbox, None)) is not None:
            permits.give_back(sandbox.budget.memory(sandbox.spec))

    @contextlib.asynccontextmanager
    async def grading(self) -> AsyncIterator[None]:
        async with (await self.budget()).permits["grading"].held(1):
            yield

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        key = hashlib.sha256(repr((dockerfile, sorted(files.items()))).encode()).hexdigest()
        async with self._building:
            failures, when, why = self._unbuildable.get(key, (0, 0.0, ""))
            if failures >= BUILDS and time.monotonic() - when < BUILD_PAUSE:
                raise ImageError(f"not built again for now, since {failures} builds failed, the last one with: {why}")
            try:
                image = await self._build_image(files, dockerfile)
            except ImageError as error:
                self._unbuildable[key] = (failures + 1, time.monotonic(), str(error))
                raise
            self._unbuildable.pop(key, None)
            return image

    async def _build_image(self, files: Mapping[str, bytes], dockerfile: str) -> str:
        """Build the image, or find an earlier build. Arguments and errors are those of `build_image`."""
        raise NotImplementedError

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))

    def abandon(self) -> None:
        """End every sandbox without its event loop, which has been closed."""
        self._closed = True
        for sandbox in list(self._sandboxes):
            sandbox.abandon()
            self._ended(sandbox)
