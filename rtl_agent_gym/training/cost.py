"""Estimates the tokens that a run on a service will use, and their price where the options give one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from .plan import Plan
from .teacher_context import SELF

TURNS, SAMPLED, READ = 10, 400, 300
"""A typical episode, by assumption: its turns, the tokens sampled in each, and those of a command's output."""

CHARACTERS_A_TOKEN = 3.5
"""Of a prompt, roughly."""

SYSTEM = 600
"""Tokens of the environment's system prompt, roughly."""

Usage = Counter[tuple[str, str]]
"""Tokens by model and kind (``prefill``, ``sample``, ``train``)."""

KINDS = ("prefill", "sample", "train")


@dataclass(frozen=True)
class Episode:
    """The size of one episode in tokens."""

    prefill: int
    """Read by the student, every turn from the beginning: a service may cache some of it."""
    sampled: int
    length: int
    """Prompt, turns and outputs together."""


def describe_cost(plan: Plan) -> str:
    """One line with the tokens of a run on a service: typical, and at most; and the price if ``prices`` has the models.

    Nothing is subtracted for what a resumed run has already done, and nothing added for what is repeated after a fault.
    """
    parts = []
    typical, most = (usage(plan, at_most=at_most) for at_most in (False, True))
    for model in dict.fromkeys(model for model, _ in most):
        counts = [
            f"{kind} {_millions(typical[model, kind])} (at most {_millions(most[model, kind])})"
            for kind in KINDS
            if most[model, kind]
        ]
        parts.append(f"{model}: " + ", ".join(counts))
    prices = plan.options.prices
    if missing := sorted({model for model, _ in most} - prices.keys()):
        money = f"the SDK has no price list; give prices= for {', '.join(missing)} to see the sum"
    else:
        sums = [
            sum(count * prices[model][KINDS.index(kind)] / 1e6 for (model, kind), count in found.items())
            for found in (typical, most)
        ]
        money = f"${sums[0]:,.2f} by your prices (at most ${sums[1]:,.2f})"
    return f"tokens, if an episode has {TURNS} turns: {'; '.join(parts)}; {money}"


def usage(plan: Plan, *, at_most: bool) -> Usage:
    """The tokens of a run: of typical episodes, or of episodes as long as the options allow."""
    o = plan.options
    problems = [*plan.problems, *plan.held_out, *chain(*plan.extra_held_out.values())]
    prompt = sum(len(problem.prompt) for problem in problems) / max(1, len(problems)) / CHARACTERS_A_TOKEN + SYSTEM
    one = _episode(plan, round(prompt), at_most=at_most)
    played = 0 if plan.supervised is not None else o.num_steps * o.batch_size * o.group_size
    episodes = played + _evaluated(plan)
    found: Usage = Counter()
    found[plan.student, "prefill"] = episodes * one.prefill
    found[plan.student, "sample"] = episodes * one.sampled
    found[plan.student, "train"] = played * one.length
    if plan.supervised is not None:
        demonstrations = plan.supervised.train
        mean = sum(len(episode.tokens) for episode in demonstrations) / max(1, len(demonstrations))
        found[plan.student, "train"] = round(o.num_steps * o.batch_size * mean)
    elif o.distils:  # each of `teachers` costs about the same as another one
        teacher = plan.teacher or next(iter(o.teachers.values()), None)
        if teacher is not None:
            found[plan.student if teacher == SELF else teacher, "prefill"] += played * one.length
    return found


def _episode(plan: Plan, prompt: int, *, at_most: bool) -> Episode:
    o = plan.options
    turns = o.max_turns if o.env == "agentic" else 1
    if at_most:
        length = o.max_trajectory_tokens
        return Episode(turns * length, min(turns * o.max_tokens, length), length)
    turns, sampled = min(TURNS, turns), min(SAMPLED, o.max_tokens)
    starts = [min(prompt + turn * (sampled + READ), o.max_trajectory_tokens) for turn in range(turns)]
    return Episode(sum(starts), turns * sampled, min(starts[-1] + sampled, o.max_trajectory_tokens))


def _evaluated(plan: Plan) -> int:
    """Number of episodes in all evaluations."""
    o, done = plan.options, 0
    times = 1 + sum(o.evaluates_after(step) for step in range(o.num_steps))
    for kind, problems in plan.evaluated().items():
        done += (2 if "/" in kind else times) * _played(problems, o.eval_episodes)
    return done


def _played(problems: Sequence[object], episodes: int) -> int:
    return max(1, round(episodes / len(problems))) * len(problems) if problems else 0


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:,.1f} M"
