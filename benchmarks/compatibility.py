#!/usr/bin/env python3
"""What is known of the rows of a CVDP file, found out by running designs: writes the notes of ``cvdp_notes``.

    .venv/bin/python benchmarks/compatibility.py ROWS.jsonl … [--row ID …] [--write]

A row is run with a design known to be right: its own solution, or a design of this project's in
``tests/scoring/designs/ID/`` (without the prefix ``cvdp_agentic_``). A row that no design can pass has a proof in
``tests/scoring/impossible/ID/``: a design that is right, what its tests say of it (and of any other), and the one
change to the tests with which it passes. Then each statement of the row is tried with its design (see
`cvdp_statements`).

Each row prints one line of Markdown. ``--write`` puts what was found into ``notes.json``, in place of the same rows
there, and writes the tables of ``docs/compatibility.md`` again. If a statement does not hold, nothing is written, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from cvdp_statements import IMPOSSIBLE, Written, files_below, needs, right_design, short, written_statements

from rtl_agent_gym.errors import RTLGymError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.notes import NOTES, RATINGS, Note, Right, Statement, read_notes, row_digest, write_notes
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.scorer import why_unscorable

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
DIRECTIVE = "`timescale 1ns/1ps"
MARK = "<!-- {} of {}, by benchmarks/compatibility.py -->"


class Untrue(RTLGymError):
    """A run contradicts what is written of a row."""


async def measure(problem: Problem, release: str, scorer: Scorer) -> Note:
    """What is known of a row, from runs. Raises `Untrue` if one of them contradicts what is written."""
    written = written_statements().get(short(problem), [])
    right, how = await try_right(problem, scorer)
    statements = [await try_statement(problem, statement, scorer) for statement in written]
    return Note(
        id=problem.id,
        digest=row_digest(problem),
        release=release,
        right=right,
        how=how,
        needs=needs().get(short(problem), ()),
        statements=tuple(statements),
    )


async def try_right(problem: Problem, scorer: Scorer) -> tuple[Right, str]:
    """What is known of right designs, and how it was shown."""
    if reason := why_unscorable(problem):
        return "unknown", f"cannot be run here: {reason}"
    if (IMPOSSIBLE / short(problem)).is_dir():
        return "impossible", await disprove(problem, scorer)
    files = right_design(problem)
    if files is None:
        return "unknown", "no right design is written, and the row has no solution"
    score = await scorer.score(problem, files, timeout=600)
    if not score.passed:
        raise Untrue(f"{problem.id}: the right design fails: {score.reason}")
    own = files == problem.golden
    return "passes", "the row's own solution passes" if own else "a design of this project's passes"


async def disprove(problem: Problem, scorer: Scorer) -> str:
    """Why no design passes, after checking the proof."""
    files = files_below(IMPOSSIBLE / short(problem))
    proof = json.loads(files.pop("proof.json"))
    text = problem.harness[proof["file"]]
    tests = {**problem.harness, proof["file"]: text.replace(proof["from"], proof["to"])}
    if (await scorer.score(problem, files, timeout=600)).passed:
        raise Untrue(f"{problem.id}: a design passes although the row is called impossible")
    mended = await scorer.score(problem.model_copy(update={"harness": tests}), files, timeout=600)
    if not mended.passed:
        raise Untrue(f"{problem.id}: even with its tests mended, the design fails: {mended.reason}")
    return str(proof["why"])


async def try_statement(problem: Problem, written: Written, scorer: Scorer) -> Statement:
    """A statement as a run of its design shows it."""
    if written.read_only:
        return written.statement(None)
    files = written.design(problem)
    score = await scorer.score(problem, files, timeout=600)
    if score.passed != written.passes:
        verdict = "passes" if score.passed else f"fails ({score.reason})"
        raise Untrue(f"{problem.id}: {written.name!r} is not so: its design {verdict}")
    if score.violations or score.compile < 1:
        raise Untrue(f"{problem.id}: {written.name!r}: its design is refused or does not compile: {score.reason}")
    found = written.statement(score)
    if found.lacks and not found.is_lacking(files):
        raise Untrue(f"{problem.id}: {written.name!r}: its design does not lack {found.lacks}")
    return found


def release_of(path: Path) -> str:
    """Where a file's rows were published, from its name."""
    version = re.search(r"v\d+\.\d+\.\d+", path.name)
    return (version[0] if version else path.name) + (" (example)" if "example" in path.name else "")


def in_words(note: Note) -> str:
    """What is known of a row in one cell of a table."""
    demands = ", ".join(want.name for want in note.wants)
    blind = ", ".join(statement.name for statement in note.unseen)
    parts = [f"demands unstated: {demands}" if demands else "", f"does not see: {blind}" if blind else ""]
    return "; ".join([note.rating, *(part for part in parts if part)])


def marked(text: str) -> str:
    """A text as Markdown; a directive of Verilog begins with a character that Markdown reads."""
    return text.replace(DIRECTIVE, f"`` {DIRECTIVE} ``")


def tables(notes: Iterable[Note]) -> dict[str, list[str]]:
    """The tables of the documentation by name, as lines of Markdown."""
    rows = sorted(notes, key=lambda note: note.id)
    ratings = tuple(RATINGS)
    counts = {(note.release, rating): 0 for note in rows for rating in ratings}
    for note in rows:
        counts[note.release, note.rating] += 1
    releases = sorted({note.release for note in rows})

    def told(kind: str) -> list[str]:
        return [
            f"| `{note.id}` | {statement.name}{' (core)' if statement.core else ''} "
            f"| {marked(statement.text)}{'' if statement.shown == 'run' else ' *(read, not shown)*'} |"
            for note in rows
            for statement in note.statements
            if statement.kind == kind
        ]

    def line(note: Note) -> str:
        needed = ", ".join(f"`{name}`" for name in note.needs) or "–"
        return f"| `{note.id}` | {note.release} | {needed} | {in_words(note)} |"

    return {
        "counts": [
            f"| release | {' | '.join(ratings)} | rows |",
            "|---" * (len(ratings) + 2) + "|",
            *(
                f"| {release} | {' | '.join(str(counts[release, rating]) for rating in ratings)} "
                f"| {sum(counts[release, rating] for rating in ratings)} |"
                for release in releases
            ),
        ],
        "demands": ["| row | demand | what its tests want |", "|---|---|---|", *told("wants")],
        "blind spots": ["| row | blind spot | what its tests do not see |", "|---|---|---|", *told("unseen")],
        "rows": ["| row | release | needs | what is known |", "|---|---|---|---|", *map(line, rows)],
    }


def page_with(text: str, notes: Iterable[Note]) -> str:
    """The page with its tables written again from the notes."""
    for name, lines in tables(notes).items():
        begin, end = MARK.format("begin", name), MARK.format("end", name)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n" + "\n".join(lines) + f"\n\n{end}{rest.split(end)[1]}"
    return text


def write(found: Iterable[Note]) -> None:
    """Put notes into the package's file in place of those of the same rows, and write the tables again.

    A row that has not changed keeps the strength of its tests, which ``benchmarks/mutants.py`` measures.
    """
    notes = {note.id: note for note in read_notes(NOTES)}
    for note in found:
        known = notes.get(note.id)
        measured = known.strength if known is not None and known.digest == note.digest else None
        notes[note.id] = note.model_copy(update={"strength": measured})
    write_notes(NOTES, notes.values())
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), notes.values()), encoding="utf-8")


async def measure_files(paths: Iterable[Path], rows: list[str] | None) -> list[Note]:
    """The notes of the rows of these files; a row that is in several is run where it has a solution."""
    problems: dict[str, tuple[Problem, str]] = {}
    for path in paths:
        for problem in load_problems(path):
            known = problems.get(problem.id)
            if (rows is None or problem.id in rows) and (known is None or known[0].golden is None):
                problems[problem.id] = problem, release_of(path)
    if missing := sorted(set(rows or ()) - problems.keys()):
        raise UsageError(f"--row: {missing[0]} is in none of the files")
    notes: list[Note] = []
    async with DockerSandboxes() as provider, Scorer(provider) as scorer:
        for problem, release in problems.values():
            notes.append(await measure(problem, release, scorer))
            print(f"| `{problem.id}` | {in_words(notes[-1])} |", flush=True)
    return notes


def main() -> int:
    """Run what was asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path, help="files of CVDP rows, as JSON Lines")
    parser.add_argument("--row", action="extend", nargs="+", metavar="ID", help="ids; all by default")
    parser.add_argument("--write", action="store_true", help="write notes.json and the tables of the documentation")
    options = parser.parse_args()
    try:
        found = asyncio.run(measure_files(options.rows, options.row))
    except Untrue as error:
        print(f"error: {error}; mend what is written of it in tests/scoring. Nothing was saved.", file=sys.stderr)
        return 1
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    if options.write:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
