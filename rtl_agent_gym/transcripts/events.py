"""The lines of a transcript, one pydantic model each. The format is versioned: see `SCHEMA_VERSION`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..renderers import ModelTurn

SCHEMA_VERSION = 1
"""Raised with every change that an older reader cannot take."""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True)

    time: float = 0.0
    """Seconds since 1970 when the line was written."""


class Header(_Event):
    """The first line: what was run, on what."""

    event: Literal["header"] = "header"
    schema_version: int = SCHEMA_VERSION
    package_version: str = ""
    problem_id: str
    problem_digest: str
    """`Problem.digest` at the time."""
    category: int | None = None
    """The problem's category, where the writer knew it; so with `difficulty`."""
    difficulty: str | None = None
    image_digest: str = ""
    """The id of the simulation image; empty where no container was used."""
    renderer: str
    seed: int | None = None
    options: dict[str, Any] = {}
    """The episode's rules by name, times in seconds; ``weights`` are those of the reward."""
    system: str = ""
    user: str = ""
    files: dict[str, str] = {}
    """What the work folder held when the episode began; empty where files were not recorded."""


class SubmissionRecord(BaseModel):
    """A grading before the end, that the agent asked for."""

    model_config = ConfigDict(frozen=True)

    number: int
    """1-based."""
    left: int
    """How many the agent had left."""
    fraction: float
    """Tests passed of all tests, 0 to 1."""
    reward: float
    """What it earned."""
    score: dict[str, Any]
    """A `Score` as plain data. The agent read names of it at most; see the turn's observation."""


class CommandRecord(BaseModel):
    """One command of a turn and how it ended."""

    model_config = ConfigDict(frozen=True)

    command: str
    exit_code: int | None
    """128 + n after signal n; None when the time ran out."""
    timed_out: bool = False
    """Whether its processes were ended because the time ran out."""
    truncated_output: bool = False
    """Whether the model read less than the command printed."""
    restarted: str | None = None
    """Why the shell had to be replaced, or None."""
    seconds: float = 0.0
    """Wall time."""
    output: str | None = None
    """What the model read for it; older versions' transcripts have it in the turn's observation only, and None here."""
    submission: SubmissionRecord | None = None
    """Set where the command was ``submit`` and the files were graded."""


class TurnRecord(_Event):
    """One turn: what the model said and what came back."""

    event: Literal["turn"] = "turn"
    turn: int
    """1-based."""
    completion: str
    """What the model said, as text."""
    native: ModelTurn | None = None
    """The same as a chat service with tool calls of its own reported it; the turn was then read from this."""
    token_ids: list[int] | None = None
    """The sampled ids; None for a policy that does not sample tokens."""
    logprobs: list[float] | None = None
    """Of each sampled token under the policy, natural logarithm; as long as `token_ids`."""
    tokens: list[str] | None = None
    """The text of each token; together they are the completion. As long as `token_ids`."""
    teacher_logprobs: list[float | None] | None = None
    """Of each sampled token under the teacher; None for a token the teacher has no counterpart of."""
    cut_off: bool = False
    """Whether the token limit ended the completion."""
    action: Literal["command", "final", "malformed"]
    commands: list[CommandRecord] = []
    observation: str = ""
    """What the model read of it, in its dialect."""
    files: dict[str, str | None] = {}
    """Text files of the graded folders that this turn wrote or changed; None for one that it removed."""
    left_out: list[str] = []
    """Files that are not followed as they are too large or too many, ``path: reason`` each; the first few."""
    seconds: float = 0.0
    """Wall time of the turn's commands, without the waiting for the model."""

    @property
    def words(self) -> str:
        """What the model said, for people to read."""
        return self.completion if self.native is None else str(self.native)

    @field_validator("native", mode="before")
    @classmethod
    def _older_name(cls, native: Any) -> Any:
        """Older versions wrote ``content`` for ``text``."""
        if isinstance(native, dict) and "content" in native:
            return {"text": native["content"], **{key: value for key, value in native.items() if key != "content"}}
        return native


class ScoreRecord(_Event):
    """The grading."""

    event: Literal["score"] = "score"
    score: dict[str, Any]
    """A `Score` as plain data."""
    files: dict[str, str] = {}
    """The graded files as text."""


class End(_Event):
    """The last line. Without it, the run was cut off."""

    event: Literal["end"] = "end"
    stop_reason: str
    """``completed``, ``max_turns``, ``max_tokens``, ``parse_error`` or ``sandbox_broken``; ``error`` where the machine
    failed."""
    turns: int
    seconds: float
    """Wall time from the episode's beginning."""
    error: str | None = None
    """The machine's fault that ended the episode without a score, if one did."""


Event = Annotated[Header | TurnRecord | ScoreRecord | End, Field(discriminator="event")]
"""A line of a transcript."""
