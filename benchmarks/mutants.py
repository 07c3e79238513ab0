#!/usr/bin/env python3
"""How many mutants of right designs the hidden tests reject: row by row, and by operator.

    .venv/bin/python benchmarks/mutants.py [SOURCE] [--limit 18] [--designs DIR] [--row ID …] [--minutes M]
    .venv/bin/python benchmarks/mutants.py --write

Rows whose solutions are withheld are measured with a right design from ``--designs``. Every measured row is appended to
``--results`` at once, and measured rows are not measured again: the same command continues after an interruption, or
when its minutes are over. ``--write`` puts the tables of all results into ``docs/mutants.md``, the figures into
``docs/assets/mutants.json``, and the strengths of CVDP's rows into their notes; ``--ship`` puts the verdicts on the
bundled problems into the package.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtl_agent_gym.errors import RTLGymError, SandboxError, UsageError
from rtl_agent_gym.evaluation.mutation import Count, Strength, measure_strength, mutant_grader
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.cvdp_notes import MutationScore, Note, read_notes, row_digest, write_notes
from rtl_agent_gym.problems.cvdp_notes.notes import NOTES
from rtl_agent_gym.problems.mutants import OPERATORS, VerdictStore, design_key, with_design
from rtl_agent_gym.problems.mutants.verdicts import SHIPPED

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "mutants.md"
ASSET = ROOT / "docs" / "assets" / "mutants.json"
RESULTS = ROOT / "build" / "mutants.jsonl"
PLACE = ("source", "id", "design", "limit", "seed")
"""What a measurement depends on: it is not repeated with the same ones."""


def read(path: Path) -> list[dict[str, Any]]:
    """The rows that were measured: the source's name, the options, and the strength or the reason for none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


async def measure(problems: Sequence[Problem], options: argparse.Namespace) -> int:
    """Measure rows until the time is over, and return the number of rows that a fault of the machine left out."""
    end, faults = time.monotonic() + 60 * options.minutes, 0
    name = Path(options.source).name
    done = [{key: row.get(key) for key in PLACE} for row in read(options.results) if "strength" in row]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    async with mutant_grader(workers=options.workers, cache=True) as grader:
        for problem in problems:
            values = (name, problem.id, design_key(problem), options.limit, options.seed)
            place = dict(zip(PLACE, values, strict=True))
            if place in done or time.monotonic() > end:
                continue
            begun = time.monotonic()
            try:
                strength = await measure_strength(problem, grader, limit=options.limit, seed=options.seed)
                found: dict[str, Any] = {"strength": strength.model_dump(mode="json")}
            except SandboxError as error:  # says nothing of the row: it is tried again the next time
                print(f"{problem.id}: {error}", file=sys.stderr, flush=True)
                faults += 1
                continue
            except UsageError as error:
                found = {"error": str(error)}
            with options.results.open("a") as stream:
                stream.write(json.dumps(place | {"row": row_digest(problem)} | found) + "\n")
            print(f"{problem.id}: {found.get('error') or strength.total} {time.monotonic() - begun:.0f} s", flush=True)
    return faults


def cells(count: Count) -> str:
    """The columns that all tables share."""
    rate = f"{count.rate:.0%}" if count.rate is not None else "–"
    return f"{count.killed} | {count.survived} | {count.proved} | {count.invalid} | {rate}"


def added(counts: Iterable[Count]) -> Count:
    """Several counts together."""
    every = list(counts)
    return Count(**{name: sum(getattr(count, name) for count in every) for name in Count.model_fields})


def tables(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The tables of a source's rows: by problem, by operator, and of the survivors' comparison with the reference."""
    found = sorted((Strength.model_validate(row["strength"]) for row in rows if "strength" in row), key=by_id)
    total = added(one.total for one in found)
    heads = "killed | survived | proved equivalent | do not compile | strength |"
    lines = [f"| problem | mutants in all | {heads}", "|---|---|---|---|---|---|---|"]
    lines += [f"| `{by_id(one)}` | {one.mutants} | {cells(one.total)} |" for one in found]
    lines += [f"| together ({len(found)}) | {sum(one.mutants for one in found)} | {cells(total)} |"]
    by_operator = [f"| operator | {heads}", "|---|---|---|---|---|---|"]
    for name in OPERATORS:
        count = added(one.operators[name] for one in found if name in one.operators)
        by_operator.append(f"| `{name}` | {cells(count)} |")
    survivors = [survivor["equivalence"] or "unknown" for one in found for survivor in one.survivors]
    kinds = [f"| {kind} | {survivors.count(kind)} |" for kind in ("proved", "differs", "bounded", "unknown")]
    measured = (
        f"Measured: {len(found)} rows, with {sum(sum(one.total.model_dump().values()) for one in found)} mutants."
    )
    return {
        "measured": measured,
        "problems": "\n".join(lines),
        "operators": "\n".join(by_operator),
        "survivors": "\n".join(["| what Yosys found | mutants that pass the tests |", "|---|---|", *kinds]),
    }


def by_id(strength: Strength) -> str:
    """A row's id without the prefixes that all share."""
    return re.sub("^cvdp_agentic_(rtlgym_)?", "", strength.problem_id)


def write(rows: Sequence[dict[str, Any]]) -> None:
    """Put the tables between the page's markers, the figures into a file that programs can read, and the strengths
    into the notes.

    Raises:
        UsageError: There is nothing to write, it does not fit into one table, or a row is not the one that its note is
            about.
    """
    if not rows:
        raise UsageError("--write: nothing has been measured; first run this program without it")
    latest = {(row["source"], row["id"]): row for row in rows}
    rows = list(latest.values())
    text, figures = PAGE.read_text(), json.loads(ASSET.read_text())
    notes = {note.id: note for note in read_notes(NOTES)}
    for row in rows:
        if row["id"] in notes and row.get("row", notes[row["id"]].digest) != notes[row["id"]].digest:
            raise UsageError(f"--write: {row['id']} of {row['source']} differs from the row that its note is about")
    if len(others := sorted({row["source"] for row in rows} - {"bundled"})) > 1:
        raise UsageError(f"--write: the page has one table of rows of CVDP, and results are of {', '.join(others)}")
    for source in sorted({row["source"] for row in rows}):
        chosen = [row for row in rows if row["source"] == source]
        if len(ways := {(row["limit"], row["seed"]) for row in chosen}) > 1:
            raise UsageError(f"--write: {source} was measured with several limits or seeds: {sorted(ways)}")
        label = "bundled" if source == "bundled" else "cvdp"
        for name, table in tables(chosen).items():
            text = filled(text, f"{label} {name}", table)
        for row in chosen:
            figures[row["id"]] = figure(row)
    PAGE.write_text(text)
    ASSET.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    write_notes(NOTES, with_strengths(notes.values(), figures))


def filled(page: str, marker: str, table: str) -> str:
    """The page with a table between a marker and the next end."""
    before, begin, rest = page.partition(f"<!-- {marker} -->\n")
    return f"{before}{begin}\n{table}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}" if begin else page


def figure(row: dict[str, Any]) -> dict[str, Any]:
    """What is published of a row: figures, and no text of its design."""
    if "error" in row:
        return {"error": row["error"]}
    found = Strength.model_validate(row["strength"])
    return {
        "mutants": found.mutants,
        "limit": row["limit"],
        "seed": row["seed"],
        "strength": found.total.rate,
        "total": found.total.model_dump(),
        "operators": {name: count.model_dump() for name, count in found.operators.items()},
        "survivors": [
            {key: one[key] for key in ("operator", "path", "line", "equivalence")} for one in found.survivors
        ],
    }


def with_strengths(notes: Iterable[Note], figures: Mapping[str, Mapping[str, Any]]) -> list[Note]:
    """The notes with the strengths of those rows that have figures."""
    return [
        note.model_copy(update={"strength": mutation_score(figures[note.id])}) if note.id in figures else note
        for note in notes
    ]


def mutation_score(figures: Mapping[str, Any]) -> MutationScore | None:
    """What the note of a row says of its figures; None if no mutant counts, or it could not be measured."""
    total = Count.model_validate(figures.get("total", {}))
    counted = total.killed + total.survived
    return MutationScore(killed=total.killed, counted=counted) if counted else None


def ship() -> None:
    """Write the known verdicts on the bundled problems' mutants into the package."""
    store = VerdictStore()
    verdicts = [verdict for problem in load_problems("bundled") for verdict in store.of(design_key(problem)).values()]
    lines = sorted(verdict.model_dump_json(exclude_defaults=True) for verdict in verdicts)
    SHIPPED.write_text("".join(line + "\n" for line in lines))
    print(f"{len(lines)} verdicts written to {SHIPPED}")


def main() -> int:
    """Run what was asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="bundled", help="a source of problems")
    parser.add_argument("--row", action="extend", nargs="+", metavar="ID", help="ids; all by default")
    parser.add_argument("--designs", type=Path, help="a folder of right designs for rows without a solution")
    parser.add_argument("--limit", type=int, default=18, help="mutants of a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no other row is begun")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", action="store_true", help="write the tables of the results, and measure nothing")
    parser.add_argument("--ship", action="store_true", help="write the bundled problems' verdicts, and measure nothing")
    options = parser.parse_args()
    try:
        if options.write:
            write(read(options.results))
        if options.ship:
            ship()
        if options.write or options.ship:
            return 0
        problems = load_problems(options.source, ids=options.row)
        if options.designs:
            problems = [with_design(problem, options.designs) for problem in problems]
        return 3 if asyncio.run(measure(problems, options)) else 0
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3


if __name__ == "__main__":
    sys.exit(main())
