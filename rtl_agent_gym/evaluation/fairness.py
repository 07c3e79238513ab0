"""Failed episodes that are explained by a known demand of the tests which the task does not state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import TranscriptError
from ..problems.notes import Note
from ..transcripts import read_transcript
from .outcome import EpisodeResult

_DESIGN = re.compile(r"rtl/.*\.s?vh?")


@dataclass(frozen=True)
class Unstated:
    """A failed episode whose failed tests are those that a design which only follows the task also fails.

    The design compiled, and `Statement.explains` its failures: by the names of the tests and, if the demand can be
    found in the text, by the submitted files. The design may have other mistakes, hidden by a test that fails because
    of the demand. How the episode ended does not matter, since it is graded anyway.
    """

    problem_id: str
    sample: int
    demand: str
    """`Statement.name` of the demand."""
    text: str
    """The demand in words."""


def find_unstated(
    results: Iterable[EpisodeResult], notes: Mapping[str, Note], folder: Path | None = None
) -> list[Unstated]:
    """The failed episodes that an unstated demand explains, sorted by `EpisodeResult.key`.

    Args:
        folder: The folder that paths of transcripts are relative to. Submitted files are read from transcripts; without
            one, only demands that do not need the files are found.
    """
    found = []
    for result in sorted(results, key=lambda result: result.key):
        note, score = notes.get(result.problem_id), result.score
        if note is None or score is None or score.passed:
            continue
        if score.violations or score.format < 1 or score.compile < 1:
            continue  # that is why it failed
        failed = {bare_name(test.name) for test in score.tests if test.outcome not in ("passed", "skipped")}
        if not any(demand.explains(failed, {}) for demand in note.wants):
            continue  # whatever the files
        files = _submitted(result, folder)
        demand = next((wanted for wanted in note.wants if wanted.explains(failed, files)), None)
        if demand is not None:
            found.append(Unstated(result.problem_id, result.sample, demand.name, demand.text))
    return found


def bare_name(test: str) -> str:
    """A test's name without parameters, which some rows draw at random."""
    return re.sub(r"\[[^]]*\]", "", test)


def _submitted(result: EpisodeResult, folder: Path | None) -> dict[str, str] | None:
    """The graded design files that are not the problem's own; None if not all were recorded."""
    if result.transcript is None:
        return None
    path = Path(result.transcript)
    try:
        transcript = read_transcript(path if folder is None else folder / path)
    except TranscriptError:
        return None
    record = transcript.score
    lines = [line for turn in transcript.turns for line in turn.left_out]
    if record is None or not record.files or any(_DESIGN.match(line) or line.startswith("and ") for line in lines):
        return None
    return {name: text for name, text in record.files.items() if _DESIGN.fullmatch(name)}
