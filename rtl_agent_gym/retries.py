"""Retries after faults of the machine or of a service: each level of work has one row here, and one place that retries.

======================  ======================  ==============================================================
level                   row                     retried by
======================  ======================  ==============================================================
request to an engine    `REQUEST`               `engines.requests`; while a run starts, for its `patience`
request to a service    `CHAT`                  `policies.chat`
start of a sandbox      `START`                 `episodes.workspaces`; before the first episode,
                                                `evaluation.evaluate`
grading                 `GRADING`               `retrying`; on a cluster `RemoteGrader`, on another node
episode                 `EPISODE`               `evaluation.evaluate`, and verl's adapter; without a pause: training
                                                (``rollout_retries`` times) and SkyRL's adapter
episodes of a step      `STEP_EPISODES`         `training.rollouts`, if every group was lost
training of a step      `STEP`                  `training.checkpointer`, from the last checkpoint
use of a node           `NODE`                  `cluster.machines`, until the run ends or the node grades incorrectly
======================  ======================  ==============================================================

No level retries what the level below it already retries. It either requests single attempts (a cluster's grader from
the scorers of its nodes; a step, when it creates a new trainer, from its engine), or it retries something else: an
episode is played again from its beginning. The code that raises an error decides if it is temporary; see `errors`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from .errors import SandboxError
from .metrics import FAULTS


class Retry(NamedTuple):
    """How often a level tries its work, and how long it pauses in between."""

    attempts: int
    first: float
    """Seconds of the first pause."""
    longest: float
    """Maximum seconds of a pause."""
    growth: float = 2.0
    """Each pause is this many times the one before."""
    spread: float = 1.0
    """The random fraction of each pause, so that work that failed together is not retried at the same moment."""

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failures."""
        longest = min(self.longest, self.first * self.growth ** min(failures - 1, 30))
        return longest * random.uniform(1 - self.spread, 1)

    def retrying(self, temporary: Callable[[BaseException], bool], **options: Any) -> AsyncRetrying:
        """A retry loop of tenacity (``AsyncRetrying``) that raises the last error.

        Args:
            temporary: Whether a retry may help after an exception.
            options: Replace or add arguments of ``AsyncRetrying``, such as ``stop`` and ``before_sleep``.
        """
        defaults: dict[str, Any] = {
            "retry": retry_if_exception(temporary),
            "stop": stop_after_attempt(self.attempts),
            "wait": lambda state: self.pause(state.attempt_number),
            "reraise": True,
        }
        return AsyncRetrying(**(defaults | options))


REQUEST = Retry(attempts=5, first=1.0, longest=16.0, spread=0.3)
"""For requests that change nothing. Others are never retried individually; see `engines.requests`."""
CHAT = Retry(attempts=8, first=1.0, longest=60.0)
"""``attempts`` of `ModelOptions` replaces the number of attempts. A longer pause requested by the service is used."""
START = Retry(attempts=3, first=0.5, longest=10.0)
"""The option ``start_attempts`` replaces the number of attempts."""
GRADING = Retry(attempts=4, first=0.5, longest=8.0)
EPISODE = Retry(attempts=3, first=1.0, longest=30.0)
"""The options ``attempts`` and ``longest_pause`` replace two of the numbers."""
STEP_EPISODES = Retry(attempts=7, first=5.0, longest=160.0, spread=0.0)
STEP = Retry(attempts=4, first=2.0, longest=30.0, growth=5.0, spread=0.0)
NODE = Retry(attempts=sys.maxsize, first=30.0, longest=600.0, spread=0.0)


T = TypeVar("T")


@dataclass
class Retries:
    """How often one grading was repeated because the machine failed."""

    count: int = 0
    attempts: int | None = None
    """Maximum attempts in all; None for the number of `GRADING`."""


async def retrying(work: Callable[[], Awaitable[T]], retries: Retries | None = None) -> T:
    """Do work, and retry it with growing pauses while it raises `SandboxError`, up to `Retries.attempts` attempts.

    Each of these errors is counted in the metrics, even if a later attempt succeeds. `retries` limits the attempts and
    counts the retries.
    """
    retries = retries or Retries()
    try:
        stop = stop_after_attempt(retries.attempts or GRADING.attempts)
        async for attempt in GRADING.retrying(lambda error: isinstance(error, SandboxError), stop=stop):
            with attempt:
                retries.count += attempt.retry_state.attempt_number > 1
                try:
                    return await work()
                except SandboxError as error:
                    FAULTS.labels("grading", type(error).__name__).inc()
                    raise
    except SandboxError as error:
        error.retries = max(error.retries, retries.count)
        raise
    raise AssertionError("unreachable")
