"""What is kept and printed of mutants. Nothing is graded here: each grading finds what the test says."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from rich.console import Console

from rtl_agent_gym.cli.problems_derived import print_strength
from rtl_agent_gym.errors import SandboxBroken, SandboxLost
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.scoring import TIME_LIMIT
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.sources.mutants import grading
from rtl_agent_gym.sources.mutants.derived import Candidate
from rtl_agent_gym.sources.mutants.equivalence import Finding, beyond_yosys, compare
from rtl_agent_gym.sources.mutants.grading import NO_REFERENCE, Count, MutantGrader, Strength, measure_strength
from rtl_agent_gym.sources.mutants.mutant import (
    Equivalence,
    Mutant,
    Verdict,
    VerdictStore,
    design_key,
    draw_mutants,
    problem_mutants,
    verdict_key,
)

PASSED = Score(passed=True, tests_passed=1, tests_total=1, format=1, syntax=1, interface=1, compile=1, reward=1)
FAILED = PASSED.model_copy(update={"passed": False, "tests_passed": 0})


@pytest.fixture
def store(tmp_path: Path) -> VerdictStore:
    return VerdictStore(tmp_path, shipped=False)


def kept(store: VerdictStore, candidate: Candidate) -> Verdict:
    """What is on disk."""
    found = VerdictStore(store.folder, shipped=False).get(verdict_key(candidate.design, candidate.mutant))
    assert found is not None
    return found


def grader_of(store: VerdictStore, of_mutants: Score = PASSED) -> MutantGrader:
    """A grader whose references pass, and whose mutants get this score."""

    async def score(problem: Problem, files: dict[str, str], limit: float) -> Score:
        return PASSED if files == {**problem.context, **(problem.golden or {})} else of_mutants

    scorer: Any = AsyncMock()
    scorer.score = score
    return MutantGrader(AsyncMock(), scorer, store, 1, "sha256:0")


def first_mutants(problem: Problem, count: int) -> list[Candidate]:
    drawn = draw_mutants(problem_mutants(problem), 0)[:count]
    return [Candidate(problem, design_key(problem), mutant) for mutant in drawn]


async def strength(
    problem: Problem, store: VerdictStore, finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> Strength:
    """The strength by one mutant, of which Yosys finds this."""
    monkeypatch.setattr(grading, "compare", AsyncMock(return_value=finding))
    return await measure_strength(problem, grader_of(store), limit=1)


def printed(found: Strength, width: int = 120) -> str:
    stream = io.StringIO()
    print_strength(Console(file=stream, width=width), found)
    return stream.getvalue()


async def test_a_survivor_is_printed_as_a_diff(
    arbiter: Problem, store: VerdictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await strength(arbiter, store, Finding("bounded", 16), monkeypatch)
    [(_, _, mutant)] = first_mutants(arbiter, 1)
    text = printed(found)
    assert f"survived: {mutant.operator}, {mutant.path}:{mutant.line}; no difference within 16 steps\n" in text
    lines = [line.rstrip() for line in text.splitlines()]
    changed = [line for line in mutant.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) >= 2
    assert all(line.rstrip() in lines for line in changed)
    proved = await strength(arbiter, store, Finding("proved"), monkeypatch)
    assert (proved.total.survived, proved.total.proved) == (0, 1)
    assert "survived:" not in printed(proved)


def test_long_lines_of_a_survivor_are_printed_whole() -> None:
    lines = [f"{sign}assign q = {'a + ' * 30}{sign};" for sign in "-+"]
    survivor = {"diff": "\n".join(lines), "equivalence": "differs", "steps": 0, "why": ""}
    survivor |= {"operator": "constant", "path": "rtl/a.v", "line": 1}
    found = Strength(problem_id="p", mutants=1, total=Count(survived=1), operators={}, survivors=[survivor])
    assert set(lines) <= set(printed(found, 80).splitlines())


async def test_a_weaker_search_does_not_replace_the_steps_of_a_longer_one(
    arbiter: Problem, store: VerdictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for finding in (
        Finding("bounded", 8),
        Finding("bounded", 16),
        Finding("bounded", 4),
        Finding("unknown", why="time"),
    ):
        [survivor] = (await strength(arbiter, store, finding, monkeypatch)).survivors
        seen.append((survivor["equivalence"], survivor["steps"], survivor["why"]))
    assert seen == [("bounded", 8, ""), ("bounded", 16, ""), ("bounded", 16, ""), ("bounded", 16, "")]


async def test_a_reference_that_failed_once_is_graded_again(arbiter: Problem, store: VerdictStore) -> None:
    [candidate] = first_mutants(arbiter, 1)
    store.put(Verdict.on(candidate.design, candidate.mutant, "invalid", symptom=NO_REFERENCE))
    assert (await grader_of(store, FAILED).grade(candidate)).verdict.outcome == "killed"
    assert kept(store, candidate).outcome == "killed"


async def test_a_verdict_from_another_image_is_graded_again(arbiter: Problem, store: VerdictStore) -> None:
    """And one without an image, from before they were noted, is not."""
    candidates = first_mutants(arbiter, 2)
    for (_, design, mutant), image in zip(candidates, ("sha256:other", ""), strict=True):
        store.put(Verdict.on(design, mutant, "survived", image=image))
    found = [graded.verdict.outcome for graded in await grader_of(store, FAILED).grade_all(candidates)]
    assert found == ["killed", "survived"]


@pytest.mark.parametrize("final", ["proved", "differs"])
async def test_what_was_proved_is_not_forgotten_or_proved_again(
    final: Equivalence, arbiter: Problem, store: VerdictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = next(one for one in first_mutants(arbiter, 100) if one.mutant.operator != "assignment")
    store.put(Verdict.on(candidate.design, candidate.mutant, "survived"))
    seen, answers = list[Equivalence](), list[Equivalence](["unknown", "bounded", "unknown", final])
    for said in answers:
        monkeypatch.setattr(grading, "compare", AsyncMock(return_value=Finding(said, 0, "")))
        seen.append((await grader_of(store).grade(candidate, prove=True)).verdict.equivalence)
    assert seen == ["unknown", "bounded", "bounded", final]
    assert kept(store, candidate).equivalence == final
    monkeypatch.setattr(grading, "compare", AsyncMock(side_effect=AssertionError("it is known")))
    graded = await grader_of(store).grade(candidate, prove=True)
    assert (graded.verdict.equivalence, graded.finding) == (final, None)


def test_a_form_feed_in_a_diff_ends_no_line() -> None:
    mutant = Mutant("assignment", "rtl/a.v", 3, "a;\n\f\nq = 1;\n", "a;\n\f\nq <= 1;\n")
    assert grading._is_delayed(mutant)


async def test_nothing_is_proved_of_an_assignment_that_became_non_blocking(
    arbiter: Problem, store: VerdictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(path, text)] = (arbiter.golden or {}).items()
    late = Mutant("assignment", path, 1, text, text.replace(" = ", " <= ", 1))
    assert late.after != text
    monkeypatch.setattr(grading, "compare", AsyncMock(return_value=Finding("proved")))
    candidate = Candidate(arbiter, design_key(arbiter), late)
    graded = await grader_of(store).grade(candidate, prove=True)
    assert (graded.verdict.outcome, graded.verdict.equivalence) == ("survived", "unknown")
    assert kept(store, candidate).equivalence == "unknown"


@pytest.mark.parametrize(
    "text",
    [
        "// synopsys translate_off",
        "case (s) // synthesis full_case",
        "case (s) // synthesis parallel_case",
        "q = 1'bz;",
        "`ifdef SYNTHESIS",
        "`ifdef YOSYS",
        "unique case (s)",
        "priority if (s)",
        "always @(a or b) q = a;",
        "#1 q = d;",
    ],
)
def test_what_yosys_and_simulators_read_differently(text: str) -> None:
    assert beyond_yosys(["module m; endmodule", text])


@pytest.mark.parametrize(("seconds", "limit"), [(2.0, 30.0), (20.0, 100.0)])
async def test_a_mutant_has_five_times_the_references_time_and_at_least_half_a_minute(
    seconds: float, limit: float, arbiter: Problem, store: VerdictStore
) -> None:
    limits = list[float]()

    async def score(problem: Problem, files: dict[str, str], given: float) -> Score:
        limits.append(given)
        return PASSED.model_copy(update={"seconds": seconds})

    grader, scorer = grader_of(store), AsyncMock()
    scorer.score = score
    grader.scorer = scorer
    await grader.grade(first_mutants(arbiter, 1)[0])
    assert limits == [TIME_LIMIT, limit]  # of the reference, and of the mutant


async def test_too_much_memory_is_a_finding_and_a_lost_sandbox_is_not(arbiter: Problem) -> None:
    sandbox, right = AsyncMock(), dict(arbiter.golden or {})
    provider = Mock(create=AsyncMock(return_value=sandbox))
    sandbox.exec.side_effect = SandboxBroken("it needed too much memory")
    assert await compare(arbiter, right, right, provider) == Finding("unknown", why="it needed too much memory")
    sandbox.exec.side_effect = SandboxLost("the container is gone")
    with pytest.raises(SandboxLost):
        await compare(arbiter, right, right, provider)
    assert sandbox.close.await_count == 2
