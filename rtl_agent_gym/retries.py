"""Who repeats what after a fault of the machine or of a service: each level of work has one row, and one place.

======================  ======================  ==============================================================
level                   row                     repeated by
======================  ======================  ==============================================================
request to an engine    `REQUEST`               `engines.requests`; while a run starts, until its patience ends
request to a service    `CHAT`                  `policies.chat`
start of a sandbox      `START`                 `episodes.workspaces`; before the first episode,
                                                `evaluation.evaluate`
grading                 `GRADING`               `retrying`; on a cluster `RemoteGrader`, elsewhere
episode                 `EPISODE`               `evaluation.evaluate`, and verl's adapter; in training
                                                ``rollout_retries``, for SkyRL the adapter: both at once
episodes of a step      `STEP_EPISODES`         `training.rollouts`, where every group was lost
training of a step      `STEP`                  `training.checkpointer`, from the last checkpoint on
use of a node           `NODE`                  `cluster.machines`, until the run ends or the node grades wrong
======================  ======================  ==============================================================

No level repeats the work that the level below it repeats already: it asks that one for a single attempt, as the grader
of a cluster asks the scorers of its nodes, and a step its engine for a new trainer; or it repeats something else, as an
episode is played again from its beginning. Which errors are temporary is decided where they are raised; see `errors`.
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
    """Seconds of any pause, at most."""
    growth: float = 2.0
    """Each pause is this many times the one before."""
    spread: float = 1.0
    """The part of each pause that is drawn at random, so that work which failed together does not return together."""

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failures."""
        longest = min(self.longest, self.first * self.growth ** min(failures - 1, 30))
        return longest * random.uniform(1 - self.spread, 1)

    def retrying(self, temporary: Callable[[BaseException], bool], **options: Any) -> AsyncRetrying:
        """Repeats work, as tenacity's ``AsyncRetrying``; the last error is raised.

        Args:
            temporary: Whether a repetition may help after an exception.
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
"""A request that changes nothing. Others are never repeated alone; see `engines.requests`."""
CHAT = Retry(attempts=8, first=1.0, longest=60.0)
"""The option ``attempts`` of `ModelOptions` replaces the number; a longer time that the service requests, the pause."""
START = Retry(attempts=3, first=0.5, longest=10.0)
"""The option ``start_attempts`` replaces the number."""
GRADING = Retry(attempts=4, first=0.5, longest=8.0)
EPISODE = Retry(attempts=3, first=1.0, longest=30.0)
"""The options ``attempts`` and ``longest_pause`` replace the numbers."""
STEP_EPISODES = Retry(attempts=7, first=5.0, longest=160.0, spread=0.0)
STEP = Retry(attempts=4, first=2.0, longest=30.0, growth=5.0, spread=0.0)
NODE = Retry(attempts=sys.maxsize, first=30.0, longest=600.0, spread=0.0)


T = TypeVar("T")


@dataclass
class Retries:
    """How often one grading was repeated because the machine failed."""

    count: int = 0
    attempts: int | None = None
    """How often it is tried in all; None for `GRADING`."""


async def retrying(work: Callable[[], Awaitable[T]], retries: Retries | None = None) -> T:
    """Do work, and repeat it with growing pauses while it raises `SandboxError`, at most `Retries.attempts` times.

    Each of these errors is counted in the metrics, also if a later attempt works. `retries` bounds and counts the
    repetitions.
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
