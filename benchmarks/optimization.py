"""Makes and verifies optimization problems from the bundled problems and each family, and tries to cheat by renaming.

    .venv/bin/python benchmarks/optimization.py [--each 20] [--seed 7] [--rewrites 10]

Every problem that is counted has been verified: its reference passes with the full gain, and the wasteful design passes
the hidden tests without any gain.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from itertools import islice
from random import Random

from rtl_agent_gym import Problem, Scorer, load_problems
from rtl_agent_gym.sources.derivation import device_of, renamed_inside
from rtl_agent_gym.sources.families import FAMILIES
from rtl_agent_gym.sources.making import OptimizationMaker
from rtl_agent_gym.sources.optimization.derived import OptimizeOptions, WastefulCase, cases

UNPROVEN = ("wrappers", "fifos", "pipelines")
"""The families from which no problem can be made: the reset of their designs does not clear their data, so no proof
would be complete.
"""


async def make(each: int, seed: int) -> list[tuple[WastefulCase, Problem]]:
    """Make problems from all sources."""
    sources = [
        *(f"family:{name}?count={max(each // 2, 1)}&seed={seed}" for name in FAMILIES if name not in UNPROVEN),
        "bundled",
    ]
    made: list[tuple[WastefulCase, Problem]] = []
    async with OptimizationMaker.open(workers=2) as maker:
        for source in sources:
            options, begun, tried = OptimizeOptions(seed=seed, count=each), time.monotonic(), 0
            queue, found = cases(load_problems(source), options), list[tuple[WastefulCase, Problem]]()
            while len(found) < each and (group := list(islice(queue, 4))):
                tried += len(group)
                results = await asyncio.gather(*(maker.make(case, options) for case in group))
                found += [
                    (case, problem) for case, (problem, _) in zip(group, results, strict=True) if problem is not None
                ]
            made += found[:each]
            seconds = time.monotonic() - begun
            print(f"{source}: {len(found[:each])} problems of {tried} candidates in {seconds:.0f} s", flush=True)
    return made


async def rewrites(problems: list[Problem]) -> None:
    """Print the quality of wasteful designs with other internal names and other whitespace."""
    most = 0.0
    async with Scorer() as scorer:
        for problem in problems:
            device = device_of(problem)
            path = problem.targets[0]
            text = renamed_inside(problem.context[path], device).replace("\n", "\n\n").replace("    ", "\t")
            score = await scorer.score(problem, {**problem.context, path: text})
            most = max(most, score.quality)
            print(f"  {problem.id}: {score.quality:.1%} ({score.reason})", flush=True)
    print(f"rewrites of {len(problems)} problems earn at most {most:.1%}")


def main() -> None:
    """Parse, make, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=20, help="problems of each source")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rewrites", type=int, default=10, help="problems whose wasteful design is renamed")
    options = parser.parse_args()
    made = asyncio.run(make(options.each, options.seed))
    assert len({problem.id for _, problem in made}) == len({str(problem.context) for _, problem in made}) == len(made)
    print(f"{len(made)} problems, no two alike; each reference earns 100 %, each wasteful design 0 %")
    for waste, goal in sorted(
        pairs := Counter((case.waste, problem.id.split("_ppa_")[1].split("_")[0]) for case, problem in made)
    ):
        print(f"| {waste} | {goal} | {pairs[waste, goal]} |")
    asyncio.run(
        rewrites(Random(options.seed).sample([problem for _, problem in made], min(options.rewrites, len(made))))
    )


if __name__ == "__main__":
    main()
