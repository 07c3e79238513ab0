"""The advantage of each sampled token.

::

    A_t = w · (R − baseline) · reward_coef − λ · KL_t    for each token t that the student sampled, 0 elsewhere

R is the episode's reward, the same for all its tokens, or with `TrainOptions.turn_rewards` what the episode earns in
the token's turn and later (`centred_turns`); ``KL_t = log p_student − log p_teacher`` of the sampled token, times the
weight of its kind if there are such weights; λ is `TrainOptions.kl_penalty_coef`; w is `TrainOptions.weak_coef` for
problems with weak tests (`weights_of_rewards`), 1 for others.
The baseline need not come from the group, so the reward can have an effect even at group size 1.

With `TrainOptions.kl_top_k`, tokens have targets instead of advantages (`token_targets`), and the loss is::

    L_t = −λ · Σ_k q_k · log p_student(k)

over the sampled token and the teacher's most likely ones; q are the teacher's probabilities divided by their sum. Its
gradient is that of the forward KL to the teacher. This gradient has less variance than that of the sampled token alone,
and does not vanish where the student hardly ever samples the teacher's tokens (https://arxiv.org/abs/2306.13649).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..problems import Problem
from ..problems.notes import note_of
from .options import BaselineName, TrainOptions


@dataclass
class RunningMeans:
    """The mean reward of each problem's earlier episodes, for the baseline ``running``."""

    momentum: float = 0.9
    """Weight of the old mean in an update, after the first few episodes."""
    means: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By problem: episodes seen, mean reward. Saved in checkpoints."""

    def update(self, problem: str, rewards: Sequence[float]) -> None:
        if not rewards:
            return
        seen, mean = self.means.get(problem, (0, 0.0))
        new = sum(rewards) / len(rewards)
        weight = max(1 - self.momentum, len(rewards) / (seen + len(rewards)))  # an exact mean at first
        self.means[problem] = (seen + len(rewards), mean + weight * (new - mean))


def centred_rewards(
    rewards_P: Sequence[Sequence[float]], problems_P: Sequence[str], baseline: BaselineName, running: RunningMeans
) -> list[list[float]]:
    """The rewards minus their baseline, by group.

    In a problem's first batch, its ``running`` baseline is the mean of the problem's other episodes in the batch; if
    there are none, of all other episodes in the batch; if there are none either, 0. A reward is never part of its own
    running baseline.

    `running` has the means of earlier batches; with the baseline ``running``, this batch is added to them.
    """
    everything = [reward for rewards in rewards_P for reward in rewards]
    groups = list(zip(problems_P, rewards_P, strict=True))
    of_problem: dict[str, list[float]] = {}
    for problem, rewards in groups:
        of_problem.setdefault(problem, []).extend(rewards)

    def base(problem: str, rewards: Sequence[float], reward: float) -> float:
        if baseline == "none":
            return 0.0
        if baseline != "running":
            around = rewards if baseline == "group" else everything
            return sum(around) / len(around)
        if problem in running.means:
            return running.means[problem][1]
        for around in (of_problem[problem], everything):
            if len(around) > 1:
                return (sum(around) - reward) / (len(around) - 1)
        return 0.0

    centred_P = [[reward - base(problem, rewards, reward) for reward in rewards] for problem, rewards in groups]
    if baseline == "running":
        for problem, rewards in groups:
            running.update(problem, rewards)
    return centred_P


def centred_turns(
    turns_P: Sequence[Sequence[Sequence[float]]],
    problems_P: Sequence[str],
    baseline: BaselineName,
    running: RunningMeans,
) -> list[list[list[float]]]:
    """For turn rewards: what each turn and the later ones earn, minus a baseline, by group and episode.

    In the baseline of a turn, episodes that ended before the turn count with the 0 that they still earn. Without them,
    the number of terms would depend on when an episode ends, and so on its actions: each further turn would get a bonus
    or a penalty (https://github.com/verl-project/verl/issues/7244).

    `turns_P` has the rewards of the turns of each episode of each group. The other arguments are as in
    `centred_rewards`; `running` has a mean for each turn of a problem.
    """
    togo_P = [[list(accumulate(reversed(turns)))[::-1] for turns in group] for group in turns_P]
    longest = max((len(togo) for group in togo_P for togo in group), default=0)
    if baseline == "running":
        longest = _add_missing_turns(running, problems_P, longest)
    found_P: list[list[list[float]]] = [[[] for _ in group] for group in togo_P]
    for turn in range(longest):
        column_P = [[togo[turn] if turn < len(togo) else 0.0 for togo in group] for group in togo_P]
        names_P = [_name_of_turn(problem, turn) for problem in problems_P]
        centred_P = centred_rewards(column_P, names_P, baseline, running)
        for found, group, centred_G in zip(found_P, togo_P, centred_P, strict=True):
            for own, togo, centred in zip(found, group, centred_G, strict=True):
                own += [centred] if turn < len(togo) else []
    return found_P


def _name_of_turn(problem: str, turn: int) -> str:
    """The key of a turn, counted from 0, in the running means."""
    return f"{problem} turn {turn + 1}" if turn else problem


def _add_missing_turns(running: RunningMeans, problems: Iterable[str], longest: int) -> int:
    """Give each known problem of a batch a mean for each turn, and return the number of turns.

    `longest` is the number of turns of the batch's longest episode; earlier episodes may have had more. A turn that
    none of a problem's earlier episodes reached gets a mean of 0 over all of them.
    """
    known = {problem: running.means[problem][0] for problem in problems if problem in running.means}
    while any(_name_of_turn(problem, longest) in running.means for problem in known):
        longest += 1
    for problem, seen in known.items():
        for turn in range(1, longest):
            running.means.setdefault(_name_of_turn(problem, turn), (seen, 0.0))
    return longest


def shuffled(turns: Sequence[float], seed: str) -> list[float]:
    """For a control run: the rewards of an episode's turns in a random order that depends only on `seed`."""
    return random.Random(seed).sample(list(turns), len(turns))


def has_weak_tests(problem: Problem) -> bool:
    """Whether this is a row of CVDP whose tests do not check the main part of the task, so its reward can be wrong."""
    note = note_of(problem)
    return note is not None and note.blind


def weights_of_rewards(problems: Iterable[Problem], options: TrainOptions) -> dict[str, float]:
    """Factors for the centred rewards, by problem; only those other than 1."""
    if options.weak_coef == 1:
        return {}
    return {problem.id: options.weak_coef for problem in problems if has_weak_tests(problem)}


def permuted(rewards_P: Sequence[Sequence[float]], problems_P: Sequence[str]) -> list[list[float]]:
    """For a control run: each group gets the rewards of another problem's group, one for each of its episodes.

    The groups are rotated if a rotation gives each group another problem's; otherwise each uses the nearest such group
    before it. There must be groups of at least two problems.
    """
    count = len(rewards_P)
    shifts = [
        [shift for shift in range(1, count) if problems_P[place] != problems_P[place - shift]] for place in range(count)
    ]
    common = sorted(set.intersection(*map(set, shifts)))
    sources = [rewards_P[place - (common or shifts[place])[0]] for place in range(count)]
    pairs = zip(rewards_P, sources, strict=True)
    return [[source[place % len(source)] for place in range(len(own))] for own, source in pairs]


def token_advantages(
    centred_T: Sequence[float],
    kl_T: Sequence[float] | None,
    mask_T: Sequence[float],
    options: TrainOptions,
    weights_T: Sequence[float] | None = None,
) -> list[float]:
    """The advantage of each token of one episode.

    Args:
        centred_T: The reward minus its baseline, for each token.
        kl_T: ``log p_student − log p_teacher`` of each token; a value that is not finite is unknown and counts as 0.
            None without a teacher.
        mask_T: 1 for tokens that the student sampled, 0 for the others.
        options: The coefficients.
        weights_T: Factor for each token's KL; None for 1. The KL budget does not use it.
    """
    rewards_T = [centred * options.reward_coef for centred in centred_T]
    advantages_T = [reward if sampled else 0.0 for reward, sampled in zip(rewards_T, mask_T, strict=True)]
    if kl_T is None:
        return advantages_T
    kl_T = [kl if math.isfinite(kl) else 0.0 for kl in kl_T]
    coefficient = options.kl_penalty_coef if options.control == "negated_kl" else -options.kl_penalty_coef
    later = 0.0
    for t in reversed(range(_within_budget(kl_T, options.kl_budget))):
        if not mask_T[t]:
            continue  # discounting counts only sampled tokens
        credit = coefficient * kl_T[t] * (1.0 if weights_T is None else weights_T[t])
        if options.kl_clip is not None:
            credit = max(-options.kl_clip, min(options.kl_clip, credit))
        later = credit + options.kl_discount_factor * later
        advantages_T[t] = rewards_T[t] + later
    return advantages_T


def token_targets(
    sampled_T: Sequence[int],
    kl_T: Sequence[float],
    logprobs_T: Sequence[float],
    top_T: Sequence[Sequence[tuple[int, float]]],
    mask_T: Sequence[float],
    options: TrainOptions,
    weights_T: Sequence[float],
) -> tuple[list[list[int]], list[list[float]]]:
    """For each token of one episode: K + 1 targets, the sampled token first, and their weights in the cross-entropy.

    Args:
        sampled_T: The tokens.
        kl_T: See `token_advantages`, also for `mask_T`, `options` and `weights_T`.
        logprobs_T: The student's log-probability of each token.
        top_T: The teacher's most likely tokens with their log-probabilities; empty where they are unknown.
    """
    width = options.kl_top_k + 1
    targets_TK = [[token, *[0] * (width - 1)] for token in sampled_T]
    weights_TK = [[0.0] * width for _ in sampled_T]
    coefficient = options.kl_penalty_coef * (-1 if options.control == "negated_kl" else 1)
    for t in range(_within_budget(kl_T, options.kl_budget)):
        if not mask_T[t] or not top_T[t]:
            continue
        known = {sampled_T[t]: logprobs_T[t] - kl_T[t]}
        known |= {token: logprob for token, logprob in top_T[t][: options.kl_top_k] if token not in known}
        probabilities = [math.exp(logprob) for logprob in known.values()]
        targets_TK[t][: len(known)] = known
        factor = coefficient * weights_T[t] / sum(probabilities)
        weights_TK[t][: len(known)] = [factor * probability for probability in probabilities]
    return targets_TK, weights_TK


def _within_budget(kl_T: Sequence[float], budget: float | None) -> int:
    """The number of tokens up to and including the one that exceeds the budget.

    After a mistake that leads to states unfamiliar to the teacher, its log-probabilities are mostly noise.
    """
    spent = 0.0
    for t, kl in enumerate(kl_T):
        spent += abs(kl)
        if budget is not None and spent > budget:
            return t + 1
    return len(kl_T)
