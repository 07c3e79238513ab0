"""The outcome of an episode as one flat dict of numbers, equal in every interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..scoring.score import Score
from .turns import StopReason, Turn

if TYPE_CHECKING:
    from .episode import Episode

STOP = "stop/"
"""Prefix of the number that says why the episode ended; tinker-cookbook's `STOP_METRIC_PREFIX`."""


def score_numbers(score: Score) -> dict[str, float]:
    """The part of `result_numbers` that a grading alone determines; ``reward`` is the score's."""
    return {
        "reward": score.reward,
        "format_valid": float(score.format > 0),
        "syntax_valid": float(score.syntax >= 1.0),
        "tests_passed": float(score.passed),
        "tests_share": score.tests_passed / score.tests_total if score.tests_total else 0.0,
        "interface": score.interface,
        "compile": score.compile,
        "violations": float(len(score.violations)),
    }


def result_numbers(
    score: Score, stop: StopReason | None, turns: Sequence[Turn], oom_kills: int | None = None
) -> dict[str, float]:
    """Numbers that a trainer averages over episodes.

    ``reward`` is that of the whole episode, submissions included. ``tests_passed`` is 0 or 1, the official verdict, as
    are ``format_valid`` (some target file has code) and ``syntax_valid`` (no target file has a syntax error). Shares
    lie between 0 and 1. ``stop/REASON`` is 1 for the reason given. ``oom_kills`` counts the processes of the agent that
    the kernel ended for lack of memory.

    Args:
        score: The final grading.
        stop: Why the episode ended; None leaves that number out.
        turns: All turns that were played.
        oom_kills: See `Episode.oom_kills`; None leaves that number out.
    """
    results = [result for turn in turns for result in turn.results]
    numbers = score_numbers(score) | {
        "reward": score.reward + sum(turn.progress_reward for turn in turns),
        "turns": float(len(turns)),
        "commands": float(len(results)),
        "commands_timed_out": float(sum(result.timed_out for result in results)),
        "malformed_turns": float(sum(turn.action.kind == "malformed" for turn in turns)),
        "submissions": float(sum(len(turn.submissions) for turn in turns)),
        "progress_reward": sum((turn.progress_reward for turn in turns), 0.0),
        "score_seconds": score.seconds,
    }
    if oom_kills is not None:
        numbers["oom_kills"] = float(oom_kills)
    return numbers if stop is None else numbers | {f"{STOP}{stop}": 1.0}


def trained_numbers(episode: Episode, score: Score) -> dict[str, float]:
    """`result_numbers` of an episode that is over; those of submissions only if its rules allow any."""
    numbers = result_numbers(score, episode.stop_reason, episode.turns, episode.oom_kills)
    unused = set() if episode.config.harness_feedback else {"submissions", "progress_reward"}
    return {name: number for name, number in numbers.items() if name not in unused}
