"""Examines designs, and verifies the problems made of them; what both sources in `derivation` and mutants share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Generic, Self, TypeVar

from rtl_agent_gym.errors import SandboxBroken, most_telling
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.sandboxes import Sandbox, SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.scoring import ScoreCache, Scorer
from rtl_agent_gym.sources.derivation import CaseT, DerivedSource, KnownT, Options, Store

PATIENCE = 1800
"""Seconds in which a machine must have given the processor time of an examination."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Maker(ABC, Generic[CaseT, Options, KnownT]):
    """Makes problems of designs and remembers what it found out. Made by `open`.

    Args:
        provider: Creates the sandboxes in which designs are examined; no agent's file is there.
        scorer: Grades the problems.
        store: What is known, and where more goes; None for the source's.
        workers: How many designs are examined at the same time.
    """

    source: DerivedSource[CaseT, Options, KnownT]
    """Set by each subclass."""

    def __init__(
        self, provider: SandboxProvider, scorer: Scorer, store: Store[KnownT] | None = None, workers: int = 2
    ) -> None:
        self.scorer = scorer
        self._provider, self._store = provider, store or self.source.store()
        self._turn = asyncio.Semaphore(workers)
        self._free: list[Sandbox] = []
        self._image = ""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, *, workers: int = 2, store: Store[KnownT] | None = None, cache: bool = True
    ) -> AsyncIterator[Self]:
        """A maker with sandboxes and a scorer, which are closed at the end.

        Args:
            workers: How many designs are examined at the same time.
            store: As for the class.
            cache: Whether gradings are taken from the cache on disk.
        """
        async with (
            make_provider() as provider,
            Scorer(provider, cache=ScoreCache() if cache else None, waiting=workers) as scorer,
        ):
            maker = cls(provider, scorer, store, workers)
            try:
                yield maker
            finally:
                while maker._free:
                    await maker._free.pop().close()

    @staticmethod
    @abstractmethod
    async def examine(case: CaseT, options: Options, sandbox: Sandbox) -> KnownT:
        """What can be found out about a design; the sandbox may be used for many. Raises `SandboxError`."""

    @abstractmethod
    async def grade(self, problem: Problem) -> float:
        """How good a problem is, from 0 to 1. Raises `SandboxError`."""

    async def make(self, case: CaseT, options: Options) -> tuple[Problem | None, KnownT]:
        """The verified problem of a design, or None; and what was found out.

        Raises:
            SandboxError: The machine failed.
        """
        async with self._turn:
            self._image = self._image or await self._provider.image_digest()
            known = self._store.get(case.key)
            if known is None or known.image != self._image:
                known = await self._examined(case, options)
                self._store.put(known)
            if known.is_usable(options) is None:
                good = await self.grade(self.source.problem(case, known, options))
                # Another task may have verified another kind meanwhile.
                known = self._store.get(case.key) or known
                verified = {**known.verified, known.kind(options): good}
                known = known.model_copy(update={"verified": verified})
                self._store.put(known)
        return (self.source.problem(case, known, options) if known.is_usable(options) else None), known

    async def _examined(self, case: CaseT, options: Options) -> KnownT:
        sandbox = self._free.pop() if self._free else await self._provider.create()
        try:
            found = await self.examine(case, options, sandbox)
        except SandboxBroken as error:  # Yosys or a simulation needed too much memory
            await sandbox.close()
            found = self._store.model(key=case.key, problem_id=case.problem.id, fault=str(error))
        except BaseException:
            await sandbox.close()
            raise
        else:
            self._free.append(sandbox)
        return found.model_copy(update={"image": self._image})


async def in_order(
    items: Iterable[_Item],
    work: Callable[[_Item], Coroutine[Any, Any, _Result]],
    at_once: int,
    is_enough: Callable[[_Result], bool | None],
) -> None:
    """Work on several items at the same time, and hand over the results in the order of the items.

    Args:
        items: Taken only when they are needed.
        work: What is done with each.
        at_once: How many are worked on at the same time.
        is_enough: Gets each result. If it returns True, that was the last: work that is not finished is cancelled.

    Raises:
        RTLGymError: Of those that work raised, the one that explains most.
    """
    queue, running = iter(items), deque[asyncio.Task[_Result]]()
    try:
        async with asyncio.TaskGroup() as tasks:
            while True:
                running += [tasks.create_task(work(item)) for item in islice(queue, at_once - len(running))]
                if not running or is_enough(await running.popleft()):
                    break
            for task in running:
                task.cancel()
    except BaseExceptionGroup as error:
        if (known := most_telling(error)) is None:
            raise
        raise known from error
