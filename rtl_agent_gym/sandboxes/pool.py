"""A pool of sandboxes that are started in advance.

Starting a container takes a tenth of a second or more; a waiting one is available at once. Each is used only once and
ends after that, so nothing of one use reaches the next.

Submissions arrive in bursts: a group of episodes ends at about the same time, then models think. So most sandboxes are
started and ended while none are in use. Meanwhile, the pool starts only half as many as are in use, and keeps a limited
number of used ones open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import SandboxError
from .protocol import Sandbox, SandboxProvider, SandboxSpec


@dataclass
class _Shelf:
    """The waiting sandboxes of one spec."""

    spec: SandboxSpec
    waiting: deque[Sandbox] = field(default_factory=deque)
    starting: set[asyncio.Task[None]] = field(default_factory=set)
    callers: int = 0
    """Number of callers that wait for a starting sandbox."""


class _Lent:
    """A `Sandbox` in use. `close` returns it to the pool, which ends it."""

    def __init__(self, sandbox: Sandbox, hand_back: Callable[[Sandbox], Awaitable[None]]) -> None:
        self._sandbox, self._return = sandbox, hand_back

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def close(self) -> None:
        """Return it to the pool; an idle one may stay open for a while."""
        await self._return(self._sandbox)


class WaitingSandboxes(SandboxProvider):
    """Wraps a provider and keeps a few sandboxes of each requested spec ready.

    Owns its sandboxes and ends each after its use: at once if something still runs in it or no other is in use,
    otherwise later. Leaving the context ends all of them, but not the wrapped provider.

    Args:
        provider: Creates the sandboxes.
        size: Number of waiting sandboxes per spec.
    """

    def __init__(self, provider: SandboxProvider, size: int = 2) -> None:
        self._provider, self._size = provider, size
        self._shelves: list[_Shelf] = []
        self._in_use: set[Sandbox] = set()
        self._served: deque[Sandbox] = deque()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> WaitingSandboxes:
        return self

    async def image(self) -> str:
        return await self._provider.image()

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        return await self._provider.build_image(files, dockerfile=dockerfile)

    async def _return(self, sandbox: Sandbox) -> None:
        if sandbox not in self._in_use:
            return
        self._in_use.discard(sandbox)
        if sandbox.idle:
            self._served.append(sandbox)
        self._end_served()
        if not self._in_use:
            for shelf in self._shelves[-2:]:
                self._refill(shelf)
        if not sandbox.idle:
            await sandbox.close()

    def _end_served(self) -> None:
        while len(self._served) > (self._size if self._in_use and not self._closed else 0):
            task = asyncio.ensure_future(self._served.popleft().close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Start waiting sandboxes of this spec; return when they are ready. Raises `SandboxError` if none starts."""
        shelf = self._shelf(spec)
        self._refill(shelf)
        await asyncio.gather(*shelf.starting, return_exceptions=True)
        if self._size and not shelf.waiting and not self._closed:
            sandbox = await self._provider.create(spec)
            if self._closed:
                await sandbox.close()
            else:
                shelf.waiting.append(sandbox)

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """An unused sandbox: a waiting one if there is any, else a new one."""
        shelf = self._shelf(spec or SandboxSpec())
        try:
            while True:
                while shelf.waiting:
                    candidate = shelf.waiting.popleft()
                    if await _answers(candidate):
                        return self._lend(candidate)
                if shelf.callers >= len(shelf.starting):
                    return self._lend(await self._provider.create(shelf.spec))
                shelf.callers += 1
                try:
                    await asyncio.wait(shelf.starting, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    shelf.callers -= 1
        finally:
            self._refill(shelf)

    def _lend(self, sandbox: Sandbox) -> Sandbox:
        self._in_use.add(sandbox)
        return cast(Sandbox, _Lent(sandbox, self._return))

    def _shelf(self, spec: SandboxSpec) -> _Shelf:
        """The shelf of a spec, moved to the end as the most recently used."""
        shelf = next((known for known in self._shelves if known.spec == spec), None)
        if shelf is None:
            shelf = _Shelf(spec)
        else:
            self._shelves.remove(shelf)
        self._shelves.append(shelf)
        return shelf

    def _refill(self, shelf: _Shelf) -> None:
        wanted = min(self._size, max(1, len(self._in_use) // 2)) if self._in_use else self._size
        while not self._closed and len(shelf.waiting) + len(shelf.starting) < wanted + shelf.callers:
            task = asyncio.ensure_future(self._start(shelf))
            shelf.starting.add(task)
            task.add_done_callback(shelf.starting.discard)
        self._clear_old(shelf)

    def _clear_old(self, current: _Shelf) -> None:
        """End the least recently used waiting sandboxes beyond twice `size` in all."""
        surplus = sum(len(shelf.waiting) for shelf in self._shelves) - 2 * self._size
        for shelf in self._shelves:
            while surplus > 0 and shelf.waiting and shelf is not current:
                self._served.append(shelf.waiting.popleft())
                self._end_served()
                surplus -= 1

    async def _start(self, shelf: _Shelf) -> None:
        # If the machine cannot start one now, the next call of `create` raises the error.
        with contextlib.suppress(SandboxError):
            sandbox = await self._provider.create(shelf.spec)
            if self._closed:
                await sandbox.close()
            else:
                shelf.waiting.append(sandbox)

    async def close(self) -> None:
        """End every sandbox. Idempotent."""
        self._closed = True
        self._served.extend(self._in_use)
        self._in_use.clear()
        self._end_served()
        for shelf in list(self._shelves):
            await asyncio.gather(*shelf.starting, return_exceptions=True)
            await asyncio.gather(*(sandbox.close() for sandbox in shelf.waiting))
            shelf.waiting.clear()
        await asyncio.gather(*self._ending)


async def _answers(sandbox: Sandbox) -> bool:
    """Whether a waiting sandbox still answers, which takes a fraction of a millisecond; if not, it is closed."""
    try:
        await sandbox.ping()
    except SandboxError:
        await sandbox.close()
        return False
    except BaseException:  # cancelled: nobody else can close it
        await asyncio.shield(sandbox.close())
        raise
    return True
