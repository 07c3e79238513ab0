"""Episodes on a cluster: sandboxes and a grader whose work is done on its machines, and the runtime with both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..episodes.runtime import Runtime
from ..errors import SandboxError, SandboxLost, UsageError
from ..problems import Problem
from ..retries import Retries, retrying
from ..sandboxes import WORK_DIR, CommandResult, FoundFiles, OutputSink, Process, Sandbox, SandboxProvider, SandboxSpec
from ..scoring import RewardWeights, Scorer
from ..scoring.options import GradingOptions
from ..scoring.score import Score
from .machine import Origin
from .machines import CANARY_SECONDS, Cluster
from .node_client import NodeClient, ObjectCache

logger = logging.getLogger(__name__)


class RemoteSandbox(Sandbox):
    """A sandbox on a machine of the cluster; implements `Sandbox`, except processes beside the shell."""

    def __init__(self, machine: NodeClient, held: contextlib.AsyncExitStack, sent: ObjectCache) -> None:
        self._machine, self._held, self._sent = machine, held, sent
        self._name = secrets.token_hex(8)
        self._id = self.image_id = ""
        self._closing: asyncio.Task[None] | None = None

    async def open(self, spec: SandboxSpec) -> None:
        self._id, self.image_id = await self._machine.call("create", self._name, spec, Origin.here())

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return await self._machine.call("on_sandbox", self._name, method, options, *arguments)

    @property
    def id(self) -> str:
        return f"{self._id} on {self._machine.name}"

    async def run(self, command: str, *, on_output: OutputSink | None = None, **options: Any) -> CommandResult:
        result: CommandResult = await self._call("run", command, **options)
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

    async def write_files(self, files: Mapping[str, str | bytes], **options: Any) -> None:
        await self._call("write_files", self._sent.files(files), **options)

    async def read_files(self, paths: Sequence[str], **limits: Any) -> FoundFiles:
        found: FoundFiles = await self._call("read_files", list(paths), **limits)
        return found

    async def oom_kills(self) -> int | None:
        kills: int | None = await self._call("oom_kills")
        return kills

    async def ping(self) -> None:
        await self._call("ping")

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
    """Creates each sandbox on the machine with the largest share of free slots. Does not own the cluster."""

    can_spawn = False
    """Whether its sandboxes support processes beside the shell, which agents inside sandboxes need."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sandboxes: set[RemoteSandbox] = set()
        self._closed = False

    async def create(self, spec: SandboxSpec | None = None) -> RemoteSandbox:
        if self._closed:
            raise SandboxLost("this provider is closed; make another RemoteSandboxes")
        await self._cluster.open()
        held = contextlib.AsyncExitStack()
        sandbox = RemoteSandbox(await held.enter_async_context(self._cluster.placed()), held, self._cluster.sent)
        self._sandboxes.add(sandbox)
        held.callback(self._sandboxes.discard, sandbox)
        try:
            await sandbox.open(spec or SandboxSpec())
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    @contextlib.asynccontextmanager
    async def grading(self) -> AsyncIterator[None]:
        """Opens the cluster, and raises like `Cluster.open`. Each machine limits its own gradings."""
        await self._cluster.open()
        yield

    async def image(self) -> str:
        """The digest of its content, since its id may differ from node to node."""
        return next((machine.facts.digest for machine in self._cluster.working), "")

    async def build_image(self, files: Mapping[str, bytes], *, dockerfile: str = "Dockerfile") -> str:
        raise UsageError("images are built on the nodes of a cluster, by their scorers")

    async def close(self) -> None:
        """Close every sandbox that is still open. Idempotent."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))


class RemoteGrader:
    """Grades on the machines of a cluster; implements `Grader`.

    A grading that is lost or fails is repeated on another machine, and so is one whose machine then grades a canary
    incorrectly: a score is returned only once its machine has correctly graded a later canary.

    Args:
        cluster: The cluster whose machines grade.
        weights: Weights of the stages; None for the default.
        cached: Whether each machine uses its own cache of gradings.
        texts: Grades answers that are text, in this process; None for problems without them.
    """

    def __init__(
        self,
        cluster: Cluster,
        weights: RewardWeights | None = None,
        *,
        cached: bool = False,
        texts: Scorer | None = None,
    ) -> None:
        self.weights, self._texts = weights or RewardWeights(), texts
        self._cluster, self._cached = cluster, cached

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
        await self._cluster.open()
        unused: list[tuple[str, Score]] = []
        tried, retries = set[str](), Retries()

        async def once() -> Score:
            async with self._cluster.grading(tried) as machine:
                tried.add(machine.node)
                sent = self._cluster.sent.problem(problem)
                options = (timeout, seed, self.weights, self._cached, Origin.here())
                score: Score = await machine.call("score", sent, dict(files), *options)
            unused.append((machine.name, score))
            await self._cluster.confirm(machine)
            unused.pop()
            return score

        score = await retrying(once, retries)
        for name, before in unused:
            if before.passed != score.passed:
                logger.error(
                    "machine %s gave a wrong verdict on %s, which was not used: passed=%s; graded again, passed=%s",
                    name, problem.id, before.passed, score.passed,
                )  # fmt: skip
        return score.model_copy(update={"retries": retries.count}) if retries.count else score


class ClusterRuntime(Runtime):
    """The runtime of a loop whose episodes use sandboxes on a cluster; for `episodes.runtime.using`.

    It connects at the first sandbox or grading.

    Args:
        cluster: Not connected yet; closed with the runtime.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(RemoteSandboxes(cluster))
        self.cluster = cluster

    def _grader(
        self, weights: RewardWeights | None, cache: Path | None, waiting: int, options: GradingOptions
    ) -> RemoteGrader:
        """With a `cache`, each machine uses its own. Texts are graded in this process."""
        if options.harness.images:
            raise UsageError("--harness-image: a cluster grades with the simulation image only; leave --ray out")
        texts = Scorer(weights=weights, cache=cache, judge=self._judges.judge_of(options))
        return RemoteGrader(self.cluster, weights, cached=cache is not None, texts=texts)

    async def close(self) -> None:
        """End every container on every machine, and the connections to judges."""
        try:
            await self.provider.close()
            await self._judges.close()
        finally:
            await self.cluster.close()

    def abandon(self) -> None:
        self.cluster.abandon()


def runtime_at(
    address: str, limits: str = "", canary_seconds: float = CANARY_SECONDS, slots: int = 0
) -> Callable[[], ClusterRuntime]:
    """A factory of a loop's runtime, for `episodes.runtime.using`. The arguments are those of `Cluster`."""
    return lambda: ClusterRuntime(Cluster(limits, canary_seconds, slots, address))
