"""Write a transcript as the episode happens, read it back, even if incomplete, and add tokens to it later."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from .. import strict_json
from ..errors import TranscriptError, UsageError, cannot_write
from ..files import replace_file
from .events import SCHEMA_VERSION, End, Event, Header, ScoreRecord, TurnRecord

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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write("transcripts", path.parent, error) from error
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
        try:
            self._file.write(json.dumps(line, ensure_ascii=True) + "\n")
            self._file.flush()
        except OSError as error:
            raise cannot_write("transcripts", self.path, error) from error

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
        """Whether the end was recorded; after a crash it was not."""
        return self.end is not None


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
        raise TranscriptError(f"{path}: its schema_version is {str(version)[:40]!r}, which no version writes")
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
    """The tokens of one turn. All fields given have the same length; None keeps what the transcript has."""

    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    """Log-probability of each token under the policy, in nats."""
    tokens: Sequence[str] | None = None
    """The text of each token."""
    teacher_logprobs: Sequence[float | None] | None = None
    """Log-probability of each token under the teacher, in nats; None for a token that the teacher cannot score."""

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.given().items()}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"the fields of a turn must have the same length, got {lengths}")

    def given(self) -> dict[str, list[object]]:
        """The fields that are not None."""
        return {name: list(values) for name, values in vars(self).items() if values is not None}


def add_tokens(path: Path, turns: Mapping[int, TokenRecord]) -> None:
    """Add tokens to turns of a finished transcript. The file is replaced atomically.

    Args:
        path: The transcript.
        turns: Tokens by turn number, from 1.

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
