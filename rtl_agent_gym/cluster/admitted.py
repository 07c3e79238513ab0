"""A machine as the driver calls it, and how it notices one that has fallen silent.

How long a call takes depends on the machine's queues, so no time limit would be right for all. But a machine that works
says at once that it is alive. So whoever waits for long asks for that, and takes silence for the loss of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from ..errors import RTLGymError, SandboxLost
from ..scoring import rules_digest
from .machine import Facts
from .slots import release

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
    """Sandboxes that it can have at once: what this run has reserved of the node's slots."""
    actor: Any
    facts: Facts
    capacity: int = 0
    """All slots of the node."""
    reserved: list[Any] = field(default_factory=list)
    """What holds its slots; see `slots.reserve`."""
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

    def end(self) -> None:
        """End its actor, and with it the containers, and give its slots back."""
        import ray
        from ray.exceptions import RayError

        if self.actor is not None:
            with contextlib.suppress(RayError, ValueError):  # it may be gone already
                ray.kill(self.actor)
        while self.reserved:
            release(self.reserved.pop())

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


def name_of(node: dict[str, Any]) -> str:
    """A node's host and address, from what Ray says of it."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


def difference(facts: Facts, digest: str) -> str:
    """Why a node would grade differently from this process, or from machines whose image has a digest; empty if not."""
    here = rules_digest()
    if facts.rules != here:
        return (
            f"its version of this package grades by the rules {facts.rules[:12]}, this one by {here[:12]}; "
            "install the same version there"
        )
    if digest not in ("", facts.digest):
        return f"its image holds {facts.digest[:19]}, that of the machines in use {digest[:19]}"
    return ""
