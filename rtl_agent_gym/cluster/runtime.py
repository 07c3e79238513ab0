"""The runtime of episodes whose sandboxes and gradings are on a cluster."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path

from ..episodes.runtime import WAITING, Runtime
from ..errors import UsageError
from ..policies.judge import NamedJudges
from ..sandboxes import SandboxSpec
from ..scoring import RewardWeights, Scorer
from ..scoring.options import GradingOptions
from .connecting import connect
from .machines import CANARY_SECONDS, Cluster
from .remote import RemoteGrader, RemoteSandbox, RemoteSandboxes


class ClusterRuntime(Runtime):
    """The runtime of a loop whose episodes have their sandboxes on a cluster; for `episodes.runtime.using`.

    Args:
        address: Of the cluster's head, such as ``10.0.0.1:6379``; ``auto`` for the one on this machine.
        limits: As for `Cluster`.
        canary_seconds: As for `Cluster`.
        slots: As for `Cluster`.
    """

    def __init__(
        self, address: str = "auto", limits: str = "", canary_seconds: float = CANARY_SECONDS, slots: int = 0
    ) -> None:
        self.cluster = Cluster(limits, canary_seconds, slots=slots)
        self._provider = _OpenedLater(self.cluster, address)
        self.users = 0
        self._graders: dict[tuple[RewardWeights | None, Path | None, GradingOptions], RemoteGrader] = {}
        self._judges = NamedJudges()

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
        key = (weights, cache, options)
        if key not in self._graders:
            texts = Scorer(weights=weights, cache=cache, judge=self._judges.judge_of(options))
            self._graders[key] = RemoteGrader(
                self.cluster, weights, cached=cache is not None, texts=texts, opened=self._provider.opened
            )
        return self._graders[key]

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
) -> Callable[[], Runtime]:
    """What makes the runtime of a loop, for `episodes.runtime.using`. Arguments are those of `ClusterRuntime`."""
    return functools.partial(ClusterRuntime, address, limits, canary_seconds, slots)


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
