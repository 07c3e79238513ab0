"""Writing a transcript as the episode happens, and reading one back, whole or cut off."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ..errors import TranscriptError
from .events import SCHEMA_VERSION, End, Event, Header, ScoreRecord, TurnRecord

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class TranscriptWriter:
    """Appends events to one file, each flushed to the operating system before the call returns.

    Owns its file from the first event on; `close` ends it, and a crash loses at most the line being written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "x", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by `close`

    @classmethod
    def in_folder(cls, folder: Path, problem_id: str) -> TranscriptWriter:
        """A new file in `folder` with a name that no other process takes: problem, time, process, number."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for number in range(1_000_000):
            try:
                return cls(folder / f"{problem_id}-{stamp}-{os.getpid()}-{number:03d}.jsonl")
            except FileExistsError:
                continue
        raise TranscriptError(f"{folder}: no free name for a transcript of {problem_id}")

    def write(self, event: Header | TurnRecord | ScoreRecord | End) -> None:
        """Append one event, stamped with the time."""
        line = event.model_copy(update={"time": time.time()}).model_dump(mode="json")
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
        """Whether the episode came to its end; a crash leaves it incomplete."""
        return self.end is not None


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, up to the last whole line.

    Raises:
        TranscriptError: The file cannot be read, a line before the last is no event, or a newer version wrote it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TranscriptError(f"{path}: cannot be read: {error.strerror}") from error
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if isinstance(row, dict) and row.get("schema_version", 0) > SCHEMA_VERSION:
                raise TranscriptError(
                    f"{path}: written in format {row['schema_version']}; this version reads up to {SCHEMA_VERSION}. "
                    "Update rtl-agent-gym to read it"
                )
            event = _EVENT.validate_python(row)
        except (ValueError, ValidationError) as error:
            if isinstance(error, TranscriptError):
                raise
            if number == len(lines) and not rest:
                return  # the line that a crash cut short, closed by a file system that pads
            first = str(error).splitlines()[0]
            raise TranscriptError(f"{path}:{number}: not an event of a transcript: {first}") from error
        yield event


def read_transcript(path: Path | str) -> Transcript:
    """Read a transcript; one that a crash cut off is read up to its last whole line.

    Raises:
        TranscriptError: See `read_events`; or the file does not begin with a header.
    """
    path = Path(path)
    transcript: Transcript | None = None
    for event in read_events(path):
        if isinstance(event, Header):
            transcript = Transcript(path, event)
        elif transcript is None:
            raise TranscriptError(f"{path}:1: a transcript begins with a header, found {event.event!r}")
        elif isinstance(event, TurnRecord):
            transcript.turns.append(event)
        elif isinstance(event, ScoreRecord):
            transcript.score = event
        else:
            transcript.end = event
    if transcript is None:
        raise TranscriptError(f"{path}: no whole line in it, so no episode to read")
    return transcript
