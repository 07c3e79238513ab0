"""What running the rows of CVDP and of other benchmarks has shown: which can be passed, and what their tests demand or
do not see.

`note_of` gives the note of a problem. A note belongs to the row as it was published: a row with another task, other
files or other tests has none. ``benchmarks/compatibility.py`` writes ``cvdp_notes.json`` from runs of the real tests,
and ``benchmarks/mutants.py`` adds what it measured; ``benchmarks/suites.py`` writes ``suite_notes.json``.
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
"""Those of other benchmarks' problems, written by ``benchmarks/suites.py``."""
TESTBENCH = "src/testbench.sv"
"""Where a benchmark's own testbench is hidden, if its verdict is what that prints."""

_SILENT = re.compile(r'"(?:[^"\\\n]|\\.)*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
"""Strings and comments. Those that do not end are part of it too, so that the time is linear in any text."""

Right = Literal["passes", "impossible", "unknown"]
"""What is known of right designs: some design passes; no design can pass; nothing was run."""


RATINGS = {
    "sound": "a right design passes; no unstated demand and no blind spot of the tests is known",
    "partial": "a right design passes; the tests do not check a part of what the task asks for",
    "weak": "a right design passes, and so does one that does not do what the task is mainly about",
    "unfair": "a right design passes, but the tests demand what the task does not say",
    "impossible": "no design passes",
    "unknown": "nothing was run, or the only design that was run fails",
}
"""The rating of a row in one word, and what it means. The first three are fair."""


class Statement(BaseModel, frozen=True, extra="forbid"):
    """One thing that a row's tests demand although no task says it, or that they do not see."""

    name: str
    """Unique within its row."""
    kind: Literal["wants", "unseen"]
    """``wants``: the tests demand what the task does not say, or what its documents contradict. ``unseen``: the tests
    do not see a mistake."""
    about: Literal["timescale", "name", "moment", "value", "data", "everything"]
    """What is demanded or not seen."""
    text: str
    """In words."""
    shown: Literal["run", "read"]
    """``run``: by a design on the real tests, which follows the task and fails (``wants``), or is wrong and passes
    (``unseen``). ``read``: only by reading the tests."""
    lacks: str = ""
    """Regular expression for what a submission must contain, outside comments and strings, to meet the demand; empty
    if there is none."""
    fails: tuple[str, ...] = ()
    """The tests that fail for the design that follows the task, by `TestOutcome.name`; only for ``wants``."""
    part: bool = False
    """Whether other tests of the row pass for that design."""
    core: bool = False
    """Whether a design passes that does not do what the task is mainly about; only for ``unseen``. Otherwise a part of
    what the task asks for is not seen."""

    def explains(self, failed: set[str], files: Mapping[str, str] | None) -> bool:
        """Whether this demand alone accounts for the failed tests of a submission, as far as is known.

        The failed tests must be those that the design in `shown` fails: if one of these passes, the submission meets
        the demand, and others fail for another reason. Only of several names may some be right, so that fewer fail.
        Where something `lacks`, the submission must lack it; otherwise other tests must pass, as the same failures say
        nothing of a row whose tests all fail.

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
        """Whether files do not contain what `lacks` asks for; a comment or a string does not."""
        return not any(re.search(self.lacks, _SILENT.sub(" ", text)) for text in files.values())


class MutationScore(BaseModel, frozen=True, extra="forbid"):
    """How many mutants of a right design the tests of a row reject, of those that were drawn and graded."""

    killed: int = Field(ge=0)
    """Mutants that the tests reject."""
    counted: int = Field(ge=1)
    """Mutants that compile and are not proved equivalent to the right design."""

    @property
    def rate(self) -> float:
        """The strength of the tests, 0..1."""
        return self.killed / self.counted

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.killed} of {self.counted} mutants"


class Note(BaseModel, frozen=True, extra="forbid"):
    """What is known of one row."""

    id: str
    """The row's id."""
    digest: str
    """`row_digest` of the row that was run; `digest_of_testbench` for other benchmarks."""
    release: str
    """Where the row was published, such as ``v1.0.2`` or ``rtllm``."""
    right: Right
    how: str
    """How that was shown, or why it is unknown."""
    needs: tuple[str, ...] = ()
    """What the image's layer for older versions of cocotb provides to this row's tests."""
    statements: tuple[Statement, ...] = ()
    tests: int | None = None
    """How many tests the right design passes; None if that was not counted."""
    unshown: tuple[str, ...] = ()
    """Names of statements of other releases of the row that a run did not show for this one."""
    strength: MutationScore | None = None
    """How many small bugs the tests see; None if that was not measured. It does not change the `rating`."""

    @property
    def fair(self) -> bool:
        """Whether a right design passes and nothing is demanded that the task does not say, as far as is known."""
        return self.right == "passes" and not self.wants

    @property
    def blind(self) -> bool:
        """Whether its tests do not see if a design does what the task is mainly about."""
        return any(statement.core for statement in self.unseen)

    @property
    def partial(self) -> bool:
        """Whether it is fair and its tests see at least what the task is mainly about, as far as is known."""
        return self.fair and not self.blind

    @property
    def sound(self) -> bool:
        """Whether it is fair and no mistake is known that its tests do not see."""
        return self.fair and not self.unseen

    @property
    def wants(self) -> tuple[Statement, ...]:
        """What its tests demand although no task says it."""
        return tuple(statement for statement in self.statements if statement.kind == "wants")

    @property
    def unseen(self) -> tuple[Statement, ...]:
        """What its tests do not see."""
        return tuple(statement for statement in self.statements if statement.kind == "unseen")

    @property
    def rating(self) -> str:
        """One word of `RATINGS`."""
        if self.right != "passes":
            return self.right
        if not self.fair:
            return "unfair"
        return "sound" if self.sound else "partial" if self.partial else "weak"


def row_digest(problem: Problem) -> str:
    """SHA-256 of what decides about right and wrong: task, files and tests. The reference solution is not part of it,
    which some releases of a row withhold.
    """
    fields = problem.model_dump(mode="json", include={"id", "prompt", "context", "targets", "harness"})
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def digest_of_testbench(problem: Problem) -> str:
    """SHA-256 of the id and the testbench of a benchmark, around which the harness is this package's."""
    return hashlib.sha256(f"{problem.id}\n{problem.harness[TESTBENCH]}".encode()).hexdigest()


def note_of(problem: Problem) -> Note | None:
    """The note of a problem; None without a note, or if another version of the row was run."""
    if problem.id not in _noted():
        return None
    digest = digest_of_testbench(problem) if TESTBENCH in problem.harness else row_digest(problem)
    return all_notes().get(digest)


@cache
def all_notes() -> Mapping[str, Note]:
    """The notes of this package by their digests: releases share ids."""
    return {note.digest: note for path in (NOTES, SUITE_NOTES) for note in read_notes(path)}


@cache
def _noted() -> frozenset[str]:
    return frozenset(note.id for note in all_notes().values())


def read_notes(path: Path) -> list[Note]:
    """The notes of a file.

    Raises:
        ProblemError: It is missing, or not a file of notes.
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
"""Which rows to keep: all; ``fair``: a right design passes, and the tests demand nothing unstated; ``partial``: fair,
and the tests check at least the main part of the task; ``sound``: fair, and the tests have no known blind spot. A
problem without a note belongs only to all."""
ROWS: tuple[Rows, ...] = get_args(Rows)


def keep_rows(problems: Sequence[Problem], rows: Rows) -> list[Problem]:
    """The problems that are known to be fair, partial or better, or sound, in their order.

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
            "or no --fair-only)"
        )
    return kept
