"""A machine as the driver calls it, and how it notices one that has fallen silent.

How long a call takes depends on the machine's queues, so no time limit would be right for all. But a machine that works
says at once that it is alive. So whoever waits for long asks for that, and takes silence for the loss of the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from ..errors import RTLGymError, SandboxLost
from .machine import Facts

LONG = 30.0
"""Seconds after which whoever waits for an answer asks whether the machine is alive, each time anew."""
SILENCE = 120.0
"""Seconds within which it has to say so; a new one has to start within them, too."""


@dataclass(eq=False)
class RemoteMachine:
    """A node that has been admitted."""

    node: str
    """Ray's id of it."""
    name: str
    """Its host and address, for messages."""
    slots: int
    actor: Any
    facts: Facts
    live: int = 0
    """Sandboxes that it has now."""
    grading: int = 0
    """Submissions that it grades now."""
    lost: str = ""
    """Why it gets no more work."""
    gone: bool = False
    """Whether it does not answer any more."""
    wrong: bool = False
    """Whether it graded a canary wrong."""
    _alive: asyncio.Future[None] | None = field(default=None, init=False)
    """The question whether it is alive, which all who wait share."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the `Machine`.

        Raises:
            RTLGymError: The machine's own.
            SandboxLost: The node or its actor is gone, or silent.
        """
        from ray import exceptions

        try:
            return await self._answer(getattr(self.actor, method).remote(*arguments))
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, RTLGymError):
                raise error.cause from None
            raise
        except exceptions.RayError as error:
            raise self._is_gone(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error

    def _is_gone(self, why: str) -> SandboxLost:
        self.gone, self.lost = True, self.lost or why
        return SandboxLost(f"machine {self.name} is lost: {self.lost}")

    async def _answer(self, call: Awaitable[Any]) -> Any:
        """What a call returns. Raises `SandboxLost` if the machine is silent, and the call's own exceptions."""
        answer: asyncio.Future[Any] = asyncio.ensure_future(call)
        try:
            await asyncio.wait([answer], timeout=LONG)
            while not answer.done():
                if self.gone:
                    raise self._is_gone(self.lost)
                if self._alive is None or self._alive.done():
                    self._alive = asyncio.ensure_future(self._ask())
                await asyncio.wait([answer, self._alive], return_when=asyncio.FIRST_COMPLETED)
                if not self.gone:
                    await asyncio.wait([answer], timeout=LONG)
            return answer.result()
        finally:
            answer.cancel()

    async def _ask(self) -> None:
        """Ask the machine whether it is alive; it is gone if it does not say so."""
        from ray import exceptions

        try:
            async with asyncio.timeout(SILENCE):
                await self.actor.alive.remote()
        except exceptions.RayTaskError:  # an answer, too
            pass
        except exceptions.RayError as error:
            self._is_gone(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        except TimeoutError:
            self._is_gone(f"it has not answered for {SILENCE:.0f} s")
