"""Whether a machine has memory for another agent's sandbox now, whatever the others were thought to need."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from ..errors import SandboxError
from .groups import Groups, free_memory
from .limits import Limits

logger = logging.getLogger(__name__)

SPARE = 0.05
"""Share of the limit that stays free for the growth of the sandboxes there are."""
PATIENCE = 600.0
"""Seconds to wait for memory."""
LOOK = 0.5


class Room:
    """The memory in use on one machine.

    Args:
        limits: What sandboxes may use of it.
        groups: The control groups of the containers; None if there are none.
        local: Whether it is this machine, whose memory can be read.
    """

    def __init__(self, limits: Limits, groups: Groups | None, *, local: bool) -> None:
        self.limits, self.groups, self._local = limits, groups, local
        self._told = False
        self._promised = 0
        """Bytes for sandboxes that are still starting, which use none yet."""

    def free(self) -> int | None:
        """Bytes that agents may still take; None if unknown.

        The groups are this process's own. What others take, such as the sandboxes of another run, shows only in what
        the machine has left.
        """
        found = []
        if self.groups is not None:
            found.append(self.groups.free("agent") - int(SPARE * self.groups.limits["agent"]))
        if self._local and (left := free_memory()) is not None:
            found.append(left - int(SPARE * self.limits.memory))
        return min(found, default=None)

    def fits(self, memory: int) -> bool:
        """Whether there is room for so many bytes."""
        free = self.free()
        return free is None or self._promised + memory <= free

    @contextlib.asynccontextmanager
    async def promised(self, memory: int) -> AsyncIterator[None]:
        """Wait for room for so many bytes; within the context, others leave it free.

        Raises:
            SandboxError: There was none for `PATIENCE` seconds.
        """
        await self.wait(memory)
        self._promised += memory
        try:
            yield
        finally:
            self._promised -= memory

    async def wait(self, memory: int) -> None:
        """Return when there is room for so many bytes.

        Raises:
            SandboxError: There was none for `PATIENCE` seconds.
        """
        begun = time.monotonic()
        while not self.fits(memory):
            if time.monotonic() - begun >= PATIENCE:
                raise SandboxError(
                    f"no memory for another sandbox for {PATIENCE:.0f} s: those there are, or other programs, use it; "
                    "play fewer episodes at once, or give sandboxes less (SandboxSpec.memory)"
                )
            if not self._told:
                self._told = True
                logger.warning("no memory for another sandbox now; new ones wait")
            await asyncio.sleep(LOOK)
        if self._told:
            self._told = False
            logger.info("there is memory for sandboxes again")
