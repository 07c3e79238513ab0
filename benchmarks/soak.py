#!/usr/bin/env python3
"""Checks that a process does not leak resources while it plays many episodes.

    .venv/bin/python benchmarks/soak.py 1000 [--concurrency 16] [--warm-up 32] [--memory-mb 64] [--json]

Plays evaluations of bundled problems with random commands and with hostile ones (half of the episodes each) in this
process. After a warm-up, which imports libraries, connects, and fills caches and thread pools, it counts open files,
threads, resident memory, containers, networks, volumes and temporary files; it plays N episodes, and counts again. No
count may have grown, except the memory by up to ``--memory-mb``. Exits with 1 if something else has grown, or if an
episode has no result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker

from rtl_agent_gym import load_problems
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.episodes.runtime import acquire
from rtl_agent_gym.evaluation import Evaluation, EvaluationConfig, evaluate
from rtl_agent_gym.policies import Completion, RandomPolicy, write_turn
from rtl_agent_gym.policies.scripted import ScriptedPlayer
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import Renderer
from rtl_agent_gym.sandboxes import DockerSandboxes, SandboxProvider
from rtl_agent_gym.sandboxes.client import ENDS, OWNER_LABEL, THREADS, owner_label

PROBLEMS = [f"cvdp_agentic_rtlgym_{name}_0001" for name in ("fixed_priority_arbiter", "gray_counter")]
"""Problems whose hidden tests take only seconds."""
HOSTILE = (
    "kill -9 -1",
    "ulimit -u 60; for i in $(seq 60); do (sleep 30 &) & done; kill -9 $$",
    "head -c 300M /dev/zero > /tmp/full; head -c 300M /dev/zero > /code/rtl/full",
    "timeout 0.5 yes",
    "timeout 0.2 cat /dev/zero >&13; for fd in /proc/$$/fd/*; do timeout 0.1 cat /dev/zero > $fd; done",
    "for i in $(seq 100); do sleep 60 & done",
    "rm -rf /code/* /tmp/*; chmod 0 /code",
    "exec 0<&- 1>&- 2>&-",
    "trap '' TERM INT HUP; while :; do sleep 0.1; done",
    "ln -s /dev/zero rtl/zero.sv; mkfifo rtl/pipe.sv; ln -s / docs/root",
    "python3 -c 'import os; [os.mknod(f\"/tmp/{n}\") for n in range(5000)]'",
    "exit 3",
)


class SoakPolicy:
    """Random commands in half of the episodes, hostile ones in the others."""

    name = "soak"

    def __init__(self) -> None:
        self._random = RandomPolicy(turns=3)

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ScriptedPlayer:
        draw = random.Random(seed)
        if draw.random() < 0.5:
            return self._random.player(problem, renderer, seed)
        turns = [write_turn(renderer, "", [draw.choice(HOSTILE)]) for _ in range(3)]
        return ScriptedPlayer([*map(Completion, turns), Completion(write_turn(renderer, "Enough."))])


@dataclass(frozen=True)
class Held:
    """The resources that this process holds."""

    files: int
    threads: int
    memory_mb: float
    """Resident memory, in millions of bytes."""
    containers: int
    """This process's containers on the daemon."""
    networks: list[str]
    volumes: list[str]
    """All networks and volumes on the daemon, since episodes create none. Their names are compared: the number would
    hide a new one if another program removed one at the same time."""
    temporary: int
    """Number of files and folders in this process's temporary folder."""


def held(api: Any, temporary: Path) -> Held:
    """Count what this process holds now."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    own = f"{OWNER_LABEL}={owner_label()}"
    return Held(
        files=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        memory_mb=resident * 1024 / 1e6,
        containers=len(api.containers(all=True, filters={"label": own})),
        networks=[network["Id"] for network in api.networks()],
        volumes=[volume["Name"] for volume in api.volumes()["Volumes"] or []],
        temporary=sum(1 for _ in temporary.rglob("*")),
    )


async def play(episodes: int, concurrency: int, folder: Path, seed: int) -> Evaluation:
    """Play some episodes."""
    problems = load_problems("bundled", ids=PROBLEMS)
    samples = -(-episodes // len(problems))
    config = EvaluationConfig(
        problems=problems,
        samples=samples,
        seed=seed,
        concurrency=concurrency,
        folder=folder,
        cache=False,
        episode=EpisodeConfig(max_turns=6, command_timeout=2.0),
    )
    return await evaluate(config, SoakPolicy())


async def fill_pools(provider: SandboxProvider) -> None:
    """Make the thread pools start all their threads: a pool adds a thread whenever all others are busy."""
    assert isinstance(provider, DockerSandboxes)
    most = THREADS + ENDS + 32  # the loop's own pool has at most 32

    async def call(ending: bool) -> None:
        await provider._client.call(lambda: time.sleep(0.2), ending=ending)

    await asyncio.gather(
        *(asyncio.to_thread(time.sleep, 0.2) for _ in range(most)),
        *(call(ending) for ending in (True, False) for _ in range(most)),
    )


async def settled(count: Callable[[], Held], goal: Held | None, patience: float = 60.0) -> Held:
    """What is held when it is as before, or after `patience` seconds, since Docker removes containers with a delay."""
    until = time.monotonic() + patience
    while True:
        found = count()
        equal = goal is not None and not grown({"before": asdict(goal), "after": asdict(found)}, math.inf)
        if (equal if goal is not None else found.containers == 0) or time.monotonic() > until:
            return found
        await asyncio.sleep(1.0)


async def soak(episodes: int, concurrency: int, warm_up: int, temporary: Path) -> dict[str, Any]:
    """Warm up, count, play, count."""
    with (
        tempfile.TemporaryDirectory(prefix="soak-", dir="/var/tmp") as made,
        contextlib.closing(docker.from_env()) as client,
    ):
        api: Any = client.api
        folder = Path(made)
        async with acquire() as lease:  # the loop's clients and front ends stay, as in a long run
            await play(warm_up, concurrency, folder / "warm-up", seed=1)
            await fill_pools(lease.runtime.provider)
            before = await settled(lambda: held(api, temporary), None)
            begun = time.monotonic()
            evaluation = await play(episodes, concurrency, folder / "soak", seed=2)
            seconds = time.monotonic() - begun
            after = await settled(lambda: held(api, temporary), before)
    return {
        "episodes": len(evaluation.results),
        "without a result": sum(result.score is None for result in evaluation.results),
        "retries": evaluation.summary.retries,
        "seconds": seconds,
        "before": asdict(before),
        "after": asdict(after),
    }


def grown(found: dict[str, Any], memory_mb: float) -> list[str]:
    """The names of the resources that have grown."""
    before, after = found["before"], found["after"]

    def is_more(name: str) -> bool:
        if isinstance(before[name], list):
            return not set(after[name]) <= set(before[name])
        return bool(after[name] > before[name] + (memory_mb if name == "memory_mb" else 0))

    return [name for name in before if is_more(name)]


def main() -> int:
    """Run, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("episodes", type=int, metavar="N")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--warm-up", type=int, default=32, help="episodes before the first count")
    parser.add_argument("--memory-mb", type=float, default=64.0, help="megabytes that the memory may grow by")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-temporary-") as temporary:
        tempfile.tempdir = temporary
        try:
            found = asyncio.run(soak(options.episodes, options.concurrency, options.warm_up, Path(temporary)))
        finally:
            tempfile.tempdir = None
    found["grown"] = grown(found, options.memory_mb)
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['episodes']} episodes in {found['seconds']:.0f} s, {found['without a result']} without a result, "
            f"{found['retries']} retries\n"
        )
        print("| held | before | after | |", "|---|---|---|---|", sep="\n")
        for name in found["before"]:
            values = (found[when][name] for when in ("before", "after"))
            before, after = (len(value) if isinstance(value, list) else round(value) for value in values)
            verdict = "grown" if name in found["grown"] else "ok"
            print(f"| {name.replace('_', ', ')} | {before} | {after} | {verdict} |")
    return 1 if found["grown"] or found["without a result"] else 0


if __name__ == "__main__":
    sys.exit(main())
