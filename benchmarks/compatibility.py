#!/usr/bin/env python3
"""Finds out by running designs what is known of the rows of a CVDP file, and writes the notes in ``cvdp_notes.json``.

    .venv/bin/python benchmarks/compatibility.py ROWS.jsonl … [--row ID …] [--cache FOLDER] [--write]

A row is run with a design known to be right: its own solution, or a design of this project in
``tests/scoring/designs/ID/`` (without the prefix ``cvdp_agentic_``). A row that no design can pass has a proof in
``tests/scoring/impossible/ID/``: a right design, what the row's tests report for it (and for any other design), and the
one change to the tests that makes it pass. Then each statement about the row is tried with its design (see
`cvdp_statements`).

A new release of a row is run with the same designs. A statement that they do not show for it is left out of its note,
which lists the statement's name; stderr says why. ``--write`` replaces the notes of the same rows and releases in
``cvdp_notes.json``, and rewrites the tables of ``docs/compatibility.md``. If a run contradicts the existing note of
exactly this row, nothing is written, and the exit code is 1.

For each row, one line of Markdown is printed. With ``--cache``, gradings are kept in a folder and not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from cvdp_statements import IMPOSSIBLE, Written, files_below, needs, right_design, short, written_statements

from rtl_agent_gym.errors import RTLGymError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.notes import NOTES, RATINGS, Note, Right, Statement, read_notes, row_digest, write_notes
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.scorer import why_unscorable

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
DIRECTIVE = "`timescale 1ns/1ps"
MARK = "<!-- {} of {}, by benchmarks/compatibility.py -->"


SECONDS = 600
"""Time limit of each service of a harness, as in the official runner."""


class Untrue(RTLGymError):
    """A run contradicts what is written about a row."""


async def measure(problem: Problem, release: str, scorer: Scorer, known: Note | None = None) -> Note:
    """What is known of a row, from runs.

    Args:
        problem: The row.
        release: The release in which it was published.
        scorer: Runs its tests.
        known: The note of exactly this row; None if it has none.

    Raises:
        Untrue: A run contradicts `known`.
    """
    statements, unshown, tests = [], [], None
    try:
        right, how, tests = await try_right(problem, scorer, known)
    except Untrue as error:
        if known is not None and known.right != "unknown":
            raise
        right, how = "unknown", str(error)
        print(error, file=sys.stderr, flush=True)
    for written in written_statements().get(short(problem), []):
        if right == "unknown" and not written.read_only:  # everything fails, so a failure shows nothing
            unshown.append(written.name)
            continue
        try:
            statements.append(await try_statement(problem, written, scorer))
        except Untrue as error:
            if known is not None and any(statement.name == written.name for statement in known.statements):
                raise
            unshown.append(written.name)
            print(error, file=sys.stderr, flush=True)
    return Note(
        id=problem.id,
        digest=row_digest(problem),
        release=release,
        right=right,
        how=how,
        needs=needs().get(short(problem), ()),
        statements=tuple(statements),
        tests=tests,
        unshown=tuple(unshown),
    )


async def try_right(problem: Problem, scorer: Scorer, known: Note | None) -> tuple[Right, str, int | None]:
    """What is known of right designs, how it was shown, and how many tests a design passes. Raises like `measure`."""
    if reason := why_unscorable(problem):
        return "unknown", f"cannot be run here: {reason}", None
    if (IMPOSSIBLE / short(problem)).is_dir():
        proved = {path: text for path, text in files_below(IMPOSSIBLE / short(problem)).items() if path != "proof.json"}
        score = await scorer.score(problem, proved, timeout=SECONDS)
        if not score.passed:
            return "impossible", await disprove(problem, scorer), None
        if known is not None and known.right == "impossible":
            raise Untrue(f"{problem.id}: a design passes although the row is called impossible")
        return "passes", "a design of this project's passes", score.tests_passed
    files = right_design(problem)
    if files is None:
        return "unknown", "no right design is written, and the row has no solution", None
    score = await scorer.score(problem, files, timeout=SECONDS)
    if not score.passed:
        raise Untrue(f"{problem.id}: the right design fails: {score.reason}")
    own = files == problem.golden
    how = "the row's own solution passes" if own else "a design of this project's passes"
    return "passes", how, score.tests_passed


async def disprove(problem: Problem, scorer: Scorer) -> str:
    """Why no design passes, after checking the proof."""
    files = files_below(IMPOSSIBLE / short(problem))
    proof = json.loads(files.pop("proof.json"))
    text = problem.harness[proof["file"]]
    tests = {**problem.harness, proof["file"]: text.replace(proof["from"], proof["to"])}
    mended = await scorer.score(problem.model_copy(update={"harness": tests}), files, timeout=SECONDS)
    if not mended.passed:
        raise Untrue(f"{problem.id}: even with its tests mended, the design fails: {mended.reason}")
    return str(proof["why"])


async def try_statement(problem: Problem, written: Written, scorer: Scorer) -> Statement:
    """A statement, completed by a run of its design. Raises `Untrue` if the run contradicts it."""
    if written.read_only:
        return written.statement(None)
    files = written.design(problem)
    score = await scorer.score(problem, files, timeout=SECONDS)
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
    """The release of a file's rows, from the file's name."""
    version = re.search(r"v\d+\.\d+\.\d+", path.name)
    return (version[0] if version else path.name) + (" (example)" if "example" in path.name else "")


def in_words(note: Note) -> str:
    """What is known of a row in one cell of a table."""
    demands = ", ".join(want.name for want in note.wants)
    blind = ", ".join(statement.name for statement in note.unseen)
    parts = [f"demands unstated: {demands}" if demands else "", f"does not see: {blind}" if blind else ""]
    return "; ".join([note.rating, *(part for part in parts if part)])


def marked(text: str) -> str:
    """A text as Markdown, with Verilog's directive quoted, since it begins with a backquote."""
    return text.replace(DIRECTIVE, f"`` {DIRECTIVE} ``")


def tables(notes: Iterable[Note]) -> dict[str, list[str]]:
    """The tables of the documentation by name, as lines of Markdown."""
    rows = sorted(notes, key=lambda note: (note.id, note.release))
    ratings = tuple(RATINGS)
    counts = {(note.release, rating): 0 for note in rows for rating in ratings}
    for note in rows:
        counts[note.release, note.rating] += 1
    releases = sorted({note.release for note in rows})

    def told(kind: str) -> list[str]:
        found: dict[tuple[str, str, str], list[str]] = {}
        for note in rows:
            for statement in (other for other in note.statements if other.kind == kind):
                name = f"{statement.name}{' (core)' if statement.core else ''}"
                text = f"{marked(statement.text)}{'' if statement.shown == 'run' else ' *(read, not shown)*'}"
                found.setdefault((note.id, name, text), []).append(note.release)
        return [f"| `{row}` | {', '.join(where)} | {name} | {text} |" for (row, name, text), where in found.items()]

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
        "changes": ["| row | releases | tests | rating | changed |", "|---|---|---|---|---|", *changes(rows)],
        "demands": ["| row | releases | demand | what its tests want |", "|---|---|---|---|", *told("wants")],
        "blind spots": [
            "| row | releases | blind spot | what its tests do not see |",
            "|---|---|---|---|",
            *told("unseen"),
        ],
        "rows": ["| row | release | needs | what is known |", "|---|---|---|---|", *map(line, rows)],
    }


def changes(rows: Iterable[Note]) -> list[str]:
    """The rows that two releases have, each with what is known to differ in the later one."""
    found = []
    for old, new in itertools.pairwise(note for note in rows if "example" not in note.release):
        if old.id != new.id:
            continue
        before, after = ({statement.name: statement.kind for statement in note.statements} for note in (old, new))
        gone = {name: kind for name, kind in before.items() if name not in after}
        come = {name: kind for name, kind in after.items() if name not in before}
        told = [
            ("no longer demanded", [name for name, kind in gone.items() if kind == "wants"]),
            ("now seen", [name for name, kind in gone.items() if kind == "unseen"]),
            ("now demanded", [name for name, kind in come.items() if kind == "wants"]),
            ("no longer seen", [name for name, kind in come.items() if kind == "unseen"]),
        ]
        words = [f"{what}: {', '.join(names)}" for what, names in told if names]
        if old.right != new.right:
            words.insert(0, new.how.removeprefix(f"{new.id}: "))
        rating = old.rating if old.rating == new.rating else f"{old.rating} → {new.rating}"
        tests = " → ".join("?" if note.tests is None else str(note.tests) for note in (old, new))
        releases = f"{old.release} → {new.release}"
        found.append(f"| `{old.id}` | {releases} | {tests} | {rating} | {'; '.join(words) or 'nothing known'} |")
    return found


def page_with(text: str, notes: Iterable[Note]) -> str:
    """The page with its tables replaced by those of the notes."""
    for name, lines in tables(notes).items():
        begin, end = MARK.format("begin", name), MARK.format("end", name)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n" + "\n".join(lines) + f"\n\n{end}{rest.split(end)[1]}"
    return text


def write(found: Iterable[Note]) -> None:
    """Replace the notes of the same rows and releases in the package's file, and rewrite the tables.

    A row that has not changed keeps the strength of its tests, which ``benchmarks/mutants.py`` measures.
    """
    notes = {(note.id, note.release): note for note in read_notes(NOTES)}
    for note in found:
        known = notes.get((note.id, note.release))
        measured = known.strength if known is not None and known.digest == note.digest else None
        notes[note.id, note.release] = note.model_copy(update={"strength": measured})
    write_notes(NOTES, notes.values())
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), notes.values()), encoding="utf-8")


async def measure_files(paths: Iterable[Path], rows: list[str] | None, cache: Path | None) -> list[Note]:
    """The notes of the files' rows. If several files of a release have a row, the one with a solution is run."""
    problems: dict[tuple[str, str], Problem] = {}
    for path in paths:
        for problem in load_problems(path):
            place = (problem.id, release_of(path))
            if (rows is None or problem.id in rows) and (place not in problems or problems[place].golden is None):
                problems[place] = problem
    if missing := sorted(set(rows or ()) - {row for row, _ in problems}):
        raise UsageError(f"--row: {missing[0]} is in none of the files")
    known = {note.digest: note for note in read_notes(NOTES)}
    turns = asyncio.Semaphore(os.cpu_count() or 1)

    async def one(problem: Problem, release: str, scorer: Scorer) -> Note:
        async with turns:
            note = await measure(problem, release, scorer, known.get(row_digest(problem)))
        print(f"| `{problem.id}` | {release} | {in_words(note)} |", flush=True)
        return note

    async with make_provider() as provider, Scorer(provider, cache=cache) as scorer:
        runs = [asyncio.create_task(one(problem, release, scorer)) for (_, release), problem in problems.items()]
        try:
            return await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)


def main() -> int:
    """Measure the rows of the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path, help="files of CVDP rows, as JSON Lines")
    parser.add_argument("--row", action="extend", nargs="+", metavar="ID", help="ids; all by default")
    parser.add_argument("--write", action="store_true", help="write cvdp_notes.json and the documentation's tables")
    parser.add_argument("--cache", type=Path, help="folder for gradings, so that an interrupted run can continue")
    options = parser.parse_args()
    try:
        found = asyncio.run(measure_files(options.rows, options.row, options.cache))
    except Untrue as error:
        print(f"error: {error}; correct the row's entry in tests/scoring. Nothing was saved.", file=sys.stderr)
        return 1
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    if options.write:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
