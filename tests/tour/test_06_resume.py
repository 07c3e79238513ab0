"""A resume: the same call goes on where it was stopped, and plays nothing again that has a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.policies import GoldenPolicy
from rtl_agent_gym.policies.scripted import ScriptedPlayer
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import Renderer


class Interrupted(GoldenPolicy):
    """Calls `stop` before its second episode. (An evaluation makes one player beforehand, to try the policy.)"""

    stop: Callable[[], object]
    players = 0

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ScriptedPlayer:
        self.players += 1
        if self.players == 3:
            self.stop()
        return super().player(problem, renderer, seed)


@pytest.mark.docker
async def test_a_resume(tmp_path: Path) -> None:
    ids = ("cvdp_agentic_rtlgym_gray_counter_0001",)
    config = EvaluationConfig(ids=ids, samples=3, concurrency=1, folder=tmp_path)
    policy = Interrupted()
    running = asyncio.ensure_future(evaluate(config, policy))
    policy.stop = running.cancel  # as Ctrl-C does
    with pytest.raises(asyncio.CancelledError):
        await running
    [first] = (tmp_path / "results.jsonl").read_text().splitlines()

    evaluation = await evaluate(config, GoldenPolicy())
    assert evaluation.summary.passed == 3
    assert (tmp_path / "results.jsonl").read_text().splitlines()[0] == first
    assert len({result.seed for result in evaluation.results}) == 3
