"""Where the transcripts of a file, a folder or a run are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import TranscriptError, UsageError
from ...transcripts import Transcript, read_transcript


@dataclass
class Found:
    """Transcripts that could be read, and why others could not."""

    transcripts: list[Transcript] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """One sentence a file."""


def transcript_files(source: Path) -> list[Path]:
    """The transcripts at `source`, in the order of their names: a file itself, those of a run or an evaluation
    (``transcripts/``, also in sub-folders), or the ``.jsonl`` files of any other folder.

    Raises:
        UsageError: There is nothing at `source`, or no transcript in it.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise UsageError(f"{source}: no such file or folder; give a transcript, a folder of transcripts, or a run")
    named = [folder for folder in sorted(source.rglob("transcripts")) if folder.is_dir()]
    found = sorted({path for folder in named or [source] for path in folder.rglob("*.jsonl")})
    if not found:
        raise UsageError(f"{source}: holds no transcript (*.jsonl, or transcripts/*.jsonl)")
    return found


def read_all(files: list[Path], progress: Callable[[int], None] | None = None) -> Found:
    """Read transcripts, leaving out those that cannot be read, each with a sentence that says why.

    Args:
        files: What to read.
        progress: Told after each file how many are done.
    """
    found = Found()
    for number, path in enumerate(files, 1):
        try:
            found.transcripts.append(read_transcript(path))
        except TranscriptError as error:
            found.unreadable.append(str(error))
        if progress is not None:
            progress(number)
    return found


def each_transcript(sources: list[Path], unreadable: list[str] | None = None) -> Iterator[Transcript]:
    """The readable transcripts of several sources, one at a time; `unreadable` is told why others are not."""
    for source in sources:
        for path in transcript_files(source):
            try:
                yield read_transcript(path)
            except TranscriptError as error:
                if unreadable is not None:
                    unreadable.append(str(error))


__all__ = ["Found", "each_transcript", "read_all", "transcript_files"]
