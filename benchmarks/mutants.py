#!/usr/bin/env python3
"""How many mutants of right designs the hidden tests reject: row by row, and by operator.

    .venv/bin/python benchmarks/mutants.py [SOURCE] [--limit 18] [--designs DIR] [--row ID …] [--minutes M]
    .venv/bin/python benchmarks/mutants.py --write

Rows whose solutions are withheld are measured with a right design from ``--designs``. Each row is appended to
``--results`` once measured, and not measured again, so the same command continues after an interruption or after
``--minutes``. ``--write`` adds the results to the published figures in ``docs/assets/mutants.json``, and from these
writes the tables of ``docs/mutants.md`` and the strengths in the notes of CVDP's rows. ``--ship`` puts the verdicts on
the bundled problems into the package.
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

from learning_results import append_row, read_rows

from rtl_agent_gym.errors import RTLGymError, SandboxError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.notes import NOTES, MutationScore, Note, read_notes, row_digest, write_notes
from rtl_agent_gym.sources.mutants.derived import with_design
from rtl_agent_gym.sources.mutants.grading import Count, Strength, measure_strength, mutant_grader
from rtl_agent_gym.sources.mutants.mutant import SHIPPED, VerdictStore, design_key, problem_mutants, verdict_key
from rtl_agent_gym.sources.mutants.operators import OPERATORS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "mutants.md"
ASSET = ROOT / "docs" / "assets" / "mutants.json"
RESULTS = ROOT / "build" / "mutants.jsonl"
PLACE = ("source", "id", "design", "limit", "seed")
"""What a measurement depends on; it is not repeated if all of these are the same."""


async def measure(problems: Sequence[Problem], options: argparse.Namespace) -> int:
    """Measure rows until the time is over. Returns the number of rows that were skipped after a machine fault."""
    end, faults = time.monotonic() + 60 * options.minutes, 0
    name = Path(options.source).name
    done = [{key: row.get(key) for key in PLACE} for row in read_rows(options.results) if "strength" in row]
    async with mutant_grader(workers=options.workers, cache=True) as grader:
        for problem in problems:
            values = (name, problem.id, design_key(problem), options.limit, options.seed)
            place = dict(zip(PLACE, values, strict=True))
            if place in done or time.monotonic() > end:
                continue
            begun = time.monotonic()
            try:
                strength = await measure_strength(problem, grader, limit=options.limit or None, seed=options.seed)
                found: dict[str, Any] = {"strength": strength.model_dump(mode="json")}
            except SandboxError as error:  # says nothing about the row, so the next run tries it again
                print(f"{problem.id}: {error}", file=sys.stderr, flush=True)
                faults += 1
                continue
            except UsageError as error:
                found = {"error": str(error)}
            append_row(options.results, place | {"row": row_digest(problem)} | found)
            print(f"{problem.id}: {found.get('error') or strength.total} {time.monotonic() - begun:.0f} s", flush=True)
    return faults


def cells(count: Count) -> str:
    """The columns that all tables share."""
    rate = f"{count.rate:.0%}" if count.rate is not None else "–"
    return f"{count.killed} | {count.survived} | {count.proved} | {count.invalid} | {rate}"


def added(counts: Iterable[Count]) -> Count:
    """The sum of several counts."""
    every = list(counts)
    return Count(**{name: sum(getattr(count, name) for count in every) for name in Count.model_fields})


def tables(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The tables of one group of rows: by problem, by operator, and how survivors compare with the reference."""
    found = {short(row): entry for row, entry in sorted(figures.items()) if "total" in entry}
    totals = {row: Count.model_validate(entry["total"]) for row, entry in found.items()}
    total = added(totals.values())
    heads = "killed | survived | proved equivalent | do not compile | strength |"
    lines = [f"| problem | mutants in all | {heads}", "|---|---|---|---|---|---|---|"]
    lines += [f"| `{row}` | {entry['mutants']} | {cells(totals[row])} |" for row, entry in found.items()]
    lines += [f"| together ({len(found)}) | {sum(entry['mutants'] for entry in found.values())} | {cells(total)} |"]
    by_operator = [f"| operator | {heads}", "|---|---|---|---|---|---|"]
    for name in OPERATORS:
        counts = [entry["operators"][name] for entry in found.values() if name in entry["operators"]]
        by_operator.append(f"| `{name}` | {cells(added(map(Count.model_validate, counts)))} |")
    survivors = [survivor["equivalence"] or "unknown" for entry in found.values() for survivor in entry["survivors"]]
    kinds = [f"| {kind} | {survivors.count(kind)} |" for kind in ("proved", "differs", "bounded", "unknown")]
    return {
        "measured": f"Measured: {len(found)} rows, with {sum(total.model_dump().values())} mutants.",
        "problems": "\n".join(lines),
        "operators": "\n".join(by_operator),
        "survivors": "\n".join(["| what Yosys found | mutants that pass the tests |", "|---|---|", *kinds]),
    }


def short(row: str) -> str:
    """A row's id without the prefixes that all ids share, and without its release."""
    return re.sub("^cvdp_agentic_(rtlgym_)?", "", row).partition("@")[0]


def write(rows: Sequence[dict[str, Any]]) -> None:
    """Add what was measured to the machine-readable figures, the page's tables and the notes.

    Raises:
        UsageError: Like `with_measured`.
    """
    notes = read_notes(NOTES)
    figures = with_measured(json.loads(ASSET.read_text()), rows, digests(notes))
    PAGE.write_text(page_with(PAGE.read_text(), figures))
    ASSET.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    write_notes(NOTES, with_strengths(notes, figures))


def digests(notes: Iterable[Note]) -> dict[str, dict[str, str]]:
    """The names of the figures of CVDP's rows with notes, by id and digest of the row.

    The name is the id in the first release that has it; rows with this id in later releases are ``ID@RELEASE``.
    """
    found: dict[str, dict[str, str]] = {}
    for note in sorted(notes, key=lambda note: note.release):
        known = found.setdefault(note.id, {})
        known.setdefault(note.digest, f"{note.id}@{note.release}" if known else note.id)
    return found


def with_measured(
    figures: Mapping[str, dict[str, Any]], rows: Iterable[dict[str, Any]], digests: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, Any]]:
    """The figures, with those of measured rows in place of older figures of the same rows.

    A row that could not be measured replaces no figures.

    Args:
        figures: The published figures, by their names.
        rows: The measurements: the source's name, the options, and the strength or the reason why there is none. If a
            row was measured several times, the last measurement is used.
        digests: What the function `digests` returns.

    Raises:
        UsageError: Nothing was measured, a row has no table or is not the one that its note is about, or the rows of
            one table were measured with several limits or seeds.
    """
    if not (rows := list(rows)):
        raise UsageError("--write: nothing has been measured; first run this program without it")
    found = dict(figures)
    for row in rows:
        if row["id"] not in digests and row["source"] != "bundled":
            raise UsageError(f"--write: {row['id']} of {row['source']} is neither bundled nor a row with a note")
        if row["id"] in digests and row.get("row") not in digests[row["id"]]:
            raise UsageError(f"--write: {row['id']} of {row['source']} differs from the row that its note is about")
        name = digests[row["id"]][row["row"]] if row["id"] in digests else row["id"]
        if "error" not in row or "total" not in found.get(name, {}):
            found[name] = figure(row)
    for label, some in by_table(found).items():
        ways = sorted({(entry["limit"], entry["seed"]) for entry in some.values() if "total" in entry})
        if len(ways) > 1:
            limits = " and ".join(f"--limit {limit} --seed {seed}" for limit, seed in ways)
            raise UsageError(f"--write: the rows of {label} were measured, or are published, with {limits}")
    return found


def by_table(figures: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Figures by the name of their tables."""
    bundled, found = {problem.id for problem in load_problems("bundled")}, dict[str, dict[str, dict[str, Any]]]()
    for name, entry in figures.items():
        label = "bundled" if name in bundled else f"cvdp {name.partition('@')[2]}".strip()
        found.setdefault(label, {})[name] = entry
    return found


def page_with(page: str, figures: Mapping[str, dict[str, Any]]) -> str:
    """The page with the tables of these figures inserted between its markers."""
    for label, some in by_table(figures).items():
        for name, table in tables(some).items():
            page = filled(page, f"{label} {name}", table)
    return page


def filled(page: str, marker: str, table: str) -> str:
    """The page with a table inserted between a marker and the next end marker."""
    before, begin, rest = page.partition(f"<!-- {marker} -->\n")
    return f"{before}{begin}\n{table}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}" if begin else page


def figure(row: dict[str, Any]) -> dict[str, Any]:
    """What is published about a row: figures, but no text of its design."""
    if "error" in row:
        return {"error": row["error"]}
    found = Strength.model_validate(row["strength"])
    return {
        "mutants": found.mutants,
        "row": row.get("row"),
        "limit": row["limit"],
        "seed": row["seed"],
        "strength": found.total.rate,
        "total": found.total.model_dump(),
        "operators": {name: count.model_dump() for name, count in found.operators.items()},
        "survivors": [
            {key: survivor[key] for key in ("operator", "path", "line", "equivalence")} for survivor in found.survivors
        ],
    }


def with_strengths(notes: Iterable[Note], figures: Mapping[str, Mapping[str, Any]]) -> list[Note]:
    """The notes, with the strengths of the rows that have figures."""
    notes = list(notes)
    names = digests(notes)
    return [
        note.model_copy(update={"strength": mutation_score(found)})
        if "total" in found and found["row"] == note.digest
        else note
        for note, found in ((note, figures.get(names[note.id][note.digest], {})) for note in notes)
    ]


def mutation_score(figures: Mapping[str, Any]) -> MutationScore | None:
    """The mutation score for the note of a row; None if no mutant counts."""
    total = Count.model_validate(figures["total"])
    counted = total.killed + total.survived
    return MutationScore(killed=total.killed, counted=counted) if counted else None


def ship() -> None:
    """Write the known verdicts on the bundled problems' mutants into the package."""
    store = VerdictStore()
    known = [
        store.get(verdict_key(design_key(problem), mutant))
        for problem in load_problems("bundled")
        for mutant in problem_mutants(problem)
    ]
    lines = sorted(verdict.model_dump_json(exclude_defaults=True) for verdict in known if verdict is not None)
    SHIPPED.write_text("".join(line + "\n" for line in lines))
    print(f"{len(lines)} verdicts written to {SHIPPED}")


def main() -> int:
    """Measure, or write what has been measured, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="bundled", help="a source of problems")
    parser.add_argument("--row", action="extend", nargs="+", metavar="ID", help="ids; all by default")
    parser.add_argument("--designs", type=Path, help="a folder of right designs for rows without a solution")
    parser.add_argument("--limit", type=int, default=18, help="most mutants of a row; 0: all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="minutes after which no new row is started")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", action="store_true", help="only write the tables of the results")
    parser.add_argument("--ship", action="store_true", help="only write the bundled problems' verdicts")
    options = parser.parse_args()
    try:
        if options.write:
            write(read_rows(options.results))
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
