"""The bundled problems under the real harness: the reference solutions earn everything, wrong designs do not."""

from __future__ import annotations

import asyncio

import pytest

from data.bundled import wrong_designs
from rtl_agent_gym.envs import Episode
from rtl_agent_gym.evaluation import play
from rtl_agent_gym.policies import GoldenPolicy
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Score, Scorer
from tests.arbiter import ARBITER

pytestmark = pytest.mark.docker

PROBLEMS = {problem.id: problem for problem in load_problems("bundled")}
QUICK = {min(problem.id for problem in PROBLEMS.values() if problem.category == category) for category in (3, 4, 5, 16)}
"""The problems that the default suite grades, one of each category; the slow suite grades all."""


async def grade(provider: DockerSandboxes, problem: Problem, *designs: dict[str, str]) -> list[Score]:
    """The scores of designs, which are graded at the same time."""
    async with Scorer(provider, cache=None) as scorer:
        return await asyncio.gather(*(scorer.score(problem, problem.context | design) for design in designs))


def check_right(score: Score) -> None:
    assert score.passed, score.reason
    assert score.reward == pytest.approx(1.4)
    assert score.tests_passed == score.tests_total > 0
    assert not score.violations


def check_wrong(name: str, score: Score) -> None:
    assert not score.passed, name
    assert score.reward < 1.0, name
    assert score.reason, name
    assert not score.violations, name


@pytest.mark.parametrize("name", sorted(QUICK))
async def test_the_reference_solution_passes_and_a_wrong_design_does_not(name: str, provider: DockerSandboxes) -> None:
    problem, wrong = PROBLEMS[name], min(wrong_designs(name))
    right, other = await grade(provider, problem, problem.golden or {}, wrong_designs(name)[wrong])
    check_right(right)
    check_wrong(wrong, other)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
async def test_the_reference_solution_earns_everything(problem: Problem, provider: DockerSandboxes) -> None:
    async with Scorer(provider, cache=None) as scorer:
        episode = Episode(problem, provider=provider, grader=scorer, renderer=get_renderer("qwen3"))
        played = await play(episode, GoldenPolicy())
    assert played.score is not None
    check_right(played.score)
    assert played.stop_reason == "completed"


async def test_registers_may_have_a_delay(provider: DockerSandboxes) -> None:
    delayed = {path: text.replace("<=", "<= #1") for path, text in (PROBLEMS[ARBITER].golden or {}).items()}
    [score] = await grade(provider, PROBLEMS[ARBITER], delayed)
    assert score.passed, score.reason


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
async def test_no_wrong_design_passes(problem: Problem, provider: DockerSandboxes) -> None:
    designs = wrong_designs(problem.id)
    for name, score in zip(designs, await grade(provider, problem, *designs.values()), strict=True):
        check_wrong(name, score)
