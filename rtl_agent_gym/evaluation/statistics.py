"""Unbiased pass@k with confidence intervals, and a test of whether two runs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import comb, hypot, sqrt
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from ..visible import plural

RESAMPLES = 10_000
DRAWN_AT_ONCE = 2_000_000
"""Upper bound on drawn problems in memory at once; enough for all `RESAMPLES` of up to 200 problems."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over problems with its confidence interval."""

    value: float
    low: float
    high: float
    problems: int

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} – {self.high:.1%})"


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The probability that at least one of `k` episodes passes, drawn without replacement from `samples`.

    This is the unbiased estimator of the same for `k` new episodes; 1 - (1 - passed/samples)**k is biased.

    >>> pass_at_k(5, 1, 1), pass_at_k(5, 1, 5), pass_at_k(4, 2, 2)
    (0.2, 1.0, 0.8333333333333334)
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ValueError(f"pass@{k} needs 1 <= k <= samples and 0 <= passed <= samples, got {passed} of {samples}")
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


@dataclass(frozen=True)
class Paired:
    """Two runs compared on the problems that both have played."""

    difference: float
    """The other run's pass rate minus the first run's, as means over the problems."""
    low: float
    """Lower end of the difference's interval; `high` is its upper end."""
    high: float
    p_value: float
    """Probability of at least this difference if both runs were equally good on each problem."""
    problems: int

    def __str__(self) -> str:
        shared = plural(self.problems, "shared problem")
        return (
            f"{100 * self.difference:+.1f} points of pass rate over {shared} (95 % interval {100 * self.low:+.1f} to "
            f"{100 * self.high:+.1f}; paired permutation test: p = {self.p_value:.3g})"
        )


def wilson(passed: float, total: int) -> tuple[float, float]:
    """Wilson's confidence interval for a share, from `passed` of `total` draws. Its width is never 0.

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


def newcombe(first: tuple[float, int], other: tuple[float, int]) -> tuple[float, float]:
    """A confidence interval for the other share minus the first, each given as passed and total.

    Newcombe's hybrid score method (method 10 of Statistics in Medicine 17, 1998, 873-890), which combines Wilson's
    intervals of the two shares. Its width is never 0.
    """
    (share, low, high), (others_share, others_low, others_high) = (
        (passed / total, *wilson(passed, total)) for passed, total in (first, other)
    )
    difference = others_share - share
    below, above = hypot(others_share - others_low, high - share), hypot(others_high - others_share, share - low)
    return difference - below, difference + above


def estimate(verdicts: Sequence[tuple[int, int]], k: int = 1) -> Estimate:
    """pass@k as a mean over problems, with its interval.

    For one problem: Wilson's interval of its pass rate, converted to pass@k. For several: a hierarchical bootstrap,
    which draws problems, and for each drawn problem as many episodes as it has. As some episodes are drawn twice,
    pass@k of a draw is too low for k > 1, so the draws are shifted to make their mean the estimate. Wilson's interval
    over the problems is used if each has one episode, since the verdicts are then independent and it is better near 0
    and 1, and if the estimate is exactly 0 or 1, where a bootstrap would see little or no variation.

    Args:
        verdicts: For each problem: the number of episodes that passed, and of all its episodes (at least `k`).
        k: The k of pass@k.
    """
    if not verdicts:
        raise ValueError("no problems to take the mean of")
    return _estimates(verdicts, [k])[k]


def _estimates(verdicts: Sequence[tuple[int, int]], ks: Sequence[int]) -> dict[int, Estimate]:
    """`estimate` for several k, from the same draws, which take most of the time."""
    size = len(verdicts)
    values = [fmean(pass_at_k(total, passed, k) for passed, total in verdicts) for k in ks]
    if size == 1:
        low, high = wilson(*verdicts[0])
        ends = [(1.0 - (1.0 - low) ** k, 1.0 - (1.0 - high) ** k) for k in ks]
    elif all(total == 1 for _, total in verdicts) or {0.0, 1.0}.issuperset(values):
        ends = [wilson(value * size, size) for value in values]
    else:
        ends = [
            wilson(value * size, size)
            if value in (0.0, 1.0)
            else _interval(np.clip(means + (value - means.mean()), 0.0, 1.0) if k > 1 else means)
            for k, value, means in zip(ks, values, _resampled(verdicts, ks), strict=True)
        ]
    return {
        k: Estimate(value, min(low, value), max(high, value), size)
        for k, value, (low, high) in zip(ks, values, ends, strict=True)
    }


def _interval(means: NDArray[np.float64]) -> tuple[float, float]:
    """The central interval with the share `CONFIDENCE` of resampled means."""
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)


def _resampled(verdicts: Sequence[tuple[int, int]], ks: Sequence[int]) -> NDArray[np.float64]:
    """For each k, `RESAMPLES` means of pass@k, each over resampled problems with resampled episodes."""
    draw = np.random.default_rng(0)
    passed, total = (np.asarray(column, dtype=np.int64) for column in zip(*verdicts, strict=True))
    numbers, kinds = np.unique(total, return_inverse=True)
    tables = np.zeros((len(ks), len(numbers), int(total.max()) + 1))  # pass@k by total's index in numbers, and passed
    for table, k in zip(tables, ks, strict=True):
        for row, number in zip(table, numbers.tolist(), strict=True):
            row[: number + 1] = [pass_at_k(number, count, k) for count in range(number + 1)]
    means = np.empty((len(ks), RESAMPLES))
    for rows in _chunks(len(verdicts)):
        problems = draw.integers(0, len(verdicts), size=(rows.stop - rows.start, len(verdicts)))
        drawn, kind = draw.binomial(total[problems], (passed / total)[problems]), kinds[problems]
        for place, table in enumerate(tables):
            means[place, rows] = table[kind, drawn].mean(axis=1)
    return means


def _chunks(problems: int) -> Iterator[slice]:
    """Slices of `RESAMPLES`, each as long as `DRAWN_AT_ONCE` allows for this number of problems."""
    size = max(1, DRAWN_AT_ONCE // problems)
    return (slice(start, min(start + size, RESAMPLES)) for start in range(0, RESAMPLES, size))


def compare(first: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]) -> Paired | None:
    """Compare two runs on the problems that both have, with a paired permutation test.

    Within each problem the episodes of both runs are shuffled and split again, which changes nothing on average if the
    runs are equally good. With one episode per problem this is McNemar's test, with one problem Fisher's.

    The interval of the difference is from a hierarchical bootstrap as in `estimate`. If each draw has the same
    difference, it is `newcombe`'s, over the problems, or over the episodes of a single problem.

    Args:
        first: For each problem: the number of episodes that passed, and of all its episodes (at least 1).
        other: The same for the other run.

    Returns:
        None if they share no problem.
    """
    shared = sorted(first.keys() & other.keys())
    if not shared:
        return None
    passed, total, others_passed, others_total = (
        np.asarray(column, dtype=np.int64)
        for column in zip(*((*first[name], *other[name]) for name in shared), strict=True)
    )
    draw = np.random.default_rng(0)
    difference = float((others_passed / others_total - passed / total).mean())
    both_passed, both_total = passed + others_passed, total + others_total
    chance, drawn = np.empty(RESAMPLES), np.empty(RESAMPLES)
    for rows in _chunks(len(shared)):
        size = (rows.stop - rows.start, len(shared))
        dealt = draw.hypergeometric(both_passed, both_total - both_passed, others_total, size=size)
        chance[rows] = (dealt / others_total - (both_passed - dealt) / total).mean(axis=1)
        problems = draw.integers(0, len(shared), size=size)
        mine = draw.binomial(total[problems], (passed / total)[problems]) / total[problems]
        theirs = draw.binomial(others_total[problems], (others_passed / others_total)[problems])
        drawn[rows] = (theirs / others_total[problems] - mine).mean(axis=1)
    as_far = int((np.abs(chance) >= abs(difference) - 1e-12).sum())
    if np.ptp(drawn) > 0:
        low, high = _interval(drawn)
    elif len(shared) == 1:
        low, high = newcombe(first[shared[0]], other[shared[0]])
    else:
        runs = ((passed / total).sum(), (others_passed / others_total).sum())
        low, high = newcombe(*((float(share), len(shared)) for share in runs))
    return Paired(difference, low, high, (1 + as_far) / (1 + RESAMPLES), len(shared))


def pass_curve(verdicts: Mapping[str, Sequence[bool]]) -> dict[int, Estimate]:
    """pass@k for k from 1 to the highest number of episodes of a problem, each over the problems that have k or more.

    Args:
        verdicts: For each problem: whether each of its episodes passed.
    """
    counts = [(sum(of_problem), len(of_problem)) for of_problem in verdicts.values()]
    most = max((total for _, total in counts), default=0)
    curve = dict[int, Estimate]()
    # For many consecutive k the same problems have k episodes, so they share their draws.
    for _, ks in groupby(range(1, most + 1), lambda k: sum(total >= k for _, total in counts)):
        several = list(ks)
        curve |= _estimates([found for found in counts if found[1] >= several[0]], several)
    return curve
