"""Mutants that the tests accept: what is kept and printed of them. Nothing is graded here, every mutant passes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from rich.console import Console

from rtl_agent_gym.cli.problems_derived import print_strength
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.sources.mutants import grading
from rtl_agent_gym.sources.mutants.equivalence import Finding
from rtl_agent_gym.sources.mutants.grading import MutantGrader, Strength, measure_strength
from rtl_agent_gym.sources.mutants.mutant import (
    Mutant,
    Verdict,
    VerdictStore,
    design_key,
    draw_mutants,
    problem_mutants,
)

ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
PASSED = Score(passed=True, tests_passed=1, tests_total=1, format=1, syntax=1, interface=1, compile=1, reward=1)


@pytest.fixture
def problem() -> Problem:
    [problem] = load_problems("bundled", ids=ARBITER)
    return problem


async def strength(
    problem: Problem, store: VerdictStore, finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> Strength:
    """The strength by one mutant, of which Yosys finds this."""
    monkeypatch.setattr(grading, "compare", AsyncMock(return_value=finding))
    scorer: Any = AsyncMock()
    scorer.score.return_value = PASSED
    grader = MutantGrader(AsyncMock(), scorer, scorer, store, 1, "sha256:0")
    return await measure_strength(problem, grader, limit=1)


def printed(found: Strength) -> str:
    stream = io.StringIO()
    print_strength(Console(file=stream, width=120), found)
    return stream.getvalue()


async def test_a_survivor_is_printed_as_a_diff(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VerdictStore(tmp_path, shipped=False)
    found = await strength(problem, store, Finding("bounded", 16), monkeypatch)
    [mutant] = draw_mutants(problem_mutants(problem), 0)[:1]
    text = printed(found)
    assert f"survived: {mutant.operator}, {mutant.path}:{mutant.line}; no difference within 16 steps\n" in text
    lines = [line.rstrip() for line in text.splitlines()]
    changed = [line for line in mutant.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) >= 2
    assert all(line.rstrip() in lines for line in changed)
    proved = await strength(problem, store, Finding("proved"), monkeypatch)
    assert (proved.total.survived, proved.total.proved) == (0, 1)
    assert "survived:" not in printed(proved)


async def test_a_weaker_search_does_not_replace_the_steps_of_a_longer_one(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = VerdictStore(tmp_path, shipped=False), []
    for finding in (
        Finding("bounded", 8),
        Finding("bounded", 16),
        Finding("bounded", 4),
        Finding("unknown", why="time"),
    ):
        [survivor] = (await strength(problem, store, finding, monkeypatch)).survivors
        seen.append((survivor["equivalence"], survivor["steps"], survivor["why"]))
    assert seen == [("bounded", 8, ""), ("bounded", 16, ""), ("bounded", 16, ""), ("bounded", 16, "")]


async def test_a_verdict_without_steps_says_the_fewest_that_it_can_mean(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the verdicts of versions that did not keep them."""
    store = VerdictStore(tmp_path, shipped=False)
    [mutant] = draw_mutants(problem_mutants(problem), 0)[:1]
    store.add(Verdict.on(design_key(problem), mutant, "survived", equivalence="bounded"))
    found = await strength(problem, store, Finding("unknown", why="time"), monkeypatch)
    assert "; no difference within 4 steps\n" in printed(found)


def test_a_form_feed_in_a_diff_ends_no_line() -> None:
    mutant = Mutant("assignment", "rtl/a.v", 3, "a;\n\f\nq = 1;\n", "a;\n\f\nq <= 1;\n")
    assert grading._is_delayed(mutant)
