"""What runs on a node: the owner of its sandboxes, budget and scorers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..episodes.runtime import WAITING, LocalRuntime
from ..errors import SandboxError, SandboxLost
from ..logs import episode_key, log_to_stderr, logging_as
from ..problems import Problem
from ..sandboxes import Sandbox, SandboxSpec
from ..sandboxes.admission import queue_group, queueing_as, set_limits, usage
from ..sandboxes.choice import made_by
from ..scoring import RewardWeights, Scorer, rules_digest
from ..scoring.cache import HeldCache
from ..scoring.score import Score


@dataclass(frozen=True)
class Facts:
    """A description of a node: what makes its sandboxes, its image, its rules."""

    daemon: str
    """The address of its Docker daemon, as seen from the node; without a daemon, the kind of its sandboxes."""
    cpus: float
    """Submissions that it grades at the same time."""
    digest: str = ""
    """The digest of the content of its simulation image."""
    rules: str = ""
    """`scoring.rules_digest` on the node: the version of the grader and its rules."""


@dataclass(frozen=True)
class Origin:
    """Where a call to a machine comes from."""

    group: str = ""
    """The queue in which the call waits."""
    episode: str = "-"
    """The episode to which its lines in the node's log belong."""

    @classmethod
    def here(cls) -> Origin:
        return cls(queue_group.get(), episode_key())

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Within the context, waiting requests and log lines belong to this origin."""
        with queueing_as(self.group), logging_as(self.episode):
            yield


@dataclass(frozen=True)
class RunReport:
    """What a machine has done for its driver so far."""

    process: int
    """Its process id on the node."""
    sandboxes: int
    """Number of live agent sandboxes."""
    gradings: int
    """Number of gradings, including canaries and cached ones."""
    faults: dict[str, int]
    """Machine faults, by kind of work and class, such as ``sandbox: DaemonError``."""
    usage: dict[str, float]
    """The state of the node's budget; see `Budget.usage`."""
    canaries: dict[str, int] = field(default_factory=dict)
    """Number of canaries graded ``right`` and ``wrong``."""
    last_canary: float | None = None
    """Seconds since the last correctly graded canary."""


class Machine:
    """A node's sandboxes and gradings; a Ray actor, whose methods run on one event loop.

    The caller names a sandbox before it is created, so that it can be closed even if the answer never arrives.

    Args:
        limits: What sandboxes may use of the node; see `sandboxes.admission.read_limits`.
        waiting: Number of scoring sandboxes that are kept ready.
        logs: Whether to write the log to stderr, which Ray keeps in a file on the node.
    """

    def __init__(self, limits: str = "", waiting: int = WAITING, *, logs: bool = False) -> None:
        set_limits(limits)
        if logs:
            log_to_stderr()
        self._cache = HeldCache()
        self._gradings, self._faults = 0, Counter[str]()
        self._canaries = Counter[str](right=0, wrong=0)
        self._last_canary: float | None = None
        self._local = LocalRuntime()
        self._waiting = waiting
        self._sandboxes: dict[str, asyncio.Task[Sandbox]] = {}
        self._scorers: dict[tuple[RewardWeights | None, bool], Scorer] = {}

    async def facts(self) -> Facts:
        """Connect, and describe the node. Raises `DaemonError` or `ImageError`."""
        digest, budget = await self._local.provider.image_digest(), await self._local.provider.budget()
        return Facts(made_by(), budget.limits.cpus, digest, rules_digest())

    async def alive(self) -> None:
        """Returns, which shows that this process and its event loop are running."""

    async def create(self, name: str, spec: SandboxSpec, origin: Origin = Origin()) -> tuple[str, str]:
        """Create a sandbox; returns its id and that of its image."""
        if name not in self._sandboxes:  # a repeated call creates no second sandbox
            with origin.resumed():
                self._sandboxes[name] = asyncio.ensure_future(self._local.agents.create(spec))
        with self._counting("sandbox"):
            sandbox = await asyncio.shield(self._sandboxes[name])
        return sandbox.id, str(getattr(sandbox, "image_id", ""))

    async def on_sandbox(self, name: str, method: str, options: Mapping[str, Any], *arguments: Any) -> Any:
        with self._counting("command") if method == "run" else contextlib.nullcontext():
            if name not in self._sandboxes:
                raise SandboxLost(f"{socket.gethostname()} has no sandbox {name}: it has been closed")
            return await getattr(await asyncio.shield(self._sandboxes[name]), method)(*arguments, **options)

    async def close_sandbox(self, name: str) -> None:
        """End a sandbox, also one that is still starting or waits for its turn. Idempotent."""
        task = self._sandboxes.pop(name, None)
        if task is None:
            return
        if not task.done():
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await task.result().close()

    async def score(
        self,
        problem: Problem,
        files: Mapping[str, str | bytes],
        timeout: float,
        seed: int | None,
        weights: RewardWeights | None,
        cached: bool,
        origin: Origin = Origin(),
    ) -> Score:
        """See `Scorer.score`; tried once, since the driver repeats it. `cached` uses the node's cache of gradings."""
        key = (weights, cached)
        if key not in self._scorers:
            cache, provider = self._cache if cached else None, self._local.provider
            self._scorers[key] = Scorer(provider, weights=weights, cache=cache, waiting=self._waiting, attempts=1)
        with self._counting("grading"), origin.resumed():
            score = await self._scorers[key].score(problem, files, timeout, seed=seed)
        self._gradings += 1
        return score

    async def seal(self) -> None:
        """Seal the gradings so far: the next `keep` keeps them in the cache, but not later ones."""
        self._cache.seal()

    async def keep(self) -> None:
        """Keep the sealed gradings in the cache: a canary that began after them was graded correctly."""
        self._canaries["right"] += 1
        self._last_canary = time.monotonic()
        await asyncio.to_thread(self._cache.keep)

    async def drop(self) -> None:
        """Forget the gradings that are not in the cache yet: a canary was graded incorrectly."""
        self._canaries["wrong"] += 1
        self._cache.drop()

    @contextlib.contextmanager
    def _counting(self, what: str) -> Iterator[None]:
        try:
            yield
        except SandboxError as error:
            self._faults[f"{what}: {type(error).__name__}"] += 1
            raise

    async def report(self) -> RunReport:
        age = None if self._last_canary is None else time.monotonic() - self._last_canary
        counts = len(self._sandboxes), self._gradings, dict(self._faults)
        return RunReport(os.getpid(), *counts, usage(), dict(self._canaries), age)

    async def close(self) -> None:
        """End every container of this node."""
        for scorer in self._scorers.values():
            await scorer.close()
        await self._local.close()
