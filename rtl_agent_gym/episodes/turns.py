"""What an episode returns to its caller: the opening, the outcome of each turn, and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..renderers import Action
from ..renderers.protocol import Message, reply_texts
from ..sandboxes import CommandResult
from ..scoring.score import MEASURED_STAGES, Score
from .answers import Answer
from .submissions import Submission, Submitted

StopReason = Literal["completed", "max_turns", "max_tokens", "parse_error", "sandbox_broken"]
"""Why an episode ended, in tinker-cookbook's terms; ``sandbox_broken``: the agent's commands ended its sandbox."""


@dataclass(frozen=True)
class Opening:
    """The prompt of an episode."""

    system: str
    user: str
    messages: list[Message]
    cut: tuple[str, ...] = ()
    """The passages that were left out to fit the prompt's token budget."""

    @property
    def text(self) -> str:
        """System and user text together, without the dialect's control tokens."""
        return "\n\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True)
class Turn:
    """The outcome of one turn."""

    number: int
    action: Action
    results: tuple[CommandResult, ...] = ()
    outputs: tuple[str, ...] = ()
    """The text that the model reads for each command."""
    observation: str = ""
    """The outputs as one text in the dialect."""
    stop_reason: StopReason | None = None
    """Set on the last turn, like `score`."""
    score: Score | None = None
    answer: Answer | None = None
    """The files found in the completion; only with the workspace ``"answer"``."""

    def without_texts(self) -> Turn:
        """The same turn without its outputs and observation."""
        results = tuple(replace(result, output="") for result in self.results)
        return replace(self, results=results, outputs=(), observation="")

    def replies(self, calls: int = 1) -> list[str]:
        """The replies for a model with native tool calls: one text for each of its `calls`, at least one."""
        return reply_texts(self.action, self.outputs, calls)

    @property
    def submissions(self) -> tuple[Submission, ...]:
        found = (result.submission for result in self.results if isinstance(result, Submitted))
        return tuple(submission for submission in found if submission is not None)

    @property
    def progress_reward(self) -> float:
        """The reward of this turn's submissions."""
        return sum(submission.reward for submission in self.submissions)

    @property
    def reward(self) -> float:
        """The reward of this turn's submissions, and on the last turn that of the score."""
        return self.progress_reward + (self.score.reward if self.score is not None else 0.0)

    @property
    def terminated(self) -> bool:
        """Whether the agent ended the episode: by finishing, by any answer, or by breaking its sandbox."""
        return self.stop_reason in ("completed", "sandbox_broken") or self.answer is not None

    @property
    def truncated(self) -> bool:
        """Whether a limit ended the episode."""
        return self.stop_reason is not None and not self.terminated

    def info(self) -> dict[str, Any]:
        """The ``info`` of Gymnasium's `step`. After several commands in one turn, ``exit_code`` is the last command's.

        Each value has the same type in all turns, as vector environments require: ``exit_code`` is -1 after a time-out.
        """
        info: dict[str, Any] = {"turn": self.number, "action": self.action.kind}
        if self.results:
            last = self.results[-1]
            info |= {
                "command": "\n".join(self.action.commands),
                "exit_code": last.exit_code if last.exit_code is not None else -1,
                "timed_out": any(result.timed_out for result in self.results),
                "truncated_output": any(result.truncated for result in self.results),
                "seconds": sum(result.seconds for result in self.results),
            }
        if self.submissions:
            latest = self.submissions[-1]
            info["submission"] = {
                "number": latest.number,
                "left": latest.left,
                "fraction": latest.fraction,
                "reward": self.progress_reward,
            }
        if self.answer is not None:
            info["files"] = sorted(self.answer.files)
        if self.stop_reason is not None:
            info["stop_reason"] = self.stop_reason
        if self.score is not None:
            info["score"] = self.score.model_dump(mode="json")
        return info


STOP = "stop/"
"""Prefix of the metric that shows why the episode ended; tinker-cookbook's `STOP_METRIC_PREFIX`."""


def score_numbers(score: Score) -> dict[str, float]:
    """The part of `result_numbers` that a grading alone determines; ``reward`` is the score's."""
    measured = {name: float(getattr(score, name)) for name in MEASURED_STAGES if name in score.measures}
    return {
        "reward": score.reward,
        "format_valid": float(score.format > 0),
        "syntax_valid": float(score.syntax >= 1.0),
        "tests_passed": float(score.passed),
        "tests_share": score.tests_passed / score.tests_total if score.tests_total else 0.0,
        "interface": score.interface,
        "compile": score.compile,
        "violations": float(len(score.violations)),
        **measured,
    }


def result_numbers(
    score: Score, stop: StopReason | None, turns: Sequence[Turn], oom_kills: int | None = None
) -> dict[str, float]:
    """Metrics that a trainer averages over episodes, from the final grading and all turns.

    ``reward`` is that of the whole episode, including submissions. ``tests_passed`` (the official verdict),
    ``format_valid`` (some target file has code) and ``syntax_valid`` (no target file has a syntax error) are 0 or 1.
    Shares are between 0 and 1. ``stop/REASON`` is 1 for the reason `stop`; ``oom_kills`` is `Episode.oom_kills`. If one
    of these arguments is None, its number is left out.
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
