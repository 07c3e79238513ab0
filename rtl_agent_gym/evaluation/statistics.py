"""pass@k without bias, how sure one can be of it, and whether two runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over problems with its confidence interval."""

    value: float
    low: float
    """Lower end of the interval."""
    high: float
    """Its upper end."""
    problems: int
    """How many it is the mean of."""


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that one of `k` episodes passes, drawn without replacement from `samples` of which `passed` did.

    This is the unbiased estimator of "k fresh episodes, at least one passes"; 1 - (1 - passed/samples)**k is not.

    >>> pass_at_k(5, 1, 1), pass_at_k(5, 1, 5), pass_at_k(4, 2, 2)
    (0.2, 1.0, 0.8333333333333334)
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ValueError(f"pass@{k} needs 1 <= k <= samples and 0 <= passed <= samples, got {passed} of {samples}")
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


@dataclass(frozen=True)
class Paired:
    """One run against another on the problems that both have played."""

    difference: float
    """The other run's pass rate minus the first one's, means over the problems."""
    low: float
    """Lower end of the difference's interval."""
    high: float
    """Its upper end."""
    p_value: float
    """How often chance alone makes a difference at least as large, were both runs equally good on each problem."""
    problems: int


def wilson(passed: float, total: int) -> tuple[float, float]:
    """Wilson's interval for a share of which `passed` of `total` draws are known. It never has width 0.

    >>> tuple(round(end, 3) for end in wilson(2, 5))
    (0.118, 0.769)
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    share, scale = passed / total, 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / scale
    low = 0.0 if passed == 0 else max(0.0, middle - half)
    high = 1.0 if passed == total else min(1.0, middle + half)
    return low, high


def estimate(verdicts: Sequence[tuple[int, int]], k: int = 1, *, seed: int = 0) -> Estimate:
    """pass@k as a mean over problems, with its interval.

    One problem: Wilson's interval of its pass rate, taken to pass@k. Several: a hierarchical bootstrap, which draws
    problems and, of each, as many episodes as it has. Where all episodes came out alike nothing varies to be drawn
    from, and the interval is Wilson's over the problems.

    Args:
        verdicts: For each problem how many episodes passed, of how many; at least `k` of each.
        k: Of pass@k.
        seed: Of the bootstrap.
    """
    if not verdicts:
        raise ValueError("no problems to take the mean of")
    values = [pass_at_k(total, passed, k) for passed, total in verdicts]
    value = float(np.mean(values))
    if len(verdicts) == 1:
        low, high = (1.0 - (1.0 - end) ** k for end in wilson(*verdicts[0]))
        return Estimate(value, min(low, value), max(high, value), 1)
    if all(passed == 0 for passed, _ in verdicts) or all(passed == total for passed, total in verdicts):
        low, high = wilson(value * len(verdicts), len(verdicts))
        return Estimate(value, low, high, len(verdicts))
    means = _resampled(verdicts, k, np.random.default_rng(seed))
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high), len(verdicts))


def _resampled(verdicts: Sequence[tuple[int, int]], k: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """`RESAMPLES` means of pass@k, each over problems and episodes drawn anew."""
    passed, total = (np.asarray(column, dtype=np.int64) for column in zip(*verdicts, strict=True))
    table = np.zeros((int(total.max()) + 1, int(total.max()) + 1))  # pass@k by total and passed
    for number in set(total.tolist()):
        table[number, : number + 1] = [pass_at_k(number, count, k) for count in range(number + 1)]
    problems = draw.integers(0, len(verdicts), size=(RESAMPLES, len(verdicts)))
    episodes = draw.binomial(total[problems], (passed / total)[problems])
    means: NDArray[np.float64] = table[total[problems], episodes].mean(axis=1)
    return means


def compare(
    first: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]], *, seed: int = 0
) -> Paired | None:
    """Whether two runs differ on the problems that both have.

    The test permutes: within each problem the episodes of both runs are shuffled and dealt out again, which changes
    nothing if neither run is better there. With one episode a problem it is McNemar's test, with one problem Fisher's.

    Args:
        first: For each problem how many episodes passed, of how many (1 or more).
        other: The same of the other run.
        seed: Of the permutations and of the interval's bootstrap.

    Returns:
        None where they share no problem.
    """
    shared = sorted(first.keys() & other.keys())
    if not shared:
        return None
    passed, total, others_passed, others_total = (
        np.asarray(column, dtype=np.int64)
        for column in zip(*((*first[name], *other[name]) for name in shared), strict=True)
    )
    draw = np.random.default_rng(seed)
    difference = float((others_passed / others_total - passed / total).mean())
    both_passed, both_total = passed + others_passed, total + others_total
    dealt = draw.hypergeometric(both_passed, both_total - both_passed, others_total, size=(RESAMPLES, len(shared)))
    chance = (dealt / others_total - (both_passed - dealt) / total).mean(axis=1)
    as_far = int((np.abs(chance) >= abs(difference) - 1e-12).sum())
    problems = draw.integers(0, len(shared), size=(RESAMPLES, len(shared)))
    mine = draw.binomial(total[problems], (passed / total)[problems]) / total[problems]
    theirs = draw.binomial(others_total[problems], (others_passed / others_total)[problems]) / others_total[problems]
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile((theirs - mine).mean(axis=1), [tail, 1.0 - tail])
    return Paired(difference, float(low), float(high), (1 + as_far) / (1 + RESAMPLES), len(shared))


def pass_curve(verdicts: Mapping[str, Sequence[bool]]) -> dict[int, Estimate]:
    """pass@1, 2, … up to the most episodes any problem has, each over the problems that have enough.

    Args:
        verdicts: For each problem whether each of its episodes passed.
    """
    counts = [(sum(of_problem), len(of_problem)) for of_problem in verdicts.values()]
    most = max((total for _, total in counts), default=0)
    return {k: estimate([found for found in counts if found[1] >= k], k) for k in range(1, most + 1)}
