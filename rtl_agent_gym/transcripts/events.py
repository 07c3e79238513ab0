"""The lines of a transcript, one pydantic model each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..renderers import ModelTurn

SCHEMA_VERSION = 1
"""Version of the format, increased with every change that older versions cannot read."""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True)

    time: float = 0.0
    """When the line was written, in seconds since 1970."""


class Header(_Event):
    """The first line: what was run, and with which versions."""

    event: Literal["header"] = "header"
    schema_version: int = SCHEMA_VERSION
    package_version: str = ""
    problem_id: str
    problem_digest: str
    """`Problem.digest` at the time."""
    category: int | None = None
    """The problem's category; None if unknown."""
    difficulty: str | None = None
    image_digest: str = ""
    """The id of the simulation image; empty if no container was used."""
    rules_digest: str = ""
    """`scoring.rules_digest` at the time: the version of the grader and its rules."""
    renderer: str
    seed: int | None = None
    options: dict[str, Any] = {}
    """The episode's rules by name, times in seconds; ``weights`` are the reward weights."""
    system: str = ""
    user: str = ""
    files: dict[str, str] = {}
    """The work folder's files when the episode began; empty if files were not recorded."""


class SubmissionRecord(BaseModel):
    """A grading that the agent requested during the episode."""

    model_config = ConfigDict(frozen=True)

    number: int
    """1-based."""
    left: int
    """How many submissions remained."""
    fraction: float
    """Tests passed of all tests, 0 to 1."""
    reward: float
    """The reward for this submission."""
    score: dict[str, Any]
    """A `Score` as plain data. What the agent was shown of it is in the turn's observation."""


class CommandRecord(BaseModel):
    """One command of a turn and how it ended."""

    model_config = ConfigDict(frozen=True)

    command: str
    exit_code: int | None
    """128 + n after signal n; None after a timeout."""
    timed_out: bool = False
    """Whether its processes were killed by the timeout."""
    truncated_output: bool = False
    """Whether the output shown to the model was shortened."""
    restarted: str | None = None
    """Why the shell was replaced, or None."""
    seconds: float = 0.0
    """Wall time."""
    output: str | None = None
    """The output as the model read it; None in transcripts of older versions, which have it only in the observation."""
    submission: SubmissionRecord | None = None
    """Set if the command was ``submit`` and the files were graded."""


class TurnRecord(_Event):
    """One turn: what the model wrote and the reply."""

    event: Literal["turn"] = "turn"
    turn: int
    """1-based."""
    completion: str
    """What the model wrote, as text."""
    native: ModelTurn | None = None
    """The turn as reported by a service with native tool calls; if set, the action was read from this."""
    outside: bool = False
    """Whether an agent's own program ran the calls in the sandbox: `commands` are its tools' calls, without status."""
    stream: int | None = None
    """Of an agent's turns: which of its streams of tokens the turn belongs to, from 1."""
    stream_reason: str = ""
    """Why that stream began, such as ``history`` where the agent rewrote it; empty for the first one."""
    token_ids: list[int] | None = None
    """The sampled ids; None for a policy that does not sample tokens."""
    logprobs: list[float] | None = None
    """Log-probability of each sampled token under the policy, in nats; as long as `token_ids`."""
    tokens: list[str] | None = None
    """The text of each token; joined, they are the completion. As long as `token_ids`."""
    teacher_logprobs: list[float | None] | None = None
    """Log-probability of each sampled token under the teacher, in nats; None if the teacher cannot score it."""
    cut_off: bool = False
    """Whether the token limit ended the completion."""
    action: Literal["command", "final", "malformed"]
    commands: list[CommandRecord] = []
    observation: str = ""
    """The reply as the model read it, in its dialect."""
    files: dict[str, str | None] = {}
    """Text files of the graded folders that this turn wrote or changed; None for a removed file."""
    left_out: list[str] = []
    """The first few files that are not recorded because they are too large or too many, each as ``path: reason``."""
    seconds: float = 0.0
    """Wall time of the turn's commands, without the time of the model."""

    @property
    def words(self) -> str:
        """What the model wrote, for people to read."""
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
    """``completed``, ``max_turns``, ``max_tokens``, ``parse_error`` or ``sandbox_broken``; ``error`` if the machine
    failed."""
    turns: int
    seconds: float
    """Wall time from the episode's beginning."""
    oom_kills: int | None = None
    """Processes of the agent that the kernel ended for lack of memory; None if unknown."""
    error: str | None = None
    """The machine fault that ended the episode without a score, or None."""


Event = Annotated[Header | TurnRecord | ScoreRecord | End, Field(discriminator="event")]
"""A line of a transcript."""
