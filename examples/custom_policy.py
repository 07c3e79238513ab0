#!/usr/bin/env python
"""A policy of your own, evaluated: is it worth simulating a design before submitting it?

    .venv/bin/python examples/custom_policy.py [--samples 2] [--out runs/custom_policy]

Both policies draft designs at random: sometimes the right one, sometimes one with a typical mistake. The hasty one
submits its first draft. The careful one runs the problem's testbench, reads the output, and drafts again until it
prints PASS. `evaluate` plays the episodes, saves results and transcripts, continues after a crash, and summarises.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from data.bundled import wrong_designs
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.policies import Completion, heredoc, write_turn
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import Message, Renderer

PROBLEMS = ("cvdp_agentic_rtlgym_fixed_priority_arbiter_0001", "cvdp_agentic_rtlgym_skid_buffer_stage_0001")
SIMULATE = "iverilog -g2012 -o rundir/sim verif/*_tb.* rtl/* && vvp rundir/sim"


class DraftingPolicy:
    """A `Policy`: has a name, and makes a player for each episode.

    Args:
        drafts: Upper bound on the drafts of an episode; with 1 it does not simulate.
    """

    def __init__(self, drafts: int) -> None:
        self.drafts = drafts
        self.name = "hasty" if drafts == 1 else f"careful, {drafts} drafts"

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> DraftingPlayer:
        """One episode's player; equal seeds draft equal designs."""
        assert problem.golden is not None
        designs = [problem.golden, *wrong_designs(problem.id).values()]
        return DraftingPlayer(designs, self.drafts, renderer, random.Random(seed))


class DraftingPlayer:
    """A `Player`: gets the conversation so far, and returns the next turn."""

    def __init__(self, designs: list[dict[str, str]], drafts: int, renderer: Renderer, draw: random.Random) -> None:
        self._designs, self._left, self._renderer, self._draw = designs, drafts, renderer, draw
        self._careful = drafts > 1
        self._odds = [2, *[1] * (len(designs) - 1)]  # the right one is drafted a little more often

    async def act(self, messages: Sequence[Message]) -> Completion:
        """Draft until the testbench prints PASS or no draft is left."""
        if "PASS" in messages[-1]["content"] or self._left == 0:
            return Completion(write_turn(self._renderer, "Done."))
        self._left -= 1
        design = self._draw.choices(self._designs, self._odds)[0]
        commands = [heredoc(path, text) for path, text in design.items()]
        commands += [SIMULATE] if self._careful else []
        return Completion(write_turn(self._renderer, "A draft.", ["\n".join(commands)]))


async def compare(samples: int, folder: Path) -> None:
    """Evaluate both policies and print them side by side."""
    table = Table(
        "policy", "episodes", "passed", "pass@1 (95 %)", "turns", "failures by cause", title="policies compared"
    )
    for policy in (DraftingPolicy(drafts=1), DraftingPolicy(drafts=8)):
        config = EvaluationConfig(
            ids=PROBLEMS,
            samples=samples,
            folder=folder / policy.name,
            concurrency=4,
            episode=EpisodeConfig(max_turns=12),
        )
        summary = (await evaluate(config, policy)).summary
        first, cost = summary.pass_at[1], summary.cost
        causes = ", ".join(f"{cause} {count}" for cause, count in summary.causes.items())
        table.add_row(
            policy.name,
            str(summary.finished),
            str(summary.passed),
            f"{first.value:.2f} ({first.low:.2f}–{first.high:.2f})",
            f"{cost.turns:.1f}" if cost else "",
            causes,
        )
    Console(width=100).print(table)


def main() -> None:
    """Compare the policies, with results in --out or in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2, help="episodes of each problem")
    parser.add_argument("--out", type=Path, help="folder for results and transcripts; the same command resumes")
    options = parser.parse_args()
    if options.out is not None:
        asyncio.run(compare(options.samples, options.out))
        print(f"look at them: rtl-agent-gym view {options.out}")
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(options.samples, Path(folder)))


if __name__ == "__main__":
    main()
