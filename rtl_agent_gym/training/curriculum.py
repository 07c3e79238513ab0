"""Which problems a step works on.

A choice follows from the seed, the step and what was learnt of earlier steps: a resumed run chooses as it would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..errors import UsageError
from ..problems import Problem, order_by_difficulty

CurriculumName = Literal["none", "difficulty", "pass_rate"]

ALL_BY = 0.6
"""The share of a run after which the curriculum by difficulty has let in every problem."""
FLOOR = 0.05
"""The chance weight that a problem always keeps, so that none is forgotten."""


@dataclass
class Curriculum:
    """Chooses problems.

    - ``none``: each problem once an epoch, in an order of its own each time.
    - ``difficulty``: the easiest third at first, all of them after `ALL_BY` of the run.
    - ``pass_rate``: in proportion to p · (1 − p) of the running pass rate p, so that what is always or never solved
      comes seldom; a problem that has not been tried counts as p = 0.5.
    """

    problems: Sequence[Problem]
    kind: CurriculumName = "none"
    batch_size: int = 1
    num_steps: int = 1
    seed: int = 0
    momentum: float = 0.8
    pass_rates: dict[str, float] = field(default_factory=dict)
    """The running pass rate of each problem that was tried."""

    def __post_init__(self) -> None:
        if not self.problems:
            raise UsageError("there is no problem to train on: the filters leave none")
        self._ordered = order_by_difficulty(self.problems)

    def choose(self, step: int) -> list[Problem]:
        """The problems of a step, counted from 0; some come twice where there are fewer than `batch_size`."""
        if self.kind == "none":
            places = range(step * self.batch_size, (step + 1) * self.batch_size)
            return [self._in_epoch(*divmod(place, len(self.problems))) for place in places]
        rng = np.random.default_rng([self.seed, step])
        pool = self.pool(step)
        weights = (
            np.array([self._weight(problem) for problem in pool]) if self.kind == "pass_rate" else np.ones(len(pool))
        )
        chosen: list[Problem] = []
        while len(chosen) < self.batch_size:
            size = min(self.batch_size - len(chosen), len(pool))
            picked = rng.choice(len(pool), size=size, replace=False, p=weights / weights.sum())
            chosen += [pool[int(place)] for place in picked]
        return chosen

    def pool(self, step: int) -> list[Problem]:
        """The problems that may come at a step."""
        if self.kind != "difficulty":
            return list(self.problems)
        share = min(1.0, 1 / 3 + (2 / 3) * step / max(1.0, ALL_BY * self.num_steps))
        return self._ordered[: max(1, round(share * len(self._ordered)))]

    def learn(self, problem: str, passed: Sequence[float]) -> None:
        """Take in how a group did: 1 for each episode that passed, 0 for each that did not."""
        if passed:
            rate = sum(passed) / len(passed)
            before = self.pass_rates.get(problem, rate)
            self.pass_rates[problem] = self.momentum * before + (1 - self.momentum) * rate

    def load(self, state: Mapping[str, float]) -> None:
        """Take back `pass_rates` from a checkpoint."""
        self.pass_rates = {problem: float(rate) for problem, rate in state.items()}

    def _weight(self, problem: Problem) -> float:
        rate = self.pass_rates.get(problem.id, 0.5)
        return rate * (1 - rate) + FLOOR

    def _in_epoch(self, epoch: int, place: int) -> Problem:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.problems))
        return self.problems[int(order[place])]
