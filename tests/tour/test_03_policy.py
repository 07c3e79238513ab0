"""A policy: a name, and for each episode a player that reads messages and returns completions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.policies import Completion, heredoc, write_turn
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import Message, Renderer


class Copyist:
    """Writes the reference solution, and stops when the compiler is content."""

    name = "copyist"

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> CopyistPlayer:
        return CopyistPlayer(problem, renderer)


class CopyistPlayer:
    def __init__(self, problem: Problem, renderer: Renderer) -> None:
        self.problem, self.renderer = problem, renderer

    async def act(self, messages: Sequence[Message]) -> Completion:
        if "compiled" in messages[-1]["content"]:
            return Completion(write_turn(self.renderer, "Done."))
        files = [heredoc(path, text) for path, text in (self.problem.golden or {}).items()]
        command = "\n".join([*files, "iverilog -g2012 -o rundir/sim rtl/* && echo compiled"])
        return Completion(write_turn(self.renderer, "", [command]))


@pytest.mark.docker
async def test_a_policy() -> None:
    config = EvaluationConfig(ids=("cvdp_agentic_rtlgym_fixed_priority_arbiter_0001",), samples=2)
    evaluation = await evaluate(config, Copyist())
    assert [(result.passed, result.turns) for result in evaluation.results] == [(True, 2), (True, 2)]
    assert evaluation.summary.pass_at[1].value == 1.0
