"""Sources of mutants: debugging problems made of other problems, each with a known verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import load_problems, validate_problem
from rtl_agent_gym.scoring.harness import default_seed
from rtl_agent_gym.sources.mutants.derived import candidates
from rtl_agent_gym.sources.mutants.mutant import SHIPPED, Outcome, Verdict, VerdictStore, design_key, verdict_key

from .conftest import write_rows

FAMILY = "family:registers?count=2&seed=3"


@pytest.fixture
def store(user_cache: Path) -> VerdictStore:
    """The user's store, empty."""
    return VerdictStore()


def grade(store: VerdictStore, source: str, outcomes: str, seed: int = 0) -> None:
    """Store a verdict for the first mutants of a source: a letter each (k, s or i)."""
    names: dict[str, Outcome] = {"k": "killed", "s": "survived", "i": "invalid"}
    for letter, one in zip(outcomes, candidates(load_problems(source), seed), strict=False):
        found = {"failed": ("test_it.loads",), "symptom": "2 of 3 tests failed"} if letter == "k" else {}
        store.put(Verdict.on(one.design, one.mutant, names[letter], **found))


def test_the_packages_own_need_no_grading(store: VerdictStore) -> None:
    problems = load_problems("bundled+mutants?count=100&seed=0")
    assert len(problems) == len({problem.id for problem in problems}) == 100
    files = {json.dumps([problem.context, problem.harness], sort_keys=True) for problem in problems}
    assert len(files) == 100
    for problem in problems:
        assert (problem.category, len(problem.targets), validate_problem(problem)) == (16, 1, [])
        [target] = problem.targets
        assert problem.golden is not None
        assert problem.context[target] != problem.golden[target]


def test_the_packages_verdicts_are_of_the_bundled_problems() -> None:
    """If this fails, a bundled problem was changed: run benchmarks/mutants.py, then again with --ship."""
    keys = {design_key(problem) for problem in load_problems("bundled")}
    lines = [Verdict.model_validate_json(line) for line in SHIPPED.read_text().splitlines()]
    assert {verdict.key.partition("-")[0] for verdict in lines} == keys


def test_any_symptom_of_a_verdict_reads_back(store: VerdictStore) -> None:
    verdict = Verdict(key="d-m", operator="o", path="p", line=1, outcome="killed", symptom="a\x85\u2028\f")
    store.put(verdict)
    assert VerdictStore().get("d-m") == verdict


def test_only_what_the_tests_reject_becomes_a_problem(store: VerdictStore) -> None:
    grade(store, FAMILY, "ksikk")
    tried = list(candidates(load_problems(FAMILY), 0))
    made = load_problems(f"{FAMILY}+mutants?count=3&hint=none")
    assert [problem.context["rtl/design.sv"] for problem in made] == [tried[n].mutant.after for n in (0, 3, 4)]
    assert [problem.golden for problem in made] == [{"rtl/design.sv": tried[n].mutant.before} for n in (0, 3, 4)]
    assert made[0].harness == tried[0].problem.harness
    assert tried[0].problem.prompt in made[0].context["docs/task.md"]
    assert load_problems(f"{FAMILY}+mutants?count=2&hint=none") == made[:2]


def test_a_file_of_problems_is_mutated_like_its_source(store: VerdictStore, tmp_path: Path) -> None:
    grade(store, FAMILY, "kk")
    path = write_rows(tmp_path, *load_problems(FAMILY))
    assert load_problems(f"{path}+mutants?count=2") == load_problems(f"{FAMILY}+mutants?count=2")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "// \f and \u2028 end no line"], ids=repr)
def test_any_text_reads_back_from_its_patch(store: VerdictStore, tmp_path: Path, end: str) -> None:
    grade(store, FAMILY, "k")
    [problem] = load_problems(f"{FAMILY}+mutants?count=1")
    [target] = problem.targets
    texts = {"context": {**problem.context, target: f"module m;\f\u2028 endmodule{end}"}}
    changed = problem.model_copy(update={**texts, "golden": {target: f"module m; endmodule{end}"}})
    assert load_problems(write_rows(tmp_path, changed)) == [changed]


def test_repositories_have_no_mutants() -> None:
    problems = load_problems("family:registers?count=1")
    assert next(candidates(problems, 0), None) is not None
    heavy = [problem.model_copy(update={"checkout": "owner/name@0123456"}) for problem in problems]
    assert list(candidates(heavy, 0)) == []


@pytest.mark.parametrize(
    ("hint", "says"),
    [("none", (False, False)), ("check", (True, False)), ("symptom", (True, True))],
)
def test_what_the_task_says_of_the_bug(store: VerdictStore, hint: str, says: tuple[bool, bool]) -> None:
    grade(store, FAMILY, "k")
    [problem] = load_problems(f"{FAMILY}+mutants?count=1&hint={hint}")
    assert ("test_it.loads" in problem.prompt, "2 of 3 tests failed" in problem.prompt) == says
    assert "docs/task.md" in problem.prompt


def test_the_task_overwrites_no_file(store: VerdictStore, tmp_path: Path) -> None:
    [problem, *_] = load_problems(FAMILY)
    path = write_rows(tmp_path, problem.model_copy(update={"context": {**problem.context, "docs/task.md": "taken\n"}}))
    grade(store, str(path), "k")
    [made] = load_problems(f"{path}+mutants?count=1")
    assert made.context["docs/task.md"] == "taken\n"
    assert "`docs/task_2.md`" in made.prompt


def test_what_is_not_graded_is_refused_with_the_command(store: VerdictStore) -> None:
    grade(store, FAMILY, "ks")
    with pytest.raises(
        UsageError, match=r"not been graded yet.*problems mutate 'family:registers\?count=2&seed=3' --count 2"
    ):
        load_problems(f"{FAMILY}+mutants?count=2")


def test_another_harness_makes_verdicts_void(store: VerdictStore, tmp_path: Path) -> None:
    grade(store, FAMILY, "k")
    [problem, *_] = load_problems(FAMILY)
    harness = {**problem.harness, "src/test_design.py": "# no tests\n"}
    path = write_rows(tmp_path, problem.model_copy(update={"harness": harness}))
    with pytest.raises(UsageError, match="not been graded yet"):
        load_problems(f"{path}+mutants?count=1")


def test_the_task_of_a_changed_design_says_what_it_describes(store: VerdictStore) -> None:
    """A task that reports faults of the files it begins with would otherwise contradict the mutant's."""
    told = {}
    for one in load_problems("bundled+mutants?count=40"):
        source = one.id.partition("_mutant_")[0]
        told[source] = "faults that it reports have been repaired" in one.context["docs/task.md"]
    assert told["cvdp_agentic_rtlgym_spi_master_debug"]
    assert not told["cvdp_agentic_rtlgym_sync_fifo"]


def test_more_than_there_are(store: VerdictStore) -> None:
    grade(store, "family:registers?count=1", "k" + 500 * "s")
    with pytest.raises(UsageError, match="reject only 1 of the mutants, not 2"):
        load_problems("family:registers?count=1+mutants?count=2")


def test_problems_without_a_reference_solution(store: VerdictStore, tmp_path: Path) -> None:
    path = write_rows(tmp_path, load_problems(FAMILY)[0].model_copy(update={"golden": None}))
    with pytest.raises(UsageError, match="none of its problems has a reference solution"):
        load_problems(f"{path}+mutants")


def test_a_verdict_that_a_crash_cut_off_does_not_count(store: VerdictStore) -> None:
    grade(store, FAMILY, "k")
    [one, *_] = candidates(load_problems(FAMILY), 0)
    key = verdict_key(one.design, one.mutant)
    path = store.folder / f"{key}.json"
    path.write_text(path.read_text()[:-20])
    assert VerdictStore().get(key) is None
    path.write_bytes(path.read_bytes() + "é".encode()[:1])  # within a character
    assert VerdictStore().get(key) is None
    grade(store, FAMILY, "k")
    assert VerdictStore().get(key) is not None


def test_equal_designs_under_two_ids_are_mutated_once(tmp_path: Path) -> None:
    [problem, _] = load_problems(FAMILY)
    twice = [problem, problem.model_copy(update={"id": f"{problem.id}_again"})]
    assert len(list(candidates(twice, 0))) == len(list(candidates([problem], 0))) > 0


def test_a_derived_problem_has_the_seed_of_its_source(store: VerdictStore) -> None:
    """Its mutant was rejected with the source's stimuli, and must be with its own."""
    grade(store, FAMILY, "kkk")
    sources = {default_seed(problem) for problem in load_problems(FAMILY)}
    derived = load_problems(f"{FAMILY}+mutants?count=3")
    assert len(sources) == 2
    assert {default_seed(problem) for problem in derived} <= sources


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the verdicts of mutants"):
        grade(VerdictStore(tmp_path / "file" / "below"), FAMILY, "k")


def test_a_later_verdict_of_the_user_replaces_the_packages(store: VerdictStore) -> None:
    """As from another image."""
    one = next(candidates(load_problems("bundled"), 0))
    key = verdict_key(one.design, one.mutant)
    shipped = store.get(key)
    assert shipped is not None
    later = shipped.model_copy(update={"image": "sha256:other", "symptom": "seen here"})
    store.put(later)
    assert VerdictStore().get(key) == later != shipped


def test_what_cannot_be_scored_has_no_mutants() -> None:
    problems = load_problems("family:registers?count=1")
    told = [problem.model_copy(update={"unscorable": "its harness calls eqy"}) for problem in problems]
    assert list(candidates(told, 0)) == []
