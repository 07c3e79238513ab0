"""What an episode returns to its driver: its opening, and the outcome of each turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..renderers import Action
from ..renderers.protocol import Message
from ..sandboxes import CommandResult
from ..scoring.score import Score
from .answers import Answer
from .submissions import Submission, Submitted

StopReason = Literal["completed", "max_turns", "max_tokens", "parse_error", "sandbox_broken"]
"""Why an episode ended, in tinker-cookbook's words; ``sandbox_broken``: the agent's commands ended its sandbox."""

NO_EXIT_CODE = -1
"""In ``info["exit_code"]``: the command timed out, and has none."""


@dataclass(frozen=True)
class Opening:
    """What the model reads first."""

    system: str
    user: str
    messages: list[Message]
    text: str
    """System and user text as one, without the dialect's control tokens."""
    cut: tuple[str, ...] = ()
    """What was left out of the prompt to fit its token budget; empty when nothing was."""


@dataclass(frozen=True)
class Turn:
    """What one turn led to."""

    number: int
    action: Action
    results: tuple[CommandResult, ...] = ()
    outputs: tuple[str, ...] = ()
    """What the model reads for each command, or nothing."""
    observation: str = ""
    """The same in the dialect, as one text."""
    stop_reason: StopReason | None = None
    """Set on the last turn, as is `score`."""
    score: Score | None = None
    answer: Answer | None = None
    """The files that were found in the completion, in an episode of one answer."""

    @property
    def submissions(self) -> tuple[Submission, ...]:
        """What was submitted and graded in this turn, in order."""
        found = (result.submission for result in self.results if isinstance(result, Submitted))
        return tuple(submission for submission in found if submission is not None)

    @property
    def progress_reward(self) -> float:
        """What this turn's submissions earned."""
        return sum(submission.reward for submission in self.submissions)

    @property
    def reward(self) -> float:
        """What this turn's submissions earned, and at the end the score's reward."""
        return self.progress_reward + (self.score.reward if self.score is not None else 0.0)

    @property
    def terminated(self) -> bool:
        """Whether the agent itself ended the episode, as one answer always does."""
        return self.stop_reason == "completed" or self.answer is not None

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""
        return self.stop_reason is not None and not self.terminated

    def info(self) -> dict[str, Any]:
        """The ``info`` of the Gymnasium contract. For several commands in one turn, the last one's figures.

        Each value has one type in all turns, as vector environments need: ``exit_code`` is -1 after a time-out.
        """
        info: dict[str, Any] = {"turn": self.number, "action": self.action.kind}
        if self.results:
            last = self.results[-1]
            info |= {
                "command": "\n".join(self.action.commands),
                "exit_code": last.exit_code if last.exit_code is not None else NO_EXIT_CODE,
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
