"""Find and read the transcripts of a file, a folder or a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from ...errors import TranscriptError, UsageError
from ...scoring.score import Score
from ...transcripts import Transcript, read_transcript

OF_A_RUN = {"checkpoints.jsonl", "metrics.jsonl", "results.jsonl"}
"""The ``.jsonl`` files of a run that are not transcripts."""


def transcript_files(source: Path) -> list[Path]:
    """The transcripts at `source`, sorted by name: the file itself, those of a run or an evaluation
    (``transcripts/``, also in sub-folders), or the ``.jsonl`` files of any other folder.

    Raises:
        UsageError: `source` does not exist, or contains no transcript.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        what = "neither a file nor a folder" if source.exists() else "no such file or folder"
        raise UsageError(f"{source}: {what}; give a transcript, a folder of transcripts, or a run")
    try:
        named = [folder for folder in sorted(source.rglob("transcripts")) if folder.is_dir()]
        files = {path for folder in named or [source] for path in folder.rglob("*.jsonl")}
    except OSError as error:
        raise UsageError(f"{source}: cannot be searched: {error.filename}: {error.strerror}") from error
    found = sorted(path for path in files if path.name not in OF_A_RUN)
    closed = [folder for folder in named or [source] if not os.access(folder, os.R_OK | os.X_OK)]
    if closed and not found:
        raise UsageError(f"{closed[0]}: cannot be read: Permission denied")
    if not found:
        raise UsageError(f"{source}: contains no transcript (*.jsonl, or transcripts/*.jsonl)")
    return found


def read_episode(path: Path) -> Transcript:
    """`read_transcript`, with the score's fields checked and missing ones filled in.

    Raises:
        TranscriptError: The transcript cannot be read, or its score is invalid.
    """
    transcript = read_transcript(path)
    if transcript.score is not None:
        try:
            score = Score.model_validate(transcript.score.score)
        except ValidationError as error:
            reason = " ".join(str(error).split())[:200]
            raise TranscriptError(f"{path}: its score cannot be read: {reason}") from error
        complete = {**transcript.score.score, **score.model_dump(mode="json")}
        transcript.score = transcript.score.model_copy(update={"score": complete})
    return transcript


def each_readable(files: Iterable[Path], unreadable: list[str]) -> Iterator[Transcript]:
    """The transcripts in files, one at a time; `unreadable` receives an error message for each unreadable file."""
    for path in files:
        try:
            yield read_episode(path)
        except TranscriptError as error:
            unreadable.append(str(error))
