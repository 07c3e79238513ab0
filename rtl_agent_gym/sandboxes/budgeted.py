"""A provider of sandboxes within the budget of a machine: what `DockerSandboxes` and `NamespaceSandboxes` share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from ..errors import DaemonError, SandboxError, SandboxLost
from ..metrics import STARTS
from .admission import Budget, Permits
from .protocol import Sandbox, SandboxProvider, SandboxSpec
from .warden_sandbox import WardenSandbox

MadeT = TypeVar("MadeT", bound=WardenSandbox)


@dataclass
class _Reservation:
    budget: Budget
    permits: Permits
    memory: int

    def release(self) -> None:
        self.permits.give_back(self.memory)

    def move_to_agents(self) -> None:
        """Hold it among what agents use, if it is free there."""
        permits = self.budget.permits["agent"]
        if self.permits is not permits and permits.try_take(self.memory):
            self.release()
            self.permits = permits


class BudgetedSandboxes(SandboxProvider, Generic[MadeT]):
    """Reserves memory for each sandbox, bounds the starts, and owns what it started."""

    def __init__(self) -> None:
        self._sandboxes: dict[MadeT, _Reservation] = {}
        self._closed = False

    async def budget(self) -> Budget:
        """The budget of the machine. Raises `SandboxError`, such as `SandboxLost` if this provider is closed."""
        raise NotImplementedError

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxLost("this provider of sandboxes is closed; make another one")

    async def _require(self, spec: SandboxSpec) -> None:
        """Raise `SandboxError` if there may be no sandbox of this kind."""

    def _make(self, spec: SandboxSpec, budget: Budget) -> MadeT:
        """A sandbox that has not been started. It calls `_ended` when it has ended."""
        raise NotImplementedError

    async def _started(self) -> None:
        """A sandbox has been started."""

    async def create(self, spec: SandboxSpec | None = None) -> MadeT:
        spec = spec or SandboxSpec()
        budget = await self.budget()
        await self._require(spec)
        permits = budget.permits["scoring" if spec.for_grading else spec.role]
        reservation = _Reservation(budget, permits, budget.memory(spec))
        await permits.take(reservation.memory)
        async with contextlib.AsyncExitStack() as stack:
            if spec.role == "agent":
                try:
                    await stack.enter_async_context(budget.promised(reservation.memory))
                except BaseException:
                    reservation.release()
                    raise
            return await self._open(spec, reservation)

    async def create_ahead(self, spec: SandboxSpec) -> MadeT:
        budget = await self.budget()
        await self._require(spec)
        reservation = _Reservation(budget, budget.permits["waiting"], budget.memory(spec))
        fits = spec.role == "scoring" or not budget.shortage(reservation.memory)
        if not fits or not reservation.permits.try_take(reservation.memory):
            raise SandboxError("there is no room for another sandbox that is started in advance")
        return await self._open(spec, reservation)

    async def _open(self, spec: SandboxSpec, reservation: _Reservation) -> MadeT:
        """Start a sandbox; what has been reserved for it is released when it has ended."""
        budget = reservation.budget
        sandbox = self._make(spec, budget)
        self._sandboxes[sandbox] = reservation
        try:
            async with budget.starting():
                self._require_open()
                await sandbox.open()
                STARTS.labels(spec.role).inc()
            await self._started()
        except BaseException as error:
            # Also one that starts and is silent, which keeps others from starting for a minute.
            if isinstance(error, DaemonError | SandboxLost) and not self._closed:
                budget.start_failed(error)
            await asyncio.shield(sandbox.close())
            raise
        budget.start_worked()
        return sandbox

    def handed_out(self, sandbox: Sandbox) -> None:
        # Not one for gradings: pools keep some of these open after their use, in the place of those that are needed.
        if isinstance(sandbox, WardenSandbox) and sandbox.spec.role == "agent":
            reservation = cast(dict[Sandbox, _Reservation], self._sandboxes).get(sandbox)
            if reservation is not None:
                reservation.move_to_agents()

    def _ended(self, sandbox: MadeT) -> None:
        if (reservation := self._sandboxes.pop(sandbox, None)) is not None:
            reservation.release()

    @contextlib.asynccontextmanager
    async def grading(self) -> AsyncIterator[None]:
        async with (await self.budget()).permits["grading"].held(1):
            yield

    async def close(self) -> None:
        """Close every sandbox that is still open. Idempotent."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))

    def abandon(self) -> None:
        """End every sandbox without its event loop, which has been closed."""
        self._closed = True
        for sandbox in list(self._sandboxes):
            sandbox.abandon()
            self._ended(sandbox)
