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
from rtl_agent_gym.scoring import Scorer

pytestmark = pytest.mark.docker

PROBLEMS = {problem.id: problem for problem in load_problems("bundled")}
ALWAYS = 1
"""Wrong designs of a problem that are graded apart from its others."""

QUICK = {min(problem.id for problem in PROBLEMS.values() if problem.category == category) for category in (3, 4, 5, 16)}
"""The problems that the default suite grades, one of each category; the slow suite grades all."""

ROWS = [
    pytest.param(problem, id=id_, marks=[] if id_ in QUICK else [pytest.mark.slow]) for id_, problem in PROBLEMS.items()
]


@pytest.mark.parametrize("problem", ROWS)
async def test_the_reference_solution_earns_everything(problem: Problem, provider: DockerSandboxes) -> None:
    async with Scorer(provider, cache=None) as scorer:
        episode = Episode(problem, provider=provider, grader=scorer, renderer=get_renderer("qwen3"))
        played = await play(episode, GoldenPolicy())
    assert played.score is not None
    assert played.score.passed, played.score.reason
    assert played.score.reward == pytest.approx(1.4)
    assert played.score.tests_passed == played.score.tests_total > 0
    assert not played.score.violations
    assert played.stop_reason == "completed"


async def test_registers_may_have_a_delay(provider: DockerSandboxes) -> None:
    problem = PROBLEMS["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"]
    files = {path: text.replace("<=", "<= #1") for path, text in (problem.golden or {}).items()}
    async with Scorer(provider, cache=None) as scorer:
        score = await scorer.score(problem, {**problem.context, **files})
    assert score.passed, score.reason


async def grade_wrong(problem: Problem, provider: DockerSandboxes, names: list[str]) -> None:
    designs = wrong_designs(problem.id)
    async with Scorer(provider, cache=None) as scorer:
        files = [{**problem.context, **designs[name]} for name in names]
        scores = await asyncio.gather(*(scorer.score(problem, dict(each)) for each in files))
    for name, score in zip(names, scores, strict=True):
        assert not score.passed, name
        assert score.reward < 1.0, name
        assert score.reason, name
        assert not score.violations, name


@pytest.mark.parametrize("problem", ROWS)
async def test_wrong_designs_do_not_pass(problem: Problem, provider: DockerSandboxes) -> None:
    names = sorted(wrong_designs(problem.id))
    assert len(names) >= ALWAYS
    await grade_wrong(problem, provider, names[:ALWAYS])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
async def test_no_wrong_design_passes(problem: Problem, provider: DockerSandboxes) -> None:
    await grade_wrong(problem, provider, sorted(wrong_designs(problem.id))[ALWAYS:])
