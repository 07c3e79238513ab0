#!/usr/bin/env python3
"""Which rows of a CVDP file a right design can pass here, found out by running each.

    .venv/bin/python benchmarks/compatibility.py ROWS.jsonl [--row ID …] [--seconds 60] [--write]

A row is run with a design known here to be right, where there is one: its own solution, or a design of this project's
in ``tests/scoring/designs/ID/`` (without the prefix ``cvdp_agentic_``). Otherwise it is run with what shows at least
that its hidden tests load, compile and judge: the RTL that it ships, and for missing targets a module with the ports
and parameters that the problem and its tests name, and nothing in it. Each run prints one line of Markdown;
``--write`` puts its last column into ``docs/compatibility.md``.

A row that no design can pass has a proof in ``tests/scoring/impossible/ID/``: a design that is right, what its tests
say of it (and of any other), and the one change to the tests with which it passes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.compose import read_services
from rtl_agent_gym.scoring.frontend import Frontend
from rtl_agent_gym.scoring.harness import HarnessRun, run_harness, source_paths, top_modules
from rtl_agent_gym.scoring.images import HarnessImages
from rtl_agent_gym.scoring.interface import demands
from rtl_agent_gym.scoring.outcomes import account
from rtl_agent_gym.scoring.submission import sift

ROOT = Path(__file__).resolve().parents[1]
DESIGNS = ROOT / "tests" / "scoring" / "designs"
IMPOSSIBLE = ROOT / "tests" / "scoring" / "impossible"
PAGE = ROOT / "docs" / "compatibility.md"
FINER = "`timescale 1ns/1ps\n"
_MISSING = re.compile(r"parameter [`'](\w+)[`'] not found")


def short(problem: Problem) -> str:
    """A row's id without the prefix that all share."""
    return problem.id.removeprefix("cvdp_agentic_")


def right_design(problem: Problem) -> dict[str, str] | None:
    """Files of a design known to be right, by their path, or None."""
    folder = DESIGNS / short(problem)
    return files_below(folder) if folder.is_dir() else problem.golden


def files_below(folder: Path) -> dict[str, str]:
    """The files of a folder by their path in it."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def unnamed(problem: Problem) -> list[str]:
    """Names in the design that the hidden tests ask for and the task mentions nowhere. Nobody can know them."""
    told = set(re.findall(r"\w+", problem.prompt + "\n".join(problem.context.values())))
    tests = "\n".join(
        re.sub(r'#.*|"[^"\n]*"', "", text)
        for path, text in problem.harness.items()
        if path.endswith(".py") and not path.endswith("test_runner.py")
    )
    return sorted(set(re.findall(r"\bdut\.([A-Za-z]\w*)", tests)) - told)


async def placeholder(problem: Problem, frontend: Frontend, names: Sequence[str]) -> dict[str, str]:
    """What the row ships, and modules that do nothing, with parameters of these names, for what it does not."""
    services = read_services(problem)
    files = {path: problem.context[path] for path in problem.targets if path in problem.context}
    parameters = ", ".join(f"parameter {name} = 8" for name in names)
    asked = {demand.module: demand for demand in await demands(problem, top_modules(services), frontend)}
    missing = [
        path for path in dict.fromkeys([*problem.targets, *source_paths(services)]) if path not in problem.context
    ]
    homes = {next((path for path in missing if Path(path).stem == top), None): top for top in top_modules(services)}
    for path in missing:
        top = homes.get(path) or (None if len(missing) > 1 else next(iter(top_modules(services)), None))
        ports = asked[top].ports if top in asked else ()
        directions = {"in": "input", "out": "output", "inout": "inout"}
        listed = ", ".join(f"{directions.get(p.direction, 'input')} [{(p.width or 64) - 1}:0] {p.name}" for p in ports)
        head = f" #({parameters})" if parameters and top else ""
        files[path] = f"module {top or Path(path).stem}{head} ({listed});\nendmodule\n"
    return files


def seen(run: HarnessRun, what: str) -> str:
    """What a run with a placeholder shows, in words."""
    accounts = [account(service["messages"]) for service in run.services]
    if "Bad `period`" in "".join(service["log"] for service in run.services):
        return "judged; an odd clock period stops the harness unless the RTL begins with `` `timescale 1ns/1ps ``"
    late = any(service["code"] is None for service in run.services)
    if any(simulation for heard in accounts for item in heard.items.values() for simulation in item.simulations):
        return f"judged, no right design written; the hidden tests run and fail {what}{' (cut off)' if late else ''}"
    if said := next((heard.compiler for heard in accounts if heard.compiler), ""):
        line = next((line for line in said.splitlines() if "error" in line.lower()), said.splitlines()[0])
        line = line.replace("/code/", "").replace("`", "'").replace("|", "/").strip()
        return f"not judged, no right design written; {what} does not compile: `{line[:110]}`"
    return f"not judged, no right design written; {what} did not come to an end" if late else "not judged"


async def examine(problem: Problem, provider: DockerSandboxes, frontend: Frontend, seconds: float) -> str:
    """What is known of a row, in words."""
    missing = unnamed(problem)
    guess = f"; its tests use names that the task gives nowhere: {', '.join(f'`{name}`' for name in missing)}"
    return await judge(problem, provider, frontend, seconds) + (guess if missing else "")


async def judge(problem: Problem, provider: DockerSandboxes, frontend: Frontend, seconds: float) -> str:
    """What running it shows."""
    if (IMPOSSIBLE / short(problem)).is_dir():
        return await disprove(problem, provider)
    files = right_design(problem)
    if files is not None:
        async with Scorer(provider) as scorer:
            score = await scorer.score(problem, files, timeout=600)
        if not score.passed:
            return f"fails with the design here: {score.reason[:160]}"
        finer = any(FINER.strip() in text.replace(" / ", "/") for text in files.values())
        odd = finer and re.search(r"Clock\([^)]*(\b\d*[13579]|_period)\s*,\s*unit", "".join(problem.harness.values()))
        nothing, what = await _without(problem, provider, frontend, seconds)
        return (
            "passes with a right design"
            + (", which begins with `` `timescale 1ns/1ps ``" if odd else "")
            + (f"; {what} passes, too" if all(service["code"] == 0 for service in nothing.services) else "")
        )
    return seen(*await _without(problem, provider, frontend, seconds))


async def disprove(problem: Problem, provider: DockerSandboxes) -> str:
    """Whether the proof that no design passes holds, in words."""
    files = files_below(IMPOSSIBLE / short(problem))
    proof = json.loads(files.pop("proof.json"))
    text = problem.harness[proof["file"]]
    mended = problem.model_copy(
        update={"harness": {**problem.harness, proof["file"]: text.replace(proof["from"], proof["to"])}}
    )
    run = await _run(problem, files, provider, 600)
    if not any(proof["says"] in service["log"] for service in run.services) or not any(s["code"] for s in run.services):
        return "the proof that no design passes does not hold: its tests say something else"
    async with Scorer(provider) as scorer:
        score = await scorer.score(mended, files, timeout=600)
    if not score.passed:
        return f"the proof that no design passes does not hold: even mended, its tests fail: {score.reason[:160]}"
    return f"cannot be passed by any design: {proof['why']}"


async def _without(
    problem: Problem, provider: DockerSandboxes, frontend: Frontend, seconds: float
) -> tuple[HarnessRun, str]:
    """A run without a right design, and what was run."""
    names: list[str] = []
    while True:
        files = await placeholder(problem, frontend, names)
        run = await _run(problem, files, provider, seconds)
        said = "".join(str(heard.get("text", "")) for service in run.services for heard in service["messages"])
        more = [name for name in dict.fromkeys(_MISSING.findall(said)) if name not in names]
        if not more:
            break
        names += more  # what the harness sets must be there
    kept = all(path in problem.context for path in files)
    return run, "the design as shipped" if kept else "a module with nothing in it"


async def _run(problem: Problem, files: dict[str, str], provider: DockerSandboxes, seconds: float) -> HarnessRun:
    services = read_services(problem)
    return await run_harness(sift(problem, files), services, provider, HarnessImages(), timeout=seconds, lint=False)


def write(known: dict[str, str]) -> None:
    """Put what was found into the last column of the page's table."""
    lines = PAGE.read_text().splitlines()
    for at, line in enumerate(lines):
        cells = line.split(" | ")
        row = cells[0].removeprefix("| ").strip("`")
        if row in known:
            lines[at] = " | ".join([*cells[:3], f"{known[row]} |"])
    PAGE.write_text("\n".join(lines) + "\n")


async def measure(problems: Sequence[Problem], seconds: float) -> dict[str, str]:
    """Every row in turn."""
    known: dict[str, str] = {}
    frontend = Frontend()
    try:
        async with DockerSandboxes() as provider:
            for problem in problems:
                known[problem.id] = await examine(problem, provider, frontend, seconds)
                print(f"| `{problem.id}` | {problem.category} | {known[problem.id]} |", flush=True)
    finally:
        await frontend.close()
    return known


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", help="CVDP's agentic rows, as JSON Lines")
    parser.add_argument("--row", action="append", help="ids; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="for rows without a right design")
    parser.add_argument("--write", action="store_true", help="put the result into docs/compatibility.md")
    options = parser.parse_args()
    known = asyncio.run(measure(load_problems(options.rows, ids=options.row), options.seconds))
    if options.write:
        write(known)


if __name__ == "__main__":
    main()
