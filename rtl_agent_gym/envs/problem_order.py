"""Which problems are in a batch: `Batches`, and a sampler for each kind of order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from ..errors import UsageError
from ..problems import Problem, order_by_difficulty

Order = Literal["shuffled", "curriculum", "given", "difficulty", "pass_rate", "edge"]
"""How problems are chosen.

- ``shuffled``: each once per epoch, in a new order each time.
- ``curriculum``: each once per epoch, from easy to hard, shuffled within a difficulty.
- ``given``: each once per epoch, in the order of the source.
- ``difficulty``: at random, first from the easiest third, then from more; after `ALL_BY` of the batches from all.
- ``pass_rate``: at random in proportion to p · (1 − p) of the running pass rate p, so that problems that are always or
  never solved are rare; an untried problem counts as p = 0.5. For trainers that call `CVDPDataset.learn`.
- ``edge``: those whose pass rate is likely to be near 0.5. The rate is drawn from its estimated distribution,
  which is wide for problems that were tried rarely or long ago, so that these are tried, too. For the same trainers.
"""

ALL_BY = 0.6
"""The share of the batches after which the order ``difficulty`` draws from all problems."""
FLOOR = 0.05
"""Added to the weight of each problem in the order ``pass_rate``, so that every problem can be drawn."""
MOMENTUM = 0.8
"""Weight of the old running pass rate when it is updated with a new group's."""
PRIOR = 2.0
"""Weight, in episodes, of the run's pass rate in the estimate of a problem's pass rate, in the order ``edge``."""
HALF_LIFE = 4.0
"""Number of groups for each problem after which a result counts half, in the order ``edge``."""


@dataclass(frozen=True)
class Schedule:
    """How batches are made from problems."""

    batch_size: int = 1
    """Problems, and so groups, in a batch."""
    group_size: int = 1
    """Episodes of each problem in a batch."""
    epochs: int = 1
    """How often each problem is played; not used if `batches` is set."""
    order: Order = "shuffled"
    seed: int = 0
    """At least 0."""
    batches: int | None = None
    """The number of batches, all of full size; None for as many as `epochs` gives."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "group_size", "epochs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise UsageError(f"seed must be a whole number of at least 0, got {self.seed!r}")
        if self.order not in get_args(Order):
            raise UsageError(f"order is {self.order!r}; expected one of {', '.join(get_args(Order))}")


class Batches:
    """The problems of each batch. The same arguments and the same calls of `learn` always give the same batches.

    A batch may contain the end of one epoch and the start of the next; only the last batch can be smaller than
    `Schedule.batch_size`.
    """

    def __init__(self, problems: Sequence[Problem], schedule: Schedule) -> None:
        if not problems:
            raise UsageError("a dataset needs at least one problem; the source is empty or the filters exclude all")
        self.problems, self.schedule = list(problems), schedule
        self.problem_sampler = SAMPLERS.get(schedule.order, EpochSampler)(self.problems, schedule, len(self))
        """Chooses the problems; save its `state` with a checkpoint, and restore it."""

    def __len__(self) -> int:
        if self.schedule.batches is not None:
            return self.schedule.batches
        return math.ceil(len(self.problems) * self.schedule.epochs / self.schedule.batch_size)

    def choose(self, index: int) -> list[Problem]:
        """The problems of a batch; some are repeated if there are fewer than `Schedule.batch_size`."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} does not exist; there are {len(self)}, counted from 0")
        size = self.schedule.batch_size
        chosen = self.problem_sampler.choose(index, size)
        if self.schedule.batches is None:
            chosen = chosen[: len(self.problems) * self.schedule.epochs - index * size]
        return chosen

    def learn(self, problem: str, passed: Sequence[float]) -> None:
        """Tell the sampler a group's results: 1 for each episode that passed, otherwise 0."""
        self.problem_sampler.learn(problem, passed)


class ProblemSampler:
    """Chooses problems. The same construction and the same calls of `learn` always give the same choices.

    This base class learns nothing.
    """

    learned: tuple[str, ...] = ()
    """What `learn` records of each problem."""

    def __init__(self, problems: Sequence[Problem], schedule: Schedule, batches: int) -> None:
        self._problems, self._schedule, self._batches = list(problems), schedule, batches
        self._learned: dict[str, dict[str, float]] = {name: {} for name in self.learned}

    def _generator(self, number: int) -> np.random.Generator:
        """The generator of random numbers for a batch or an epoch."""
        return np.random.default_rng([self._schedule.seed, number])

    def choose(self, index: int, size: int) -> list[Problem]:
        """The problems of a batch, counted from 0; some are repeated if there are fewer than `size`."""
        raise NotImplementedError

    def learn(self, problem: str, passed: Sequence[float]) -> None:
        """Record a group's results; see `Batches.learn`."""

    def state(self) -> dict[str, Any]:
        """What was learned of each problem, for a checkpoint."""
        return {name: dict(values) for name, values in self._learned.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with a `state`."""
        self._learned = {name: dict(state.get(name, {})) for name in self.learned}

    def _numbers(self, name: str, unknown: float) -> Any:
        known = self._learned[name]
        return np.array([known.get(problem.id, unknown) for problem in self._problems])


class EpochSampler(ProblemSampler):
    """Every problem once per epoch, in the order ``shuffled``, ``curriculum`` or ``given``; learns nothing."""

    def choose(self, index: int, size: int) -> list[Problem]:
        count, places = len(self._problems), range(index * size, (index + 1) * size)
        orders = {number: self.epoch(number) for number in {place // count for place in places}}
        return [orders[place // count][place % count] for place in places]

    def epoch(self, number: int) -> list[Problem]:
        """The problems in the order of an epoch, counted from 0."""
        if self._schedule.order == "given":
            return list(self._problems)
        places = self._generator(number).permutation(len(self._problems))
        shuffled = [self._problems[int(place)] for place in places]
        return order_by_difficulty(shuffled) if self._schedule.order == "curriculum" else shuffled


class WideningSampler(ProblemSampler):
    """Draws at first from the easiest problems, later from all of them; learns nothing."""

    def choose(self, index: int, size: int) -> list[Problem]:
        pool = self.pool(index)
        return draw(pool, np.ones(len(pool)), size, self._generator(index))

    def pool(self, index: int) -> list[Problem]:
        """The problems that a batch may contain."""
        share = min(1.0, 1 / 3 + (2 / 3) * index / max(1.0, ALL_BY * self._batches))
        return order_by_difficulty(self._problems)[: max(1, round(share * len(self._problems)))]


class PassRateSampler(ProblemSampler):
    """Draws in proportion to p · (1 − p) of a problem's running pass rate p."""

    learned = ("pass_rates",)

    def choose(self, index: int, size: int) -> list[Problem]:
        rates = self._numbers("pass_rates", 0.5)
        return draw(self._problems, rates * (1 - rates) + FLOOR, size, self._generator(index))

    def learn(self, problem: str, passed: Sequence[float]) -> None:
        if passed:
            rate, known = sum(passed) / len(passed), self._learned["pass_rates"]
            known[problem] = MOMENTUM * known.get(problem, rate) + (1 - MOMENTUM) * rate


class EdgeSampler(ProblemSampler):
    """Chooses the problems whose pass rate, drawn from a Beta distribution, is nearest to 0.5.

    The distribution of a problem is estimated from its own results, which count less the older they are, and from
    `PRIOR` episodes at the pass rate of the whole run.
    """

    learned = ("played", "passed")

    def choose(self, index: int, size: int) -> list[Problem]:
        generator = self._generator(index)
        # The pass rate of the run, with one pass and one failure added, so that it is never 0 or 1.
        rate = (sum(self._learned["passed"].values()) + 1) / (sum(self._learned["played"].values()) + 2)
        passed = self._numbers("passed", 0.0)
        failed = self._numbers("played", 0.0) - passed
        chosen: list[Problem] = []
        while len(chosen) < size:
            drawn = generator.beta(passed + PRIOR * rate, failed + PRIOR * (1 - rate))
            nearest = np.argsort(np.abs(drawn - 0.5), kind="stable")[: size - len(chosen)]
            chosen += [self._problems[int(place)] for place in nearest]
        return chosen

    def learn(self, problem: str, passed: Sequence[float]) -> None:
        kept = 0.5 ** (1 / (HALF_LIFE * len(self._problems)))
        for name, new in (("played", len(passed)), ("passed", sum(passed))):
            counts = {known: count * kept for known, count in self._learned[name].items()}
            self._learned[name] = counts | {problem: counts.get(problem, 0.0) + new}


SAMPLERS: Mapping[str, type[ProblemSampler]] = {
    "difficulty": WideningSampler, "pass_rate": PassRateSampler, "edge": EdgeSampler,
}  # fmt: skip
"""The samplers of the orders that are not divided into epochs."""


def draw(pool: Sequence[Problem], weights: Any, size: int, generator: np.random.Generator) -> list[Problem]:
    """`size` problems in proportion to their weights; none is repeated before all were drawn."""
    chosen: list[Problem] = []
    while len(chosen) < size:
        count = min(size - len(chosen), len(pool))
        drawn = generator.choice(len(pool), size=count, replace=False, p=weights / weights.sum())
        chosen += [pool[int(place)] for place in drawn]
    return chosen
