"""Notes on rows of CVDP and of other benchmarks, from running them: which can be passed, what their tests demand, and
what the tests miss.

`note_of` returns the note of a problem. A note belongs to a row as published: a row with a changed task, files or tests
has no note. ``benchmarks/compatibility.py`` writes ``cvdp_notes.json`` from runs of the real tests, and
``benchmarks/mutants.py`` adds its measurements; ``benchmarks/suites.py`` writes ``suite_notes.json``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, Field, ValidationError

from ..errors import ProblemError, UsageError
from .model import Problem

NOTES = Path(__file__).with_name("cvdp_notes.json")
"""The notes of CVDP's rows."""
SUITE_NOTES = Path(__file__).with_name("suite_notes.json")
"""The notes of other benchmarks' problems, written by ``benchmarks/suites.py``."""
TESTBENCH = "src/testbench.sv"
"""The hidden file of a benchmark's own testbench, if what it prints is the verdict."""

_SILENT = re.compile(r'"(?:[^"\\\n]|\\.)*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
"""Strings and comments, including unterminated ones, so that the time is linear for any text."""

Right = Literal["passes", "impossible", "unknown"]
"""What is known about correct designs: one passes; no design can pass; nothing was run, or the only design fails."""


RATINGS = {
    "sound": "a right design passes; no unstated demand and no blind spot of the tests is known",
    "partial": "a right design passes; the tests do not check a part of what the task asks for",
    "weak": "a right design passes, and so does one that does not do what the task is mainly about",
    "unfair": "a right design passes, but the tests demand what the task does not say",
    "impossible": "no design passes",
    "unknown": "nothing was run, or the only design that was run fails",
}
"""The ratings of a row and their meanings. The first three are fair."""


class Statement(BaseModel, frozen=True, extra="forbid"):
    """A demand of a row's tests that the task does not state, or a mistake that the tests do not detect."""

    name: str
    """Unique within its row."""
    kind: Literal["wants", "unseen"]
    """``wants``: the tests demand something that the task does not state, or that its documents contradict.
    ``unseen``: the tests do not detect a mistake."""
    about: Literal["timescale", "name", "moment", "value", "data", "everything"]
    """The subject of the demand or of the mistake."""
    text: str
    """A description."""
    shown: Literal["run", "read"]
    """``run``: shown by running the real tests on a design, which follows the task and fails (``wants``), or is wrong
    and passes (``unseen``). ``read``: only by reading the tests."""
    lacks: str = ""
    """Regular expression for what a submission must contain, outside comments and strings, to meet the demand; empty
    if the demand cannot be found in the text."""
    fails: tuple[str, ...] = ()
    """The tests that the design which follows the task fails, by `TestOutcome.name`; only for ``wants``."""
    part: bool = False
    """Whether that design passes other tests of the row."""
    core: bool = False
    """Only for ``unseen``: whether a design passes that does not do the main part of the task. Otherwise the tests miss
    only a part of what the task asks for."""

    def explains(self, failed: set[str], files: Mapping[str, str] | None) -> bool:
        """Whether this demand alone explains the failed tests of a submission, as far as known.

        The failed tests must be those in `fails`: if one of these passes, the submission meets the demand, and the
        others fail for another reason. Fewer may fail only if the demand is about names, of which some may be right. If
        `lacks` is given, the submission must lack it. Otherwise, other tests of the row must pass for the design that
        follows the task (`part`): if all tests fail, the failures show nothing.

        Args:
            failed: Names of the failed tests.
            files: The submission's files; None if unknown.
        """
        if self.kind != "wants" or not failed or not failed <= set(self.fails):
            return False
        if len(failed) < len(set(self.fails)) and self.about != "name":
            return False
        if not self.lacks:
            return self.part
        return files is not None and self.is_lacking(files)

    def is_lacking(self, files: Mapping[str, str]) -> bool:
        """Whether no file matches `lacks` outside comments and strings."""
        return not any(re.search(self.lacks, _SILENT.sub(" ", text)) for text in files.values())


class MutationScore(BaseModel, frozen=True, extra="forbid"):
    """How many of the sampled mutants of a correct design the tests of a row reject."""

    killed: int = Field(ge=0)
    """Mutants that the tests reject."""
    counted: int = Field(ge=1)
    """Mutants that compile and are not proved equivalent to the correct design."""

    @property
    def rate(self) -> float:
        """The strength of the tests, 0..1."""
        return self.killed / self.counted

    @property
    def text(self) -> str:
        """A description."""
        return f"{self.killed} of {self.counted} mutants"


class Note(BaseModel, frozen=True, extra="forbid"):
    """What is known about one row."""

    id: str
    """The row's id."""
    digest: str
    """`row_digest` of the row that was run; for other benchmarks, `digest_of_testbench`."""
    release: str
    """The release or benchmark of the row, such as ``v1.0.2`` or ``rtllm``."""
    right: Right
    how: str
    """How `right` was shown, or why it is unknown."""
    needs: tuple[str, ...] = ()
    """What this row's tests use of the image's compatibility layer for older versions of cocotb."""
    statements: tuple[Statement, ...] = ()
    tests: int | None = None
    """Number of tests that the correct design passes; None if not counted."""
    unshown: tuple[str, ...] = ()
    """Names of statements on other releases of the row that a run did not confirm for this one."""
    strength: MutationScore | None = None
    """How many small bugs the tests detect; None if not measured. Does not affect the `rating`."""

    @property
    def fair(self) -> bool:
        """Whether a correct design passes and the tests demand nothing unstated, as far as known."""
        return self.right == "passes" and not self.wants

    @property
    def blind(self) -> bool:
        """Whether its tests do not check the main part of the task."""
        return any(statement.core for statement in self.unseen)

    @property
    def partial(self) -> bool:
        """Whether it is fair and its tests check at least the main part of the task, as far as known."""
        return self.fair and not self.blind

    @property
    def sound(self) -> bool:
        """Whether it is fair and no mistake is known that its tests do not detect."""
        return self.fair and not self.unseen

    @property
    def wants(self) -> tuple[Statement, ...]:
        """Demands of its tests that the task does not state."""
        return tuple(statement for statement in self.statements if statement.kind == "wants")

    @property
    def unseen(self) -> tuple[Statement, ...]:
        """Mistakes that its tests do not detect."""
        return tuple(statement for statement in self.statements if statement.kind == "unseen")

    @property
    def rating(self) -> str:
        """A key of `RATINGS`."""
        if self.right != "passes":
            return self.right
        if not self.fair:
            return "unfair"
        return "sound" if self.sound else "partial" if self.partial else "weak"


def row_digest(problem: Problem) -> str:
    """SHA-256 of what determines whether a design is right: task, files and tests. The reference solution is excluded,
    since some releases of a row withhold it.
    """
    fields = problem.model_dump(mode="json", include={"id", "prompt", "context", "targets", "harness"})
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def digest_of_testbench(problem: Problem) -> str:
    """SHA-256 of a problem's id and the benchmark's testbench; the harness around it belongs to this package."""
    return hashlib.sha256(f"{problem.id}\n{problem.harness[TESTBENCH]}".encode()).hexdigest()


def note_of(problem: Problem) -> Note | None:
    """The note of a problem; None if there is none for this version of the row."""
    if problem.id not in _noted():
        return None
    digest = digest_of_testbench(problem) if TESTBENCH in problem.harness else row_digest(problem)
    return all_notes().get(digest)


@cache
def all_notes() -> Mapping[str, Note]:
    """The notes of this package by their digests, since releases share ids."""
    return {note.digest: note for path in (NOTES, SUITE_NOTES) for note in read_notes(path)}


@cache
def _noted() -> frozenset[str]:
    return frozenset(note.id for note in all_notes().values())


def read_notes(path: Path) -> list[Note]:
    """The notes of a file.

    Raises:
        ProblemError: The file is missing or not a file of notes.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [Note.model_validate(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        reason = " ".join(str(error).split())
        message = f"not a file of notes ({reason[:200]}); benchmarks/compatibility.py writes one"
        raise ProblemError(message, source=str(path)) from error


def write_notes(path: Path, notes: Iterable[Note]) -> None:
    """Write notes to a file, sorted by the row's id and release, for `read_notes`."""
    ordered = sorted(notes, key=lambda note: (note.id, note.release))
    rows = [note.model_dump(mode="json", exclude_defaults=True) for note in ordered]
    path.write_text(json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


Rows = Literal["all", "fair", "partial", "sound"]
"""Which rows to keep: all; ``fair``: a correct design passes, and the tests demand nothing unstated; ``partial``: fair,
and the tests check at least the main part of the task; ``sound``: fair, and the tests have no known blind spot. A
problem without a note belongs only to all."""
ROWS: tuple[Rows, ...] = get_args(Rows)


def keep_rows(problems: Sequence[Problem], rows: Rows) -> list[Problem]:
    """The problems with notes that `rows` selects, in their order; with ``all``, all problems.

    Raises:
        UsageError: `rows` is unknown, or no problem is left.
    """
    if rows not in ROWS:
        raise UsageError(f"rows is {rows!r}; choose one of {', '.join(ROWS)}")
    if rows == "all":
        return list(problems)
    kept = [problem for problem in problems if (note := note_of(problem)) is not None and getattr(note, rows)]
    if problems and not kept:
        ratings = Counter(
            note.rating if (note := note_of(problem)) is not None else "without a note" for problem in problems
        )
        told = ", ".join(f"{count} {rating}" for rating, count in ratings.items())
        where = "CVDP's agentic, no-commercial rows of v1.0.2 and v1.1.0, the examples of v1.1.0, VerilogEval and RTLLM"
        hint = f"there are notes of {where}; " if ratings["without a note"] else ""
        raise UsageError(
            f"no selected problem is known to be {rows} ({told}); {hint}choose other problems, or all rows (rows=all, "
            "without --fair-only)"
        )
    return kept
