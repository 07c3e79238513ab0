"""Sandboxes that wait, so that nobody waits for one.

Starting a container takes a tenth of a second and more; one that was started beforehand is had at once. Each is handed
out once, has never run anything, and dies with its first user: nothing of one use reaches the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field

from ..errors import SandboxError
from .protocol import Sandbox, SandboxProvider, SandboxSpec


@dataclass
class _Shelf:
    """The waiting sandboxes of one spec."""

    spec: SandboxSpec
    waiting: deque[Sandbox] = field(default_factory=deque)
    starting: set[asyncio.Task[None]] = field(default_factory=set)


class WaitingSandboxes:
    """A `SandboxProvider` in front of another, with a few sandboxes of each spec that has been asked for in waiting.

    Owns the sandboxes in waiting until they are handed out; their users close them. Leaving the context closes what
    still waits, but not the provider behind.

    Args:
        provider: Where sandboxes come from.
        size: How many of each spec wait.
    """

    def __init__(self, provider: SandboxProvider, size: int = 2) -> None:
        self._provider, self._size = provider, size
        self._shelves: list[_Shelf] = []
        self._closed = False

    async def __aenter__(self) -> WaitingSandboxes:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def prepare(self, spec: SandboxSpec) -> None:
        """Have sandboxes of this spec in waiting; return when they are. Raises `SandboxError` if none starts."""
        shelf = self._shelf(spec)
        self._refill(shelf)
        await asyncio.gather(*shelf.starting, return_exceptions=True)
        if self._size and not shelf.waiting:
            shelf.waiting.append(await self._provider.create(spec))

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """A sandbox that has never been used: one in waiting if there is any, a new one otherwise."""
        shelf = self._shelf(spec or SandboxSpec())
        found: Sandbox | None = None
        while shelf.waiting and found is None:
            candidate = shelf.waiting.popleft()
            if await _answers(candidate):
                found = candidate
        self._refill(shelf)
        return found if found is not None else await self._provider.create(shelf.spec)

    def _shelf(self, spec: SandboxSpec) -> _Shelf:
        for shelf in self._shelves:
            if shelf.spec == spec:
                return shelf
        self._shelves.append(_Shelf(spec))
        return self._shelves[-1]

    def _refill(self, shelf: _Shelf) -> None:
        while not self._closed and len(shelf.waiting) + len(shelf.starting) < self._size:
            task = asyncio.ensure_future(self._start(shelf))
            shelf.starting.add(task)
            task.add_done_callback(shelf.starting.discard)

    async def _start(self, shelf: _Shelf) -> None:
        # A machine that cannot start one now says so to whoever asks next, through `create`.
        with contextlib.suppress(SandboxError):
            sandbox = await self._provider.create(shelf.spec)
            if self._closed:
                await sandbox.close()
            else:
                shelf.waiting.append(sandbox)

    async def close(self) -> None:
        """Close what waits. Idempotent."""
        self._closed = True
        for shelf in self._shelves:
            await asyncio.gather(*shelf.starting, return_exceptions=True)
            await asyncio.gather(*(sandbox.close() for sandbox in shelf.waiting))
            shelf.waiting.clear()


async def _answers(sandbox: Sandbox) -> bool:
    """Whether a sandbox that has waited is still there; asking costs a fraction of a millisecond."""
    try:
        await sandbox.ping()
    except SandboxError:
        await sandbox.close()
        return False
    return True
