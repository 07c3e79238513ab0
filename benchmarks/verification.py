"""Examines designs for verification problems: writes the findings that the package ships, and measures references.

    .venv/bin/python benchmarks/verification.py --write    # rtl_agent_gym/sources/verification/findings.jsonl
    .venv/bin/python benchmarks/verification.py --strength # a table; all mutants that the problems' own tests reject
    .venv/bin/python benchmarks/verification.py --make 1000 [--out FILE] # a table of new problems, and the time taken

The second command measures the references with more mutants than those for which they were made: with all that the
problem's hidden tests are known to reject. Mutants that differ from the design only for parameters other than the
defaults cannot be seen by any bench; those that show no difference for stimuli of four seeds are counted as such.

The third command makes problems from the bundled ones and from every family, of each of the ``--kinds`` in turn,
without any stored findings. It fails if two are equal, if a reference rejects less than 95 % of the mutants, or if
there are fewer problems than requested.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rtl_agent_gym.errors import RTLGymError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.rows import problem_row
from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.sources.derivation import ENOUGH, Case, Store, right_files
from rtl_agent_gym.sources.families import FAMILIES
from rtl_agent_gym.sources.making import VerificationMaker, differing, in_order
from rtl_agent_gym.sources.mutants.mutant import VerdictStore, design_key, problem_mutants, verdict_key
from rtl_agent_gym.sources.verification.derived import KINDS, SHIPPED, Findings, Kind, VerifyOptions, cases, cycles

OTHER_SEEDS = (11, 12, 13)


async def examine_all(source: str, workers: int) -> list[Findings]:
    """Examine and verify every design of a source, for all kinds."""
    with tempfile.TemporaryDirectory() as folder:
        store, found = Store(Findings, Path(folder)), []
        async with VerificationMaker.open(workers=workers, store=store, cache=False) as maker:
            for case in cases(load_problems(source), VerifyOptions()):
                for kind in KINDS:
                    _, known = await maker.make(case, VerifyOptions(kind=kind))
                print(f"{known.problem_id}: {len(known.mutants)} mutants, {known.verified} {known.fault}", flush=True)
                found.append(known)
    return found


async def measure(case: Case, provider: SandboxProvider) -> tuple[int, int, int]:
    """Numbers of mutants: rejected by the problem's tests; of these, seen by any stimuli, and by the reference's."""
    problem, device = case.problem, case.device
    files, store, design = right_files(problem), VerdictStore(), design_key(problem)
    verdicts = [(mutant, store.get(verdict_key(design, mutant))) for mutant in problem_mutants(problem)]
    killed = [mutant for mutant, verdict in verdicts if verdict and verdict.outcome == "killed"]
    texts = [device.text(mutant.files(files)) for mutant in killed]
    sandbox = await provider.create()
    try:
        runs = []
        for seed in (1, *OTHER_SEEDS):
            differs = await differing(device, device.text(files), texts, sandbox, cycles(problem), seed)
            runs.append({at for at, is_seen in differs.items() if is_seen})
    finally:
        await sandbox.close()
    return len(texts), len(set.union(*runs)), len(runs[0])


async def strengths() -> None:
    """Print the table."""
    print("| problem | rejected by its tests | seen by any stimuli | rejected by the reference |\n|---|---|---|---|")
    async with make_provider() as provider:
        for case in cases(load_problems("bundled"), VerifyOptions()):
            every, seen, own = await measure(case, provider)
            print(f"| {case.problem.id} | {every} | {seen} | {own} ({own / max(seen, 1):.0%}) |", flush=True)


_Made = tuple[str, Kind, Problem, Findings]
"""The source of a problem, its kind, the problem, and the findings about its design."""


async def make_of(
    source: str, wanted: int, maker: VerificationMaker, workers: int, kinds: Sequence[Kind]
) -> list[_Made]:
    """Make `wanted` problems from one source, of each kind in turn."""
    if wanted < 1:
        return []
    begun, tried, found = time.monotonic(), 0, list[_Made]()
    # 1.5 times as many members as are needed, since not every design can be used.
    members = -(-wanted * 3 // (2 * len(kinds))) + 1
    problems = load_problems(source if source == "bundled" else f"{source}?count={members}&seed=1")

    async def work(candidate: tuple[Case, Kind]) -> tuple[Kind, Problem | None, Findings]:
        case, kind = candidate
        return kind, *await maker.make(case, VerifyOptions(kind=kind))

    def is_enough(result: tuple[Kind, Problem | None, Findings]) -> bool:
        nonlocal tried
        kind, problem, known = result
        tried += 1
        if problem is not None:
            found.append((source, kind, problem, known))
        return len(found) >= wanted

    await in_order(itertools.product(cases(problems, VerifyOptions()), kinds), work, workers, is_enough)
    print(f"{source}: {len(found)} of {tried} in {time.monotonic() - begun:.0f} s", flush=True)
    return found


async def make(count: int, workers: int, folder: Path, kinds: Sequence[Kind]) -> list[_Made]:
    """Make problems from the bundled designs and from each family.

    Args:
        count: Number of problems.
        workers: Number of designs that are examined at the same time.
        folder: Folder for the findings about the designs.
        kinds: Kinds of problems.
    """
    made, sources = list[_Made](), ["bundled", *(f"family:{name}" for name in FAMILIES)]
    async with VerificationMaker.open(workers=workers, store=Store(Findings, folder), cache=False) as maker:
        for at, source in enumerate(sources):
            made += await make_of(source, -(-(count - len(made)) // (len(sources) - at)), maker, workers, kinds)
    return made


def make_all(count: int, workers: int, out: Path | None, kinds: Sequence[Kind]) -> int:
    """Make problems, check them and print a table. Returns the exit code: 1 if there are fewer than `count`."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made = asyncio.run(make(count, workers, Path(folder), kinds))
    minutes = (time.monotonic() - begun) / 60
    if len(made) < count:
        print(f"error: only {len(made)} of {count} problems could be made", file=sys.stderr)
    if not made:
        return 1
    contents = {json.dumps([problem.prompt, problem.context, problem.harness]) for _, _, problem, _ in made}
    assert len(contents) == len({problem.id for _, _, problem, _ in made}) == len(made), "two problems are alike"
    strengths = [known.verified[kind] for _, kind, _, known in made]
    assert min(strengths) >= ENOUGH, "a reference rejects too little"
    numbers = Counter((source, kind) for source, kind, _, _ in made)
    print("| made of | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for source in dict.fromkeys(source for source, *_ in made):
        print(f"| {source} | " + " | ".join(str(numbers[source, kind]) for kind in kinds) + " |")
    mutants = sum(len(known.mutants) for _, _, _, known in made)
    rejected = sum(len(known.mutants) * share for (_, _, _, known), share in zip(made, strengths, strict=True))
    print(
        f"{len(made)} problems, no two alike, in {minutes:.1f} minutes; {mutants} mutants, of which references reject "
        f"{rejected / mutants:.1%}, and at least {min(strengths):.0%} of each problem's"
    )
    if out:
        rows = (json.dumps(problem_row(problem), ensure_ascii=False) for _, _, problem, _ in made)
        out.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return 1 if len(made) < count else 0


def main() -> int:
    """Run the chosen part, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--strength", action="store_true")
    parser.add_argument("--make", type=int, metavar="COUNT", help="make this many problems")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:3], help="default: those in Verilog")
    parser.add_argument("--out", type=Path, metavar="FILE", help="with --make: file for the problems")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    try:
        if options.write:
            found = asyncio.run(examine_all("bundled", options.workers))
            SHIPPED.write_text("".join(f"{known.model_dump_json()}\n" for known in found), encoding="utf-8")
        if options.strength:
            asyncio.run(strengths())
        return make_all(options.make, options.workers, options.out, options.kinds) if options.make else 0
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3


if __name__ == "__main__":
    sys.exit(main())
