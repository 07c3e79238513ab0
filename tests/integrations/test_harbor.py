"""Trials of Harbor's: scripts, faults, and both ways to verify."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtl_agent_gym.episodes.turns import score_numbers
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from tests.integrations.conformance import EXPECTED, gray
from tests.integrations.harbor_player import HarborPlayer, containers, owned, run_trial, scripted
from tests.integrations.players import BY_NAME, compare

pytestmark = [pytest.mark.ecosystem, pytest.mark.docker, pytest.mark.timeout(1800)]

QUICK = {"solved", "hostile", "machine fault"}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = containers() | owned(os.getpid())
    images = tagged()
    yield
    assert containers() | owned(os.getpid()) <= before
    assert tagged() <= images


def tagged() -> set[str]:
    """The images that Harbor has built."""
    listed = subprocess.run(
        ["docker", "images", "--format", "{{.Repository}}"], capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.split() if name.startswith("hb__")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in EXPECTED
        if name not in HarborPlayer.left_out
    ],
)
async def test_scripts_get_the_verdicts_of_a_session(name: str, tmp_path: Path) -> None:
    await compare("Harbor", HarborPlayer(), name, tmp_path)


async def test_a_machine_fault_is_repeated(tmp_path: Path) -> None:
    options = scripted(BY_NAME["machine fault"], tmp_path, "--agent-kwarg", f"fault_once={tmp_path / 'mark'}")
    trial = await asyncio.to_thread(run_trial, tmp_path, gray(), *options, "--max-retries", "1")
    assert (tmp_path / "mark").exists()
    assert trial.exception is None, trial
    assert trial.rewards is not None
    assert trial.rewards["reward"] == pytest.approx(0.4)


@pytest.mark.parametrize("agent", ["oracle", pytest.param("nop", marks=[pytest.mark.slow])])
async def test_the_script_of_the_task_verifies_alone(agent: str, tmp_path: Path, provider: DockerSandboxes) -> None:
    trial = await asyncio.to_thread(run_trial, tmp_path, gray(), "--agent", agent, exact=False)
    left = gray().context if agent == "nop" else gray().context | (gray().golden or {})
    async with Scorer(provider) as scorer:
        score = await scorer.score(gray(), {**left})
    assert trial.exception is None, trial
    assert trial.rewards is not None
    assert (trial.rewards["reward"], score.passed) == (float(score.passed), agent == "oracle")
    assert trial.rewards["tests_share"] == score_numbers(score)["tests_share"]


def test_a_machine_fault_is_no_number_for_the_script_either(tmp_path: Path) -> None:
    trial = run_trial(tmp_path, gray(), *scripted(BY_NAME["machine fault"], tmp_path), exact=False)
    assert (trial.rewards, trial.exception) == (None, "RewardFileNotFoundError")
    assert "the agent's files were not collected" in (trial.folder / "verifier" / "test-stdout.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("problem", load_problems("bundled"), ids=lambda problem: problem.id)
class TestBundledProblems:
    def test_the_reference_solution_earns_all(self, problem: Problem, tmp_path: Path) -> None:
        solved = run_trial(tmp_path, problem, "--agent", "oracle")
        assert solved.rewards is not None
        assert solved.rewards["reward"] == pytest.approx(1.4), solved

    async def test_untouched_files_earn_what_the_scorer_says(
        self, problem: Problem, tmp_path: Path, provider: DockerSandboxes
    ) -> None:
        async with Scorer(provider) as scorer:
            score = await scorer.score(problem, {**problem.context})
        untouched = await asyncio.to_thread(run_trial, tmp_path, problem, "--agent", "nop")
        assert untouched.rewards is not None, untouched
        assert (untouched.rewards["reward"], untouched.rewards["tests_passed"]) == (score.reward, float(score.passed))
