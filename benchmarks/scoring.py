#!/usr/bin/env python3
"""How fast submissions are scored: by the `Scorer`, by the official runner's method, and by the bare harness.

    .venv/bin/python benchmarks/scoring.py [--sandbox docker namespaces] [--submissions 8] [--rounds 3] [...]

Measured in one run: the `Scorer` with 1, 2 and 8 workers and as many waiting sandboxes, which is its sustained rate;
with 2 workers and a waiting sandbox for each submission, as when a group of episodes ends together; ``docker compose
run`` of the harness as in the official runner (create a network, run, kill, remove) with 2 workers; the harness's bare
command in a waiting container that has the files, alone and 2 at once; and a score from the cache. Submissions are
right designs that differ in a comment, so that each is graded. Only the ratios are meaningful, since machines differ
and are busy.

The official method needs Docker's compose plugin (``docker compose version``), and is skipped without it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rtl_agent_gym.options import SANDBOXES
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.compose import SIM_IMAGES
from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider, set_kind
from rtl_agent_gym.sandboxes.image import inspect
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.compose import RUN_DIR, read_services

LIGHT_AND_HEAVY = ["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001", "cvdp_agentic_rtlgym_alu_extension_0001"]
"""A problem with one short simulation, and a problem with three long ones."""
Files = dict[str, str | bytes]
COMPOSE = "compose, 2 workers"
BURST = "ours, 2 workers, all waiting"
BARE = "bare harness, 2 at once"
"""The upper bound of all methods that run the harness unchanged, since it has no overhead."""
FOLDERS = ("docs", "rundir", "rtl", "verif", "src")


def submissions(problem: Problem, count: int) -> list[Files]:
    """Right designs that differ from each other and from those of every earlier run."""
    assert problem.golden is not None
    mark = secrets.token_hex(4)
    return [{path: f"{text}\n// {mark} {n}\n" for path, text in problem.golden.items()} for n in range(count)]


async def throughput(work: Callable[[Files], Awaitable[None]], batch: Sequence[Files], workers: int) -> float:
    """Submissions per second."""
    turn = asyncio.Semaphore(workers)

    async def one(files: Files) -> None:
        async with turn:
            await work(files)

    begun = time.perf_counter()
    await asyncio.gather(*(one(files) for files in batch))
    return len(batch) / (time.perf_counter() - begun)


async def timed(work: Awaitable[object]) -> float:
    """Seconds that the work takes."""
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


async def docker(*words: str, cwd: Path | None = None) -> int:
    """Run the docker command, and return its exit code."""
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec("docker", *words, cwd=cwd, stdin=null, stdout=null, stderr=null)
    return await process.wait()


async def by_compose(problem: Problem, image: str, files: Files) -> None:
    """Grade a submission like the official runner."""
    name = f"bench{secrets.token_hex(4)}"
    folder = Path(tempfile.mkdtemp(prefix="rtl-gym-bench-"))
    try:
        for place in FOLDERS:
            (folder / place).mkdir()
        for path, text in {**problem.context, **problem.harness, **files}.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode() if isinstance(text, str) else text)
        compose = folder / "docker-compose.yml"
        text = compose.read_text()
        for template in SIM_IMAGES:
            text = text.replace(template, image)
        compose.write_text(f"{text}\nnetworks:\n  default:\n    name: {name}\n    external: true\n")
        await docker("network", "create", name)
        mounts = [word for place in FOLDERS for word in ("-v", f"{folder / place}:/code/{place}")]
        user = ("--user", f"{os.getuid()}:{os.getgid()}", "-e", f"HOME={RUN_DIR}")
        for service in read_services(problem):
            run = ("compose", "-p", name, "run", "--rm", "-T", *user, *mounts, service.name)
            if await docker(*run, cwd=folder):
                raise SystemExit(f"{problem.id}: the official way failed for a right design")
            await docker("compose", "-p", name, "kill", cwd=folder)
        await docker("network", "rm", name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def bare(problem: Problem, provider: SandboxProvider, files: Files) -> float:
    """Seconds that the harness's own commands take in a started container that has all files."""
    sandbox = await provider.create()
    try:
        hidden = {path: text for path, text in problem.harness.items() if path.startswith("src/")}
        await sandbox.write_files({**problem.context, **hidden, **files})
        begun = time.perf_counter()
        for service in read_services(problem):
            await sandbox.exec(["mkdir", "-p", service.cwd])
            argv = [word.replace("/src/", "/code/src/") for word in service.argv]
            env = {**service.env, "PYTHONPATH": "/code/src", "HOME": RUN_DIR}
            result = await sandbox.exec(argv, cwd=service.cwd, env=env)
            if result.exit_code:
                raise SystemExit(f"{problem.id}: the bare harness failed for a right design: {result.output[-800:]}")
        return time.perf_counter() - begun
    finally:
        await sandbox.close()


def has_compose() -> bool:
    """Whether Docker's compose plugin is installed."""
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


async def rate_of(problem: Problem, provider: SandboxProvider, count: int, workers: int, waiting: int) -> float:
    """Submissions per second of the scorer, whose sandboxes are waiting when the first one arrives."""
    async with Scorer(provider, waiting=waiting) as scorer:
        await scorer.score(problem, submissions(problem, 1)[0])
        await scorer.prepare(problem)
        await asyncio.sleep(1.0)  # by now, waiting sandboxes have loaded what they will need
        return await throughput(lambda files: passing(problem, scorer, files), submissions(problem, count), workers)


async def passing(problem: Problem, scorer: Scorer, files: Files) -> None:
    """Score a right design; exits if it does not pass."""
    score = await scorer.score(problem, files)
    if not score.passed:
        raise SystemExit(f"{problem.id}: {score.reason}")


async def single_scores(problem: Problem, provider: SandboxProvider, count: int) -> list[float]:
    """Seconds of each of several scores, one after the other, each started when a sandbox is waiting."""
    found = []
    async with Scorer(provider, waiting=1) as scorer:
        for files in submissions(problem, count + 1):
            found.append(await timed(passing(problem, scorer, files)))
            await asyncio.sleep(2.0)
    return found[1:]


async def measure(problem: Problem, count: int, rounds: int) -> dict[str, float]:
    """Measure all methods in turn, in several rounds, so that other load affects them alike."""
    rates: dict[str, list[float]] = {}
    single: list[float] = []
    alone: list[float] = []
    compose = has_compose()
    image = inspect()["id"] if compose else ""

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)

    async with make_provider() as provider:
        for _ in range(rounds):
            if compose:
                official = await throughput(lambda f: by_compose(problem, image, f), submissions(problem, count), 2)
                note(COMPOSE, official)
            for workers in (1, 2, 8):
                note(f"ours, {workers} workers", await rate_of(problem, provider, count, workers, workers))
            note(BURST, await rate_of(problem, provider, count, 2, count))
            single += await single_scores(problem, provider, 3)
            alone += [await bare(problem, provider, files) for files in submissions(problem, 3)]
            both = await asyncio.gather(*(bare(problem, provider, files) for files in submissions(problem, 2)))
            note(BARE, 2 / statistics.mean(both))
        cached = await cache_hits(problem, provider)
    result = {name: statistics.median(values) for name, values in rates.items()}
    result |= {"single score, s": statistics.median(single), "bare harness, s": statistics.median(alone)}
    result |= {"cached score, ms": 1e3 * cached, "latency / bare": statistics.median(single) / statistics.median(alone)}
    if compose:
        for name in ("ours, 2 workers", BURST, BARE):
            result[f"{name} / compose"] = result[name] / result[COMPOSE]
    return result


async def cache_hits(problem: Problem, provider: SandboxProvider) -> float:
    """Seconds that a score from the cache takes."""
    with tempfile.TemporaryDirectory(prefix="rtl-gym-bench-") as folder:
        async with Scorer(provider, cache=folder) as scorer:
            (files,) = submissions(problem, 1)
            await scorer.score(problem, files)
            return statistics.median([await timed(scorer.score(problem, files)) for _ in range(200)])


def show(problem: str, found: dict[str, dict[str, float]]) -> None:
    """Print the results of all kinds of sandboxes side by side, with ratios to the first kind."""
    first, *others = found
    print(f"{problem}\n  {'':<40}" + "".join(f"{kind:>12}" for kind in found) + "".join(f"  / {first}" for _ in others))
    for name in dict.fromkeys(name for result in found.values() for name in result):
        values = [result.get(name) for result in found.values()]
        line = "".join(f"{'' if value is None else format(value, '.3f'):>12}" for value in values)
        line += "".join(f"{value / values[0]:>10.2f}" for value in values[1:] if value and values[0])
        print(f"  {name:<40}{line}" + ("  a second" if ("worker" in name or name == BARE) and "/" not in name else ""))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--submissions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--problem", nargs="*", default=LIGHT_AND_HEAVY, help="ids of bundled problems")
    parser.add_argument("--sandbox", choices=SANDBOXES, nargs="+", default=["auto"], help="kinds to compare")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for problem in load_problems("bundled", ids=options.problem):
        if options.one:
            set_kind(options.sandbox[0])
            print(json.dumps(asyncio.run(measure(problem, options.submissions, options.rounds))))
            continue
        found = {}
        for kind in options.sandbox:
            again = [sys.executable, __file__, "--one", "--sandbox", kind, "--problem", problem.id]
            again += ["--submissions", str(options.submissions), "--rounds", str(options.rounds)]
            done = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=True)
            found[kind] = json.loads(done.stdout.splitlines()[-1])
        if options.json:
            print(json.dumps({"problem": problem.id, **found}), flush=True)
        else:
            show(problem.id, found)


if __name__ == "__main__":
    main()
