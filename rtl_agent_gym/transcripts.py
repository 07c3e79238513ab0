"""The record of an episode, as JSON Lines: one event per line.

A line is written as soon as its event happens, so a file that a crash cut off contains all earlier events.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from . import strict_json
from .errors import TranscriptError, UsageError, cannot_write, writing
from .files import replace_file
from .renderers import ModelTurn

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


class SubmissionRecord(BaseModel, frozen=True):
    """A grading that the agent requested during the episode."""

    number: int
    """1-based."""
    left: int
    """How many submissions remained."""
    fraction: float
    """Tests passed of all tests, 0 to 1."""
    reward: float
    score: dict[str, Any]
    """A `Score` as plain data. What the agent was shown of it is in the turn's observation."""


class CommandRecord(BaseModel, frozen=True):
    """One command of a turn and how it ended."""

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
    """The turn as reported by a service with native tool calls, or as parsed from tokens whose text would be parsed
    differently; if set, the action is read from this."""
    outside: bool = False
    """Whether a third-party agent ran the calls in the sandbox: `commands` are its tool calls, without exit codes."""
    stream: int | None = None
    """For a third-party agent: the number, from 1, of the token stream that the turn belongs to."""
    stream_reason: str = ""
    """Why that stream began, such as ``history`` if the agent rewrote its history; empty for the first stream."""
    token_ids: list[int] | None = None
    """The sampled ids; None for a policy that does not sample tokens."""
    logprobs: list[float] | None = None
    """Log-probability of each sampled token under the policy, in nats; as long as `token_ids`."""
    tokens: list[str] | None = None
    """The text of each token, as long as `token_ids`. Joined, they are the completion, except where several tokens
    share a character: each part of it is U+FFFD."""
    teacher_logprobs: list[float | None] | None = None
    """Log-probability of each sampled token under the teacher, in nats; None if the teacher cannot score it."""
    cut_off: bool = False
    """Whether the completion counts as ended by the token limit, as do ids without a stop token."""
    refused: bool = False
    """Whether the model refused, or a content filter of its service withheld the turn."""
    action: Literal["command", "final", "malformed"]
    commands: list[CommandRecord] = []
    observation: str = ""
    """The reply as the model read it, in its dialect."""
    files: dict[str, str | None] = {}
    """Text files of the graded folders that this turn wrote or changed; None for a removed file."""
    left_out: list[str] = []
    """The first few files that are not recorded because they are too large, too many or no longer text, each as
    ``path: reason``."""
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
    """``completed``, ``max_turns``, ``max_tokens``, ``parse_error`` or ``sandbox_broken``; ``error`` after an
    exception."""
    turns: int
    seconds: float
    """Wall time from the episode's beginning."""
    oom_kills: int | None = None
    """Number of the agent's processes that the kernel killed for lack of memory; None if unknown."""
    error: str | None = None
    """The exception, usually a machine fault, that ended the episode without a score, or None."""


Event = Annotated[Header | TurnRecord | ScoreRecord | End, Field(discriminator="event")]
"""A line of a transcript."""

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class TranscriptWriter:
    """Appends events to one file and flushes each to the operating system before the call returns.

    Owns its file until `close`. A crash loses at most the line being written.

    Raises:
        UsageError: No file can be created at this path.
        FileExistsError: The file exists already.
        SandboxError: The disk is full, or the machine cannot open another file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing("transcripts", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = open(path, "x", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - `close` does
        except FileExistsError:
            raise
        except OSError as error:
            raise cannot_write("transcripts", path, error) from error

    @classmethod
    def in_folder(cls, folder: Path, problem_id: str) -> TranscriptWriter:
        """A new file in `folder` with a unique name: problem, time, process, number."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for number in range(1_000_000):
            try:
                return cls(folder / f"{problem_id}-{stamp}-{os.getpid()}-{number:03d}.jsonl")
            except FileExistsError:
                continue
        raise TranscriptError(f"{folder}: no unused name for a transcript of {problem_id}")

    def write(self, event: Event) -> None:
        """Append one event with the current time. Raises `SandboxError` if the disk is full."""
        line = event.model_copy(update={"time": time.time()}).model_dump(mode="json")
        with writing("transcripts", self.path):
            self._file.write(json.dumps(line, ensure_ascii=True) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


@dataclass
class Transcript:
    """A recorded episode."""

    path: Path
    header: Header
    turns: list[TurnRecord] = field(default_factory=list)
    score: ScoreRecord | None = None
    end: End | None = None

    @property
    def complete(self) -> bool:
        """Whether the episode ended; False if a crash, Ctrl-C or a limit on cost or tokens cut it off."""
        return self.end is not None and not (self.end.error or "").startswith(("CancelledError:", "LimitReached:"))


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, up to the last complete line.

    Raises:
        TranscriptError: The file cannot be read, a line before the last is not an event, or a newer version wrote it.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise TranscriptError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        row: object = None
        try:
            row = strict_json.loads(line)
            if isinstance(row, dict):
                _check_version(path, row.get("schema_version", SCHEMA_VERSION))
            event = _EVENT.validate_python(row)
        except TranscriptError:
            raise
        except ValueError as error:  # or pydantic's ValidationError, which is a ValueError
            if number == 1:
                raise TranscriptError(f"{path}: {_why_no_header(row)}") from error
            if number == len(lines) and not rest:
                return  # a line that a crash cut short, completed by the file system's padding
            first = str(error).splitlines()[0]
            raise TranscriptError(f"{path}:{number}: not an event of a transcript: {first}") from error
        yield event


def _why_no_header(row: object) -> str:
    if not isinstance(row, dict):
        return "not a transcript (the first line is not a JSON object)"
    if row.get("event") == "header":
        return "not a transcript that can be read (the header has a wrong or missing field)"
    hint = "; is it a file of problems?" if {"id", "prompt", "categories"} & row.keys() else ""
    return f"not a transcript (the first line has no header){hint}"


def _check_version(path: Path, version: object) -> None:
    if type(version) is not int or version < 1:
        raise TranscriptError(f"{path}: its schema_version is {str(version)[:40]!r}, not a positive whole number")
    if version > SCHEMA_VERSION:
        raise TranscriptError(
            f"{path}: written in format {version}; this version reads up to {SCHEMA_VERSION}. "
            "Update rtl-agent-gym to read it"
        )


def read_transcript(path: Path | str) -> Transcript:
    """Read a transcript, after a crash up to its last complete line.

    Raises:
        TranscriptError: See `read_events`; or the file does not begin with a header.
    """
    path = Path(path)
    transcript: Transcript | None = None
    for event in read_events(path):
        if isinstance(event, Header):
            transcript = Transcript(path, event)
        elif transcript is None:
            raise TranscriptError(f"{path}: not a transcript (the first line has no header)")
        elif isinstance(event, TurnRecord):
            transcript.turns.append(event)
        elif isinstance(event, ScoreRecord):
            transcript.score = event
        else:
            transcript.end = event
    if transcript is None:
        raise TranscriptError(f"{path}: contains no complete line, so there is no episode to read")
    return transcript


@dataclass(frozen=True)
class TokenRecord:
    """The tokens of one turn: fields of `TurnRecord`, all of the same length. None keeps the transcript's value."""

    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    tokens: Sequence[str] | None = None
    teacher_logprobs: Sequence[float | None] | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.given().items()}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"the fields of a turn must have the same length, got {lengths}")

    def given(self) -> dict[str, list[object]]:
        return {name: list(values) for name, values in vars(self).items() if values is not None}


def add_tokens(path: Path, turns: Mapping[int, TokenRecord]) -> None:
    """Add tokens, by turn number from 1, to turns of a finished transcript. The file is replaced atomically.

    Raises:
        TranscriptError: The file cannot be read or written, or a turn does not exist.
    """
    lines: list[str] = []
    found: set[int] = set()
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a line is not an event: {line[:60]}")
            if row.get("event") == "turn" and row.get("turn") in turns:
                row |= turns[row["turn"]].given()
                found.add(row["turn"])
            lines.append(json.dumps(row) + "\n")
        if missing := ", ".join(map(str, sorted(turns.keys() - found))):
            raise ValueError(f"there is no turn {missing}")
    except (OSError, ValueError) as error:
        raise TranscriptError(f"{path}: tokens cannot be added: {error}") from error
    try:
        replace_file(path, "".join(lines))
    except OSError as error:
        raise TranscriptError(f"{path}: cannot be written: {error}") from error
