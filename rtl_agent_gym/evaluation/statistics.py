"""pass@k without bias, and how sure one can be of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over problems with its bootstrap confidence interval."""

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


def bootstrap(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The mean of one value a problem, with the percentile interval over resampled sets of problems.

    Problems are what is resampled: they, and not episodes, are the draws from the world that one wants to speak of.
    """
    if not values:
        raise ValueError("no values to take the mean of")
    array = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, len(array), size=(RESAMPLES, len(array)))
    means = array[draws].mean(axis=1)
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Estimate(float(array.mean()), float(low), float(high), len(array))


def pass_curve(verdicts: Mapping[str, Sequence[bool]]) -> dict[int, Estimate]:
    """pass@1, 2, … up to the most episodes any problem has, each over the problems that have enough.

    Args:
        verdicts: For each problem whether each of its episodes passed.
    """
    most = max((len(of_problem) for of_problem in verdicts.values()), default=0)
    return {
        k: bootstrap([pass_at_k(len(of), sum(of), k) for of in verdicts.values() if len(of) >= k])
        for k in range(1, most + 1)
    }
