"""Verdicts wait until their machine has graded a canary right that began after them.

A machine that grades wrong looks like any other until somebody checks. A verdict that has been used cannot be taken
back: an optimizer step has moved the weights. So none leaves the cluster before the next right canary, and if that is
wrong, everything that the machine graded since the last right one is graded again elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import SandboxError, SandboxLost
from .canary import canary

logger = logging.getLogger(__name__)

LOOK = 0.05
"""Seconds between two looks at whether more verdicts will come soon."""


class Vouched(Protocol):
    """What is needed of a `RemoteMachine`."""

    name: str
    grading: int
    """Submissions that it grades now."""
    lost: str
    """Why it gets no more work."""
    wrong: bool
    """Whether that is a wrong verdict."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the `Machine`."""
        ...


class Voucher:
    """The verdicts of one machine that wait for its next canary.

    Args:
        machine: The machine.
        seconds: Time that verdicts wait at most for others, so that one canary vouches for many. It is graded at once
            when the machine grades nothing else.
        on_event: Called with a line when a canary is wrong.
    """

    def __init__(self, machine: Vouched, seconds: float, on_event: Callable[[str], None]) -> None:
        self._machine, self._seconds, self._on_event = machine, seconds, on_event
        self._waiting: list[asyncio.Future[None]] = []
        self._checking: asyncio.Task[None] | None = None

    async def vouch(self) -> None:
        """Return when a canary that begins after this call was right.

        Raises:
            SandboxLost: It was wrong, or the machine could not grade it: the verdict must not be used.
        """
        if self._machine.lost:
            raise self._refusal()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self._check())
        await future

    async def _check(self) -> None:
        """Grade canaries while verdicts wait."""
        verdicts: list[asyncio.Future[None]] = []
        try:
            while self._waiting:
                await self._gather()
                verdicts, self._waiting = self._waiting, []
                if why := await self._canary():
                    verdicts, self._waiting = verdicts + self._waiting, []
                    self._distrust(why, len(verdicts))
                for future in verdicts:
                    if why and not future.done():  # otherwise whoever waited was cancelled
                        future.set_exception(self._refusal())
                    elif not future.done():
                        future.set_result(None)
        finally:  # closed, or a defect: nothing is vouched for
            for future in verdicts + self._waiting:
                if not future.done():
                    future.set_exception(self._refusal("its canaries have been stopped"))

    async def _canary(self) -> str:
        """What the machine gets wrong, or why it cannot grade; empty if it grades right."""
        machine, why = self._machine, ""
        try:
            await machine.call("seal")
            why = await canary(machine.call)
            machine.wrong = bool(why)
            await machine.call("drop" if why else "keep")
        except SandboxError as error:
            return why or str(error)
        return why

    def _refusal(self, why: str = "") -> SandboxLost:
        machine = self._machine
        return SandboxLost(f"machine {machine.name} cannot vouch for a verdict: {machine.lost or why}")

    async def _gather(self) -> None:
        """Wait for verdicts that may come soon."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        while self._machine.grading and loop.time() < end:
            await asyncio.sleep(LOOK)

    def _distrust(self, why: str, verdicts: int) -> None:
        machine = self._machine
        machine.lost = machine.lost or (f"quarantined: {why}" if machine.wrong else f"its canary failed: {why}")
        self._on_event(
            f"machine {machine.name} gets no more work: {machine.lost}; {verdicts} verdicts that it gave since its "
            "last right canary have not been used, and are graded again elsewhere"
        )
        logger.warning("%d verdicts of machine %s are graded again: %s", verdicts, machine.name, machine.lost)

    async def close(self) -> None:
        """Stop grading canaries. Verdicts that still wait are never given out."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
