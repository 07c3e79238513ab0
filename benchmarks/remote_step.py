#!/usr/bin/env python3
"""What Ray adds to a step: the same steps in sandboxes of this process and of a Ray node on this machine.

    .venv/bin/python benchmarks/remote_step.py [--rounds 300] [--at-once 8] [--json]

A step runs a command that does nothing and then reads a problem's files, as in an episode with a transcript. Rounds
alternate between the two kinds, so that other load on the machine affects both alike. In a round, ``--at-once`` steps
run at the same time. `driver CPU` is the processor time per step of this process, with all of its threads; it excludes
the node's process, the containers and Ray's other processes. The last row, `Ray adds`, is the difference; pass its
processor time to `capacity.py --remote-ms`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import ray

from rtl_agent_gym.cluster import Cluster, RemoteSandboxes
from rtl_agent_gym.cluster.canaries import known
from rtl_agent_gym.cluster.ray_cluster import SLOTS
from rtl_agent_gym.sandboxes import ReadRequest, Sandbox, SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider

WARM_UP = 20


@dataclass
class Measured:
    """The steps of one kind of sandbox."""

    where: str
    sandboxes: list[Sandbox]
    wall: list[float] = field(default_factory=list)
    """Milliseconds of each step."""
    cpu: list[float] = field(default_factory=list)
    """Processor time of this process per step in each round, in milliseconds."""

    async def step(self, sandbox: Sandbox) -> float:
        """Do a step; returns its duration in milliseconds."""
        begun = time.perf_counter()
        await sandbox.run("true", then_read=ReadRequest(["rtl", "verif", "docs"]))
        return 1e3 * (time.perf_counter() - begun)

    async def round(self) -> None:
        """Do a step in each sandbox, all at the same time."""
        begun = time.process_time()
        self.wall += await asyncio.gather(*(self.step(sandbox) for sandbox in self.sandboxes))
        self.cpu.append(1e3 * (time.process_time() - begun) / len(self.sandboxes))

    def result(self) -> dict[str, float]:
        """Quantiles of the steps after the warm-up."""
        wall = sorted(self.wall[WARM_UP * len(self.sandboxes) :])
        return {
            "step p50, ms": statistics.median(wall),
            "step p95, ms": wall[int(0.95 * len(wall))],
            "driver CPU, ms a step": statistics.fmean(self.cpu[WARM_UP:]),
        }


async def prepared(where: str, provider: SandboxProvider, number: int) -> Measured:
    """Start sandboxes with a problem's files."""
    problem, right, _ = known()
    made = await asyncio.gather(*(provider.create() for _ in range(number)))
    for sandbox in made:
        await sandbox.write_files({**problem.context, **right})
    return Measured(where, list(made))


async def measure(rounds: int, number: int) -> Sequence[Measured]:
    """Measure steps here and on the node, in turn."""
    cluster = Cluster(slots=number)
    await cluster.open()
    here, there = make_provider(), RemoteSandboxes(cluster)
    try:
        kinds = [await prepared("this process", here, number), await prepared("a Ray node", there, number)]
        for _ in range(WARM_UP + rounds):
            for kind in kinds:
                await kind.round()
        return kinds
    finally:
        await here.close()
        await there.close()
        await cluster.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=8, help="steps that run at the same time")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    options = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # otherwise Ray leaves a token in the home folder
    ray.init(
        "local", num_cpus=1, resources={SLOTS: options.at_once}, include_dashboard=False,
        logging_level=logging.ERROR, log_to_driver=False,
    )  # fmt: skip
    measured = {kind.where: kind.result() for kind in asyncio.run(measure(options.rounds, options.at_once))}
    here, there = measured.values()
    measured["Ray adds"] = {name: there[name] - here[name] for name in here}
    if not options.json:
        print(f"| where | {' | '.join(here)} |", "|---" * (1 + len(here)) + "|", sep="\n")
    for where, row in measured.items():
        if options.json:
            print(json.dumps({"where": where, "at once": options.at_once} | row))
        else:
            print(f"| {where} | {' | '.join(f'{value:.2f}' for value in row.values())} |")


if __name__ == "__main__":
    main()
