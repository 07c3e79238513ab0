"""A verdict: files in, `Score` out. The hidden tests run in a container that the agent has never seen."""

from __future__ import annotations

import pytest

from data.bundled import wrong_designs
from rtl_agent_gym import Scorer, load_problems


@pytest.mark.docker
async def test_a_verdict() -> None:
    [problem] = load_problems("bundled", ids=["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"])
    wrong = next(iter(wrong_designs(problem.id).values()))
    [(path, design)] = (problem.golden or {}).items()

    async with Scorer() as scorer:
        right = await scorer.score(problem, {path: design})
        assert (right.passed, right.tests_passed, right.reward) == (True, right.tests_total, scorer.weights.most)

        bug = await scorer.score(problem, wrong)
        assert (bug.passed, bug.syntax, bug.violations) == (False, 1.0, [])

        cheat = await scorer.score(problem, {path: design, "src/conftest.py": "# loaded with the hidden tests"})
        assert cheat.violations
        assert (cheat.passed, cheat.credit) == (False, 0.0)  # an attempt on the grader earns nothing for tests
    # A failure of the machine raises `SandboxError` instead: it is never a score.
