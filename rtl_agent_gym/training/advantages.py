"""What each sampled token is credited with.

::

    A_t = (R − baseline) · reward_coef − λ · KL_t        for each token t that the student sampled, 0 elsewhere

R is the episode's reward, the same for all its tokens; ``KL_t = log p_student − log p_teacher`` of the sampled token,
times the weight of its kind where there are such weights.
The baseline need not come from the group, so a reward reaches the gradient at group size 1 too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import UsageError

BaselineName = Literal["group", "batch", "running", "none"]
"""Where the baseline comes from: the group's mean, the batch's mean, the running mean of the problem, or 0."""


@dataclass(frozen=True)
class CreditConfig:
    """How reward and KL become advantages."""

    reward_coef: float = 1.0
    """Weight of the centred reward; 0 leaves the KL alone."""
    kl_penalty_coef: float = 0.7
    """λ; 0 leaves the reward alone, and no teacher is asked."""
    kl_discount_factor: float = 0.0
    """With g > 0, a token is also charged for later ones: Σ g^k · KL_{t+k}, k counted in sampled tokens."""
    kl_clip: float | None = None
    """Bound on each token's |λ · KL|, before discounting."""
    kl_budget: float | None = None
    """Nats of |KL| that an episode may gather; the tokens behind that are not judged. Where a slip has led off every
    path that the teacher knows, its opinions are noise, and there is more of that than of anything else."""
    baseline: BaselineName = "group"

    def __post_init__(self) -> None:
        if not 0 <= self.kl_discount_factor <= 1:
            raise UsageError(f"kl_discount_factor is between 0 and 1, got {self.kl_discount_factor}")
        if self.kl_clip is not None and self.kl_clip <= 0:
            raise UsageError(f"kl_clip is greater than 0, or None for no bound; got {self.kl_clip}")
        if self.kl_budget is not None and self.kl_budget <= 0:
            raise UsageError(f"kl_budget is greater than 0, or None for no bound; got {self.kl_budget}")


@dataclass
class RunningMeans:
    """The mean reward of each problem so far; what the baseline ``running`` subtracts.

    A mean is over the episodes *before* the ones it is subtracted from: an episode's own reward never cancels itself.
    """

    momentum: float = 0.9
    """How much of the old mean stays after a batch, once there have been enough episodes for that."""
    means: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By problem: episodes seen, mean reward."""

    def mean(self, problem: str, otherwise: float) -> float:
        """The mean of a problem, or `otherwise` when it has not been seen."""
        return self.means[problem][1] if problem in self.means else otherwise

    def update(self, problem: str, rewards: Sequence[float]) -> None:
        """Take in the rewards of one more group."""
        if not rewards:
            return
        seen, mean = self.means.get(problem, (0, 0.0))
        new = sum(rewards) / len(rewards)
        weight = max(1 - self.momentum, len(rewards) / (seen + len(rewards)))  # the plain mean at first
        self.means[problem] = (seen + len(rewards), mean + weight * (new - mean))

    def state(self) -> dict[str, list[float]]:
        """For a checkpoint."""
        return {problem: [seen, mean] for problem, (seen, mean) in self.means.items()}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Take back what `state` gave."""
        self.means = {problem: (int(seen), float(mean)) for problem, (seen, mean) in state.items()}


def centred_rewards(
    rewards_P: Sequence[Sequence[float]], problems_P: Sequence[str], baseline: BaselineName, running: RunningMeans
) -> list[list[float]]:
    """Rewards less their baseline, group by group.

    Args:
        rewards_P: The rewards of each group's episodes.
        problems_P: Each group's problem.
        baseline: Which one.
        running: The means so far; with the baseline ``running`` this batch is added to them. In a problem's first batch
            an episode is centred on the mean of the problem's other episodes in it, or, where it has none, of the
            batch's other episodes; on 0 where it is alone. No reward is ever part of its own baseline.
    """
    if baseline == "running":
        found = _against_earlier(rewards_P, problems_P, running)
        for problem, rewards in zip(problems_P, rewards_P, strict=True):
            running.update(problem, rewards)
        return found
    everything = [reward for rewards in rewards_P for reward in rewards]
    batch_mean = sum(everything) / len(everything) if everything else 0.0
    if baseline == "group":
        bases = [sum(rewards) / len(rewards) if rewards else 0.0 for rewards in rewards_P]
    elif baseline == "batch":
        bases = [batch_mean] * len(rewards_P)
    else:
        bases = [0.0] * len(rewards_P)
    return [[reward - base for reward in rewards] for rewards, base in zip(rewards_P, bases, strict=True)]


def _against_earlier(
    rewards_P: Sequence[Sequence[float]], problems_P: Sequence[str], running: RunningMeans
) -> list[list[float]]:
    everything = [reward for rewards in rewards_P for reward in rewards]
    of_problem: dict[str, list[float]] = {}
    for problem, rewards in zip(problems_P, rewards_P, strict=True):
        of_problem.setdefault(problem, []).extend(rewards)

    def base(problem: str, reward: float) -> float:
        if problem in running.means:
            return running.mean(problem, 0.0)
        for around in (of_problem[problem], everything):
            if len(around) > 1:
                return (sum(around) - reward) / (len(around) - 1)
        return 0.0

    return [
        [reward - base(problem, reward) for reward in rewards]
        for problem, rewards in zip(problems_P, rewards_P, strict=True)
    ]


def token_advantages(
    centred: float,
    kl_T: Sequence[float] | None,
    mask_T: Sequence[float],
    config: CreditConfig,
    weights_T: Sequence[float] | None = None,
) -> list[float]:
    """The advantage of each token of one episode.

    Args:
        centred: The episode's reward less its baseline.
        kl_T: ``log p_student − log p_teacher`` of each token; 0 where the teacher has nothing to say. None: no teacher.
        mask_T: 1 where the student sampled the token, 0 elsewhere.
        config: The coefficients.
        weights_T: What each token's KL is multiplied with; None for 1. The budget counts nats without it.
    """
    share = centred * config.reward_coef
    if kl_T is None or config.kl_penalty_coef == 0:
        return [share if sampled else 0.0 for sampled in mask_T]
    out = [share if sampled else 0.0 for sampled in mask_T]
    later = 0.0
    for t in range(_judged(kl_T, config.kl_budget) - 1, -1, -1):
        if not mask_T[t]:
            continue  # nobody chose it, and it takes no time
        credit = -config.kl_penalty_coef * kl_T[t] * (1.0 if weights_T is None else weights_T[t])
        if config.kl_clip is not None:
            credit = max(-config.kl_clip, min(config.kl_clip, credit))
        later = credit + config.kl_discount_factor * later
        out[t] = share + later
    return out


def _judged(kl_T: Sequence[float], budget: float | None) -> int:
    """The tokens up to and with the one that uses up the budget."""
    if budget is None:
        return len(kl_T)
    spent = 0.0
    for t, kl in enumerate(kl_T):
        spent += abs(kl)
        if spent > budget:
            return t + 1
    return len(kl_T)
