#!/usr/bin/env python3
"""Runs the references of other benchmarks, and writes the notes of their problems.

    .venv/bin/python benchmarks/suites.py verilog-eval:FOLDER rtllm:FOLDER [--write]

A note says whether the reference passes here, what the tests demand that the task does not say, and whether a design
whose outputs never change passes. It belongs to a problem's id and testbench, so it is valid for every copy of the
benchmark that has these. ``--write`` replaces the notes of the same problems in the same release.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter

from thieves import ports_of, thief

from rtl_agent_gym.errors import RTLGymError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.notes import (
    SUITE_NOTES,
    Note,
    Right,
    Statement,
    digest_of_testbench,
    read_notes,
    write_notes,
)
from rtl_agent_gym.scoring import Score, Scorer

CONSTANTS = ("0", "1", "x")
"""Values of all output bits in designs that compute nothing."""
CONSTANT = {"Prob001_zero": "0", "Prob002_m2014_q4i": "0", "Prob003_step_one": "1"}
"""The constant bit of problems whose task asks for a constant."""
DEMANDS = {"sequence_detector": ("rst_n", "reset_n")}
"""For problems whose testbench uses another port name than the task: the testbench's name, and the task's."""


async def measure(problem: Problem, release: str, scorer: Scorer) -> Note:
    """Run the reference and, if the testbench names a port differently, also the reference with the task's name.

    Raises:
        SandboxError: The machine failed.
    """
    score = await scorer.score(problem, problem.golden or {})
    right, how = verdict(score)
    statements = await unseen(problem, scorer) if score.passed else []
    if problem.id in DEMANDS:
        wanted, told = DEMANDS[problem.id]
        files = {path: text.replace(wanted, told) for path, text in (problem.golden or {}).items()}
        other = await scorer.score(problem, files)
        if not score.passed or other.passed or told not in problem.prompt or wanted in problem.prompt:
            sys.exit(f"{problem.id}: the runs do not show that {wanted} is demanded instead of {told}; correct DEMANDS")
        statements.append(
            Statement(
                name="port name",
                kind="wants",
                about="name",
                text=f"a port named `{wanted}`; the task calls it `{told}`",
                shown="run",
                lacks=rf"\b{wanted}\b",
                fails=tuple(test.name for test in other.tests if test.outcome != "passed"),
            )
        )
    return Note(
        id=problem.id,
        digest=digest_of_testbench(problem),
        release=release,
        right=right,
        how=how,
        statements=tuple(statements),
    )


async def unseen(problem: Problem, scorer: Scorer) -> list[Statement]:
    """A statement if designs whose outputs never change pass, although the task does not ask for a constant.

    If such a design does not compile with the testbench, this is unknown, and reported on stderr.

    Raises:
        SandboxError: The machine failed.
    """
    target, found = problem.targets[0], ports_of(problem)
    passed, unknown = [], "" if found else "the reference has no plain ports"
    for bit in CONSTANTS if found else ():
        if bit == CONSTANT.get(problem.id):
            continue
        score = await scorer.score(problem, {target: thief(problem, found, "nothing", output=f"'{bit}")})
        if score.passed:
            passed.append(bit.upper())
        elif score.compile < 1:
            unknown = score.reason
    if unknown:
        print(f"{problem.id}: constant outputs were not measured: {unknown}", file=sys.stderr)
    if not passed:
        return []
    return [
        Statement(
            name="constant",
            kind="unseen",
            about="everything",
            text=f"outputs of which all bits are always {' or always '.join(passed)}",
            shown="run",
            core=True,
        )
    ]


def verdict(score: Score) -> tuple[Right, str]:
    """What a reference's score says about all designs, and why."""
    if score.passed:
        return "passes", "the reference passes"
    if score.compile < 1:  # because of the testbench, since the reference alone compiles
        return "impossible", f"the testbench does not compile with its own reference: {score.reason}"
    if "did not end" in score.reason or "timed out" in score.reason:
        return "impossible", f"the simulation of the reference is too long: {score.reason}"
    return "unknown", f"the reference fails: {score.reason}"


async def run(sources: list[str]) -> list[Note]:
    """The notes of all problems that have a reference.

    Raises:
        UsageError: A source has no such problem.
        SandboxError: The machine failed.
    """
    notes = []
    async with Scorer(waiting=2) as scorer:
        for source in sources:
            problems = [problem for problem in load_problems(source) if problem.golden]
            if not problems:
                raise UsageError(f"{source}: no problem has a reference")
            release = source.partition(":")[0]
            gate = asyncio.Semaphore(2)

            async def one(problem: Problem, release: str = release, gate: asyncio.Semaphore = gate) -> Note:
                async with gate:
                    return await measure(problem, release, scorer)

            found = await asyncio.gather(*(one(problem) for problem in problems))
            print(f"{source}: {dict(Counter(note.rating for note in found))}", flush=True)
            for note in found:
                if note.rating != "sound":
                    print(f"  {note.id}: {note.rating}: {note.how}", flush=True)
            notes += found
    return notes


def main() -> int:
    """Run the references, write the notes with ``--write``, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--write", action="store_true", help=f"write {SUITE_NOTES.name}")
    options = parser.parse_args()
    try:
        found = asyncio.run(run(options.sources))
        if options.write:
            notes = {(note.release, note.id): note for note in [*read_notes(SUITE_NOTES), *found]}
            write_notes(SUITE_NOTES, notes.values())
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
