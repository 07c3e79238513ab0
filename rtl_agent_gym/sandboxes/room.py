"""Whether a machine has memory and disk for another agent's sandbox now, whatever the others were thought to need."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator

from ..errors import SandboxError
from .budget import Budget
from .groups import Groups, free_memory

logger = logging.getLogger(__name__)

SPARE = 0.05
"""Share of the limit that stays free for the growth of the sandboxes there are."""
LEAST_DISK = 512 << 20
"""Bytes that stay free on the daemon's disk."""
PATIENCE = 600.0
"""Seconds to wait for memory or disk."""
LOOK = 0.5


class Room:
    """The memory and the disk in use on one machine. Used from one event loop.

    Args:
        budget: What sandboxes may use of it, and what all loops of this process have promised.
        groups: The control groups of the containers; None if there are none.
        local: Whether it is this machine, whose memory and disk can be read.
        disk: The daemon's own folder there; empty if unknown.
    """

    def __init__(self, budget: Budget, groups: Groups | None, *, local: bool, disk: str = "") -> None:
        self.groups, self._budget, self._local, self._disk = groups, budget, local, disk
        self._told = False
        self._queue = asyncio.Lock()
        """Held by the first of those who wait, so that none is overtaken."""

    def free(self) -> int | None:
        """Bytes that agents may still take; None if unknown.

        The groups are this process's own. What others take, such as the sandboxes of another run, shows only in what
        the machine has left.
        """
        found = []
        if self.groups is not None:
            found.append(self.groups.free("agent") - int(SPARE * self.groups.limits["agent"]))
        if self._local and (left := free_memory()) is not None:
            found.append(left - int(SPARE * self._budget.limits.memory))
        return min(found, default=None)

    def fits(self, memory: int) -> bool:
        """Whether there is room for so many bytes."""
        free = self.free()
        return free is None or self._budget.promised + memory <= free

    def short_of(self, memory: int) -> str:
        """What is missing for a sandbox with so many bytes of memory: ``memory``, ``disk``, or nothing."""
        if not self.fits(memory):
            return "memory"
        with contextlib.suppress(OSError):  # a folder that this process cannot see
            if self._local and self._disk and shutil.disk_usage(self._disk).free < LEAST_DISK:
                return "disk"
        return ""

    @contextlib.asynccontextmanager
    async def promised(self, memory: int) -> AsyncIterator[None]:
        """Wait for room for so many bytes; within the context, others leave it free.

        Raises:
            SandboxError: There was none for `PATIENCE` seconds since it was this one's turn.
        """
        async with self._queue:
            await self.wait(memory, promise=True)
        try:
            yield
        finally:
            with self._budget.promising:
                self._budget.promised -= memory

    async def wait(self, memory: int, *, promise: bool = False) -> None:
        """Return when there is room for so many bytes, which are promised then if asked.

        Raises:
            SandboxError: There was none for `PATIENCE` seconds.
        """
        begun = time.monotonic()
        while True:
            with self._budget.promising:
                if not (missing := self.short_of(memory)):
                    self._budget.promised += memory * promise
                    break
            if time.monotonic() - begun >= PATIENCE:
                raise SandboxError(f"no {missing} for another sandbox for {PATIENCE:.0f} s: {self._advice(missing)}")
            if not self._told:
                self._told = True
                logger.warning("no %s for another sandbox now; new ones wait", missing)
            await asyncio.sleep(LOOK)
        if self._told:
            self._told = False
            logger.info("there is memory and disk for sandboxes again")

    def _advice(self, missing: str) -> str:
        if missing == "disk":
            return f"{self._disk}, the Docker daemon's folder, has less than {LEAST_DISK >> 20} MiB free"
        return (
            "those there are, or other programs, use it; play fewer episodes at once, or give sandboxes less "
            "(SandboxSpec.memory)"
        )
