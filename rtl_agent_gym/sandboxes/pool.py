"""A pool of sandboxes that are started in advance.

Starting a container takes a tenth of a second or more; a waiting one is available at once. Each is used only once, so
nothing carries over from one use to the next.

Submissions arrive in bursts: a group of episodes ends at about the same time, then models think. So most sandboxes are
started and ended while none are in use. While some are in use, the pool keeps at most half as many waiting (at least
one), and a limited number of used ones open. For grading, it keeps at most as many waiting as were ever in use at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import SandboxError
from .protocol import Sandbox, SandboxProvider, SandboxSpec

PAUSE = 0.05
"""Seconds to wait before starting a sandbox after one was handed out, and before ending an agent's after its use.
Without the wait, both would slow down the first requests to the sandbox that was handed out."""


@dataclass
class _Shelf:
    spec: SandboxSpec
    waiting: deque[asyncio.Task[Sandbox]] = field(default_factory=deque)
    """Sandboxes that are ready or still starting."""


class _Lent:
    """A `Sandbox` in use. `close` returns it to the pool, which ends it."""

    def __init__(self, sandbox: Sandbox, close: Callable[[Sandbox], Awaitable[None]]) -> None:
        self._sandbox, self.close = sandbox, functools.partial(close, sandbox)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)


class WaitingSandboxes(SandboxProvider):
    """Wraps a provider and keeps a few sandboxes of each requested spec ready.

    Owns its sandboxes and ends each after its use: at once if something still runs in it or no other is in use,
    otherwise later. Leaving the context ends all of them, but not the wrapped provider.

    Args:
        provider: Creates the sandboxes.
        size: Maximum number of waiting sandboxes per spec.
    """

    def __init__(self, provider: SandboxProvider, size: int = 2) -> None:
        self._provider, self._size = provider, size
        self._shelves: list[_Shelf] = []
        """The most recently used spec is the last."""
        self._in_use: dict[Sandbox, SandboxSpec] = {}
        self._most_in_use = 1
        self._served: deque[Sandbox] = deque()
        """Used sandboxes that are still open."""
        self._ending: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    async def image(self) -> str:
        return await self._provider.image()

    async def image_digest(self) -> str:
        return await self._provider.image_digest()

    async def missing_limits(self) -> tuple[str, ...]:
        return await self._provider.missing_limits()

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        return await self._provider.build_image(files, dockerfile=dockerfile)

    async def prepare(self, spec: SandboxSpec) -> None:
        shelf = self._shelf(spec)
        self._most_in_use = max(self._most_in_use, self._size)
        self._refill(shelf)
        starting = list(shelf.waiting)
        if starting:
            await asyncio.wait(starting)
        if starting and all(task.exception() for task in starting):
            starting[0].result()

    def grading(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._provider.grading()

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """An unused sandbox: a waiting one if there is one, otherwise one that is starting, otherwise a new one."""
        shelf = self._shelf(spec or SandboxSpec())
        refill: Callable[[], object] = functools.partial(self._refill, shelf)
        try:
            while shelf.waiting:
                task = next((task for task in shelf.waiting if task.done()), shelf.waiting[0])
                shelf.waiting.remove(task)
                try:
                    sandbox = await asyncio.shield(task)
                    await sandbox.ping()  # a fraction of a millisecond
                except SandboxError:
                    self._end(_close(task))
                except asyncio.CancelledError:
                    shelf.waiting.appendleft(task)
                    raise
                else:
                    self._provider.handed_out(sandbox)
                    loop = asyncio.get_running_loop()
                    refill = functools.partial(loop.call_later, PAUSE, refill)
                    return self._lend(sandbox, shelf.spec)
            return self._lend(await self._provider.create(shelf.spec), shelf.spec)
        finally:
            refill()

    def _lend(self, sandbox: Sandbox, spec: SandboxSpec) -> Sandbox:
        self._in_use[sandbox] = spec
        self._most_in_use = max(self._most_in_use, len(self._in_use))
        return cast(Sandbox, _Lent(sandbox, self._return))

    async def _return(self, sandbox: Sandbox) -> None:
        if sandbox not in self._in_use:
            return
        spec = self._in_use.pop(sandbox)
        if spec.role == "agent":
            self._end(self._close_soon(sandbox))  # its background jobs may still run
        elif sandbox.idle:
            self._served.append(sandbox)
        self._end_served()
        if not self._in_use:
            for shelf in self._shelves[-2:]:
                self._refill(shelf)
        if spec.role != "agent" and not sandbox.idle:
            await sandbox.close()

    def _shelf(self, spec: SandboxSpec) -> _Shelf:
        shelf = next((known for known in self._shelves if known.spec == spec), None) or _Shelf(spec)
        self._shelves = [*(known for known in self._shelves if known is not shelf), shelf]
        return shelf

    def _refill(self, current: _Shelf) -> None:
        """Start missing ones; end those of the oldest specs beyond twice `size` in all, and all of them once closed."""
        closing = self._closing.is_set()
        wanted = self._size if current.spec.role == "agent" else min(self._size, self._most_in_use)
        if self._in_use:
            wanted = min(wanted, max(1, len(self._in_use) // 2))
        while not closing and len(current.waiting) < wanted:
            task = asyncio.ensure_future(self._provider.create_ahead(current.spec))
            current.waiting.append(task)
            task.add_done_callback(lambda task: self._drop_failed(current, task))
        surplus = sum(len(shelf.waiting) for shelf in self._shelves) - (0 if closing else 2 * self._size)
        for shelf in self._shelves:
            while surplus > 0 and shelf.waiting and (shelf is not current or closing):
                self._end(_close(shelf.waiting.popleft()))
                surplus -= 1

    def _drop_failed(self, shelf: _Shelf, task: asyncio.Task[Sandbox]) -> None:
        # If the machine cannot start one now, the next call of `create` raises the error.
        if (task.cancelled() or task.exception()) and task in shelf.waiting:
            shelf.waiting.remove(task)

    def _end_served(self) -> None:
        while len(self._served) > (self._size if self._in_use and not self._closing.is_set() else 0):
            self._end(self._served.popleft().close())

    def _end(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(closing)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _close_soon(self, sandbox: Sandbox) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), PAUSE)
        await sandbox.close()

    async def close(self) -> None:
        self._closing.set()
        self._served.extend(self._in_use)
        self._in_use.clear()
        self._end_served()
        for shelf in self._shelves:
            self._refill(shelf)
        while self._ending:
            await asyncio.wait(self._ending)


async def _close(starting: asyncio.Task[Sandbox]) -> None:
    with contextlib.suppress(SandboxError):
        await (await starting).close()
