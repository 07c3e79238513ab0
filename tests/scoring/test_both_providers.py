"""A submission has the same verdict in a container and in a sandbox of namespaces, field by field."""

from __future__ import annotations

import asyncio
import difflib
import json
import re

import pytest

from data.bundled import wrong_designs
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandboxes
from rtl_agent_gym.scoring import Score, Scorer

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("root_folder")]

PROBLEMS = {problem.id: problem for problem in load_problems("bundled")}
QUICK = min(PROBLEMS)
"""The problem whose reference and first wrong design the default suite grades twice; the slow suite grades all."""
_MEASURED = {"seconds", "cached", "retries"}
_CHANGING = re.compile(r"\b\d+\.\d+ ?s\b|\bin \d+\.\d+|0x[0-9a-f]+|\d+\.\d+(?=\s)")
"""Times and addresses in a log."""


def record(score: Score) -> str:
    """A verdict without what two gradings of the same submission differ in."""
    text = json.dumps(score.model_dump(mode="json", exclude=_MEASURED), indent=1, sort_keys=True)
    return _CHANGING.sub("#", text)


async def graded(problem: Problem, names: list[str]) -> None:
    """Grade the reference and wrong designs on both, and compare."""
    assert problem.golden
    designs = {"reference": problem.golden, **wrong_designs(problem.id)}
    async with (
        DockerSandboxes() as docker,
        NamespaceSandboxes() as namespaces,
        Scorer(docker, cache=None) as first,
        Scorer(namespaces, cache=None) as second,
    ):
        for name in names:
            files = {**problem.context, **designs[name]}
            pair = await asyncio.gather(*(scorer.score(problem, dict(files)) for scorer in (first, second)))
            records = [record(score).splitlines() for score in pair]
            assert records[0] == records[1], "\n".join(difflib.unified_diff(*records, lineterm=""))
            assert pair[0].same_as(pair[1])
            assert pair[1].passed == (name == "reference")


async def test_one_problem() -> None:
    await graded(PROBLEMS[QUICK], ["reference", min(wrong_designs(QUICK))])


@pytest.mark.slow  # each grading takes seconds, and these are 138 on each provider
@pytest.mark.timeout(900)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
async def test_every_bundled_problem_with_its_wrong_designs(problem: Problem) -> None:
    await graded(problem, ["reference", *sorted(wrong_designs(problem.id))])
