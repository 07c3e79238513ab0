"""Examines the bundled problems for verification problems: writes what the package ships, and measures references.

    .venv/bin/python benchmarks/verification.py --write    # rtl_agent_gym/sources/verification/findings.jsonl
    .venv/bin/python benchmarks/verification.py --strength # a table; all mutants that the problems' own tests reject

The second command measures the references by mutants that they were not chosen with: every mutant that the hidden tests
of the problem are known to reject, under stimuli of another seed. Mutants that differ only with other parameters than
the defaults cannot be seen by any bench; those that no stimuli of four seeds tell apart are counted as such.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.sources.derivation import Case, Store, right_files
from rtl_agent_gym.sources.making import VerificationMaker, differing
from rtl_agent_gym.sources.mutants.mutant import VerdictStore, design_key, problem_mutants
from rtl_agent_gym.sources.verification.derived import KINDS, SHIPPED, Findings, VerifyOptions, cases, cycles

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
    """Of the mutants that the problem's tests reject: all, those that stimuli tell apart, those of the reference."""
    problem, device = case.problem, case.device
    files, verdicts = right_files(problem), VerdictStore().of(design_key(problem))
    killed = {digest for digest, verdict in verdicts.items() if verdict.outcome == "killed"}
    texts = [device.text(m.files(files)) for m in problem_mutants(problem) if m.digest in killed]
    sandbox = await provider.create()
    try:
        runs = [
            await differing(device, device.text(files), texts, sandbox, cycles(problem), seed)
            for seed in (1, *OTHER_SEEDS)
        ]
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


def main() -> None:
    """Run the chosen part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--strength", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.write:
        found = asyncio.run(examine_all("bundled", options.workers))
        SHIPPED.write_text("".join(f"{known.model_dump_json()}\n" for known in found), encoding="utf-8")
    if options.strength:
        asyncio.run(strengths())


if __name__ == "__main__":
    main()
