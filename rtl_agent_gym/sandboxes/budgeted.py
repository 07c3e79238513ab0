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

CLOSED = "this provider of sandboxes is closed; make another one"

MadeT = TypeVar("MadeT", bound=WardenSandbox)


@dataclass
class _Reservation:
    permits: Permits
    memory: int

    def release(self) -> None:
        self.permits.give_back(self.memory)

    def move_to(self, permits: Permits) -> None:
        """Hold it there instead, if it is free there."""
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

    async def _ready_for(self, spec: SandboxSpec) -> Budget:
        """The budget, if there may be a sandbox of this kind. Raises `SandboxError`."""
        return await self.budget()

    def _make(self, spec: SandboxSpec) -> MadeT:
        """A sandbox that has not been started. It calls `_ended` when it has ended."""
        raise NotImplementedError

    async def _started(self) -> None:
        """A sandbox has been started."""

    async def create(self, spec: SandboxSpec | None = None) -> MadeT:
        spec = spec or SandboxSpec()
        budget = await self._ready_for(spec)
        permits = budget.permits["scoring" if spec.for_grading else spec.role]
        reservation = _Reservation(permits, budget.memory(spec))
        await reservation.permits.take(reservation.memory)
        async with contextlib.AsyncExitStack() as stack:
            if spec.role == "agent":
                try:
                    await stack.enter_async_context(budget.promised(reservation.memory))
                except BaseException:
                    reservation.release()
                    raise
            return await self._open(spec, budget, reservation)

    async def create_ahead(self, spec: SandboxSpec) -> MadeT:
        budget = await self._ready_for(spec)
        reservation = _Reservation(budget.permits["waiting"], budget.memory(spec))
        fits = spec.role == "scoring" or not budget.shortage(reservation.memory)
        if not fits or not reservation.permits.try_take(reservation.memory):
            raise SandboxError("there is no room for another sandbox that is started in advance")
        return await self._open(spec, budget, reservation)

    async def _open(self, spec: SandboxSpec, budget: Budget, reservation: _Reservation) -> MadeT:
        """Start a sandbox; what has been reserved for it is released when it has ended."""
        sandbox = self._make(spec)
        self._sandboxes[sandbox] = reservation
        try:
            async with budget.starting():
                if self._closed:
                    raise SandboxLost(CLOSED)
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
                reservation.move_to(self._known_budget().permits["agent"])

    def _known_budget(self) -> Budget:
        """The budget, once it is known."""
        raise NotImplementedError

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
