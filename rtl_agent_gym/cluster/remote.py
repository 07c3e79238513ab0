"""Sandboxes, a provider and a grader whose work is done on the machines of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..episodes.runtime import WAITING, Runtime
from ..errors import SandboxError, SandboxLost, UsageError
from ..policies import Closable
from ..policies.judge import judge_of
from ..problems import Problem
from ..sandboxes import (
    WORK_DIR,
    CommandResult,
    FoundFiles,
    OutputSink,
    Process,
    Reading,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
)
from ..sandboxes.budget import queue_group
from ..scoring import RewardWeights, Scorer
from ..scoring.judging import Judge
from ..scoring.options import GradingOptions
from ..scoring.retrying import retrying
from ..scoring.score import Score
from .admitted import RemoteMachine
from .connecting import connect
from .machines import Cluster

REMEMBERED = 1_000
"""Problems that stay in Ray's object store for a grader."""

logger = logging.getLogger(__name__)


class RemoteSandbox(Sandbox):
    """A sandbox on a machine of the cluster; implements `Sandbox`, but for processes beside the shell."""

    def __init__(self, machine: RemoteMachine, held: contextlib.AsyncExitStack) -> None:
        self._machine, self._held = machine, held
        self._name = secrets.token_hex(8)
        self._id = self.image_id = ""
        self._closing: asyncio.Task[None] | None = None

    async def open(self, spec: SandboxSpec) -> None:
        """Make it on its machine."""
        self._id, self.image_id = await self._machine.call("create", self._name, spec, queue_group())

    @property
    def id(self) -> str:
        return f"{self._id} on {self._machine.name}"

    async def run(
        self,
        command: str,
        *,
        timeout: float = 30.0,
        max_output: int = 16_000,
        on_output: OutputSink | None = None,
        then_read: Reading | None = None,
    ) -> CommandResult:
        result: CommandResult
        result, found = await self._machine.call("run", self._name, command, timeout, max_output, then_read)
        if then_read is not None:
            then_read.found = found
        if on_output is not None:
            on_output(result.output.encode())
        return result

    async def spawn(self, argv: Sequence[str], *, cwd: str = WORK_DIR, env: Mapping[str, str] | None = None) -> Process:
        raise UsageError("processes beside the shell of a remote sandbox are not supported")

    @property
    def standby(self) -> Process | None:
        return None

    @property
    def idle(self) -> bool:
        return True

    async def write_files(
        self,
        files: Mapping[str, str | bytes],
        *,
        root: str = WORK_DIR,
        keeper: bool = False,
        folders: Sequence[str] = (),
    ) -> None:
        options = {"root": root, "keeper": keeper, "folders": list(folders)}
        await self._machine.call("write_files", self._name, dict(files), options)

    async def read_files(
        self,
        paths: Sequence[str],
        *,
        first: Sequence[str] = (),
        max_file: int = 16 << 20,
        max_total: int = 64 << 20,
    ) -> FoundFiles:
        options = {"first": list(first), "max_file": max_file, "max_total": max_total}
        found: FoundFiles = await self._machine.call("read_files", self._name, list(paths), options)
        return found

    async def oom_kills(self) -> int | None:
        kills: int | None = await self._machine.call("oom_kills", self._name)
        return kills

    async def ping(self) -> None:
        await self._machine.call("ping", self._name)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        async with self._held:  # its slot
            if not self._machine.gone:
                with contextlib.suppress(SandboxError):
                    await self._machine.call("close_sandbox", self._name)


class RemoteSandboxes(SandboxProvider):
    """Makes sandboxes on the machines of a cluster, each where the most slots are free. Does not own the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sandboxes: set[RemoteSandbox] = set()
        self._closed = False

    async def create(self, spec: SandboxSpec | None = None) -> RemoteSandbox:
        if self._closed:
            raise SandboxLost("this provider is closed; make another RemoteSandboxes")
        held = contextlib.AsyncExitStack()
        sandbox = RemoteSandbox(await held.enter_async_context(self._cluster.placed()), held)
        self._sandboxes.add(sandbox)
        held.callback(self._sandboxes.discard, sandbox)
        try:
            await sandbox.open(spec or SandboxSpec())
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def image(self) -> str:
        return next((machine.facts.image for machine in self._cluster.working), "")

    async def image_digest(self) -> str:
        return next((machine.facts.digest for machine in self._cluster.working), "")

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        raise UsageError("images are built on the nodes of a cluster, by their scorers")

    async def close(self) -> None:
        """Close every sandbox that is still open. Idempotent."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))


class RemoteGrader:
    """Grades on the machines of a cluster; implements `Grader`.

    A grading that is lost is done again elsewhere, and so is one whose machine then grades a canary wrong: a score is
    returned only when a later canary of its machine was right.

    Args:
        cluster: Its machines.
        weights: Weights of the stages; None for the default.
        cached: Whether each machine uses its own cache of gradings.
        texts: Grades answers that are text, in this process; None for problems without them.
        opened: Called before each grading: opens the cluster if nothing has yet.
    """

    def __init__(
        self,
        cluster: Cluster,
        weights: RewardWeights | None = None,
        *,
        cached: bool = False,
        texts: Scorer | None = None,
        opened: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.weights, self._texts = weights or RewardWeights(), texts
        self._cluster, self._cached, self._opened = cluster, cached, opened
        self._problems: dict[str, Any] = {}
        """The last problems that were sent to Ray's object store, by digest: each node fetches them once."""

    async def score(
        self,
        problem: Problem,
        files: Mapping[str, str | bytes],
        timeout: float = 600.0,
        *,
        seed: int | None = None,
    ) -> Score:
        """See `Scorer.score`."""
        if problem.asks_text and self._texts is not None:
            return await self._texts.score(problem, files, timeout)
        if self._opened is not None:
            await self._opened()
        unused: list[tuple[str, Score]] = []

        async def once() -> Score:
            async with self._cluster.grading() as machine:
                sent = self._sent(problem)
                options = (timeout, seed, self.weights, self._cached, queue_group())
                score: Score = await machine.call("score", sent, dict(files), *options)
            unused.append((machine.name, score))
            await self._cluster.vouch(machine)
            unused.pop()
            return score

        score = await retrying(once)
        for name, before in unused:
            if before.passed != score.passed:
                logger.error(
                    "machine %s gave a wrong verdict on %s, which was not used: passed was %s and is %s",
                    name, problem.id, before.passed, score.passed,
                )  # fmt: skip
        return score

    def _sent(self, problem: Problem) -> Any:
        import ray

        sent = self._problems.pop(problem.digest, None) or ray.put(problem)
        while len(self._problems) >= REMEMBERED:
            del self._problems[next(iter(self._problems))]
        self._problems[problem.digest] = sent  # the newest is the last
        return sent

    async def prepare(self, problem: Problem) -> None:
        """Machines keep scoring sandboxes ready from their first grading on."""


class ClusterRuntime(Runtime):
    """The runtime of a loop whose episodes have their sandboxes on a cluster; for `episodes.runtime.using`.

    Args:
        address: Of the cluster's head, such as ``10.0.0.1:6379``; ``auto`` for the one on this machine.
        limits: As for `Cluster`.
    """

    def __init__(self, address: str = "auto", limits: str = "") -> None:
        self.cluster = Cluster(limits)
        self._provider = _OpenedLater(self.cluster, address)
        self.users = 0
        self._graders: dict[tuple[RewardWeights | None, Path | None, str | Judge | None], RemoteGrader] = {}
        self._judges: dict[str | Judge | None, Judge | None] = {}

    @property
    def provider(self) -> RemoteSandboxes:
        return self._provider

    @property
    def agents(self) -> RemoteSandboxes:
        return self._provider

    def scorer(
        self,
        weights: RewardWeights | None,
        cache: Path | None = None,
        *,
        waiting: int = WAITING,
        options: GradingOptions | None = None,
    ) -> RemoteGrader:
        """The grader with these weights; with a `cache`, each machine uses its own. Texts are graded in this process.

        Raises:
            UsageError: The options name images: a cluster's nodes have only the simulation image.
        """
        options = options or GradingOptions()
        if options.harness.images:
            raise UsageError("--harness-image: a cluster grades with the simulation image only; leave --ray out")
        key = (weights, cache, options.judge)
        if key not in self._graders:
            if options.judge not in self._judges:
                self._judges[options.judge] = judge_of(options)
            texts = Scorer(weights=weights, cache=cache, judge=self._judges[options.judge])
            self._graders[key] = RemoteGrader(
                self.cluster, weights, cached=cache is not None, texts=texts, opened=self._provider.opened
            )
        return self._graders[key]

    async def close(self) -> None:
        """End every container on every machine, and the connections to judges."""
        try:
            await self.provider.close()
            for named, judge in self._judges.items():
                if isinstance(named, str) and isinstance(judge, Closable):
                    await judge.close()
        finally:
            await self.cluster.close()

    def abandon(self) -> None:
        self.cluster.abandon()


def runtime_at(address: str, limits: str = "") -> Callable[[], Runtime]:
    """What makes the runtime of a loop, for `episodes.runtime.using`. Arguments are those of `ClusterRuntime`."""
    return functools.partial(ClusterRuntime, address, limits)


class _OpenedLater(RemoteSandboxes):
    """Connects at the first sandbox or grading."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        super().__init__(cluster)
        self._address, self._opening = address, asyncio.Lock()
        self._open = False

    async def opened(self) -> None:
        """Return when the cluster is open. Raises like `connect` and `Cluster.open`."""
        async with self._opening:
            if not self._open:
                await asyncio.to_thread(connect, self._address)
                await self._cluster.open()
                self._open = True

    async def create(self, spec: SandboxSpec | None = None) -> RemoteSandbox:
        await self.opened()
        return await super().create(spec)
