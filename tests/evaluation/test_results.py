"""Results on disk, their summary and the official runner's files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.episodes.rules import RewardFunction
from rtl_agent_gym.errors import SandboxError, TranscriptError, UsageError
from rtl_agent_gym.evaluation.config import EvaluationRecord, _reward_name, reward_digest
from rtl_agent_gym.evaluation.outcome import EpisodeResult, episode_seed, summarise
from rtl_agent_gym.evaluation.results import (
    ResultsFile,
    raw_result,
    read_config,
    read_results,
    report,
    write_official,
)
from rtl_agent_gym.evaluation.spending import STOPPED
from rtl_agent_gym.scoring.score import Score

CONFIG = EvaluationRecord(
    problems="bundled",
    digests={"a": "1", "b": "2"},
    policy="golden",
    samples=2,
    renderer="qwen3",
    max_turns=50,
    command_timeout=30.0,
)
WHOLE = {"format": 1.0, "syntax": 1.0, "interface": 1.0, "compile": 1.0}


def result(problem: str = "a", sample: int = 0, passed: bool = True, **values: Any) -> EpisodeResult:
    stages = {name: values.pop(name) for name in list(values) if name in {*WHOLE, "reward", "reason", "violations"}}
    stages |= {"seconds": values.pop("graded_in", 0.0), "retries": values.pop("graded_again", 0)}
    total = values.pop("tests_total", 3)
    score = Score(passed=passed, tests_passed=total if passed else total // 3, tests_total=total, **{**WHOLE, **stages})
    plain = {"category": 3, "difficulty": "easy", "seed": 1, "turns": 4, "stop_reason": "completed", "score": score}
    return EpisodeResult(problem_id=problem, sample=sample, **{**plain, **values})


def opened(folder: Path, record: EvaluationRecord = CONFIG) -> None:
    """Open the results of a folder, and close them."""
    ResultsFile(folder, record).close()


def test_results_are_kept_and_a_cut_off_line_is_dropped(tmp_path: Path) -> None:
    with ResultsFile(tmp_path, CONFIG) as file:
        file.append(result("a"))
        file.append(result("b"))
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes() + b'{"problem_id": "a", "sam')
    assert [found.key for found in read_results(tmp_path)] == [("a", 0), ("b", 0)]
    with ResultsFile(tmp_path, CONFIG) as file:
        assert set(file.done) == {("a", 0), ("b", 0)}
        file.append(result("a", 1))
    assert [found.key for found in read_results(tmp_path)] == [("a", 0), ("b", 0), ("a", 1)]


def test_the_folder_of_an_older_version_is_read_and_resumed(tmp_path: Path) -> None:
    older = CONFIG.model_dump(exclude={"rules"})
    (tmp_path / "config.json").write_text(json.dumps(older))
    (tmp_path / "results.jsonl").write_text(result("a").model_dump_json() + "\n")
    with ResultsFile(tmp_path, CONFIG) as file:
        assert set(file.done) == {("a", 0)}
    assert CONFIG.digest == "9dabae969410"  # in the names of folders below runs/eval/
    assert CONFIG.model_copy(update={"model_files": "0f1e"}).digest == CONFIG.digest
    single_turn = CONFIG.model_copy(update={"rules": {"single_turn": True}})
    assert single_turn.digest != CONFIG.digest
    with pytest.raises(UsageError, match="rules"):
        opened(tmp_path, single_turn)


def test_a_later_result_replaces_a_fault(tmp_path: Path) -> None:
    with ResultsFile(tmp_path, CONFIG) as file:
        file.append(result("a", score=None, fault="SandboxLost: gone"))
        file.append(result("a"))
    assert [found.passed for found in read_results(tmp_path)] == [True]


def test_a_result_that_arrives_twice_counts_once(tmp_path: Path) -> None:
    with ResultsFile(tmp_path, CONFIG) as file:
        first = file.append(result(passed=True))
        assert file.append(result(passed=False)) is first
        assert file.append(result(sample=1)).sample == 1
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
    with (tmp_path / "results.jsonl").open("a") as stream:  # by a client that did not know
        stream.write(result(passed=False).model_dump_json() + "\n")
    assert [one.passed for one in read_results(tmp_path)] == [True, True]


def test_an_episode_that_a_limit_stopped_has_no_result(tmp_path: Path) -> None:
    """Its line says only what it spent, and a fault that came before it is still the episode's result."""
    fault = result("a", score=None, fault="gone")
    stopped: dict[str, Any] = {"score": None, "stop_reason": STOPPED}
    with ResultsFile(tmp_path, CONFIG) as file:
        for line in (fault, result("a", **stopped), result("b", **stopped)):
            file.append(line)
        assert file.done == {("a", 0): fault}
    assert read_results(tmp_path) == [fault]


def test_a_broken_line_in_the_middle_is_said(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"problem_id": 1}\n')
    with pytest.raises(TranscriptError, match=r"results\.jsonl:1: not a result"):
        read_results(tmp_path)


def test_a_power_failure_costs_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would refuse all results of the folder."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    opened(tmp_path)
    assert synced


@pytest.mark.parametrize("field", ["problems", "policy"])
def test_a_path_that_is_not_utf8_is_recorded(tmp_path: Path, field: str) -> None:
    record = EvaluationRecord(**CONFIG.model_dump() | {field: "r\udce9.jsonl"})
    opened(tmp_path, record)
    opened(tmp_path, record)
    assert getattr(read_config(tmp_path), field) == r"r\udce9.jsonl"


def test_another_evaluation_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path, CONFIG.model_copy(update={"problems": "elsewhere/rows.jsonl"}))  # with the same content
    with pytest.raises(UsageError, match=r"problems \(their content\), policy \('golden', now 'random'\)"):
        opened(tmp_path, CONFIG.model_copy(update={"policy": "random", "digests": {"a": "3"}}))


def test_a_reward_that_is_an_object_has_one_name() -> None:
    """Otherwise another process could not continue its evaluation."""

    class Reward:
        def __call__(self, score: Score) -> float:
            return 0.0

    assert _reward_name(Reward()) == _reward_name(Reward())


def times(factor: float) -> RewardFunction:
    return lambda score: factor * score.credit


def known(score: Score) -> float:
    return max((test in {"a", "b", "c", "d", "e", "f"} for test in score.tests), default=0.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda score: float(score.passed), lambda score: score.credit),
        (lambda score: sum(1.0 for _ in score.tests), lambda score: sum(2.0 for _ in score.tests)),
        (known, lambda score: score.credit),
    ],
)
def test_another_reward_function_is_another_evaluation(one: RewardFunction, other: RewardFunction) -> None:
    assert reward_digest(one) == reward_digest(one) != reward_digest(other)


@pytest.mark.parametrize(
    "reward", [partial(max, 1.0), times(1.0), attrgetter("credit"), lambda score, most=1.0: most * score.credit]
)
def test_a_reward_with_a_state_is_never_the_same(reward: RewardFunction) -> None:
    assert reward_digest(reward) != reward_digest(reward)


def test_a_reward_function_has_one_digest_in_every_process() -> None:
    """Although sets have another order in each."""
    program = "from tests.evaluation.test_results import known, reward_digest; print(reward_digest(known))"
    command, environment = [sys.executable, "-c", program], os.environ | {"PYTHONHASHSEED": "1"}
    found = subprocess.check_output(command, cwd=Path(__file__).parents[2], env=environment, text=True)
    assert found.strip() == reward_digest(known)


def test_the_name_of_a_function_of_an_older_version_suffices_if_it_is_its_own(tmp_path: Path) -> None:
    for name, refused in (("dense_share", False), ("<lambda>", True), ("partial", True)):
        older = CONFIG.model_copy(update={"weights": name})
        opened(tmp_path / name, older)
        newer = older.model_copy(update={"reward_digest": "0f1e"})
        assert newer.digest != older.digest
        with pytest.raises(UsageError, match="reward_digest") if refused else nullcontext():
            opened(tmp_path / name, newer)


def test_more_samples_go_into_the_same_folder(tmp_path: Path) -> None:
    with ResultsFile(tmp_path, CONFIG) as file:
        file.append(result("a"))
    with ResultsFile(tmp_path, CONFIG.model_copy(update={"samples": 5})) as file:
        assert (file.record.samples, set(file.done)) == (5, {("a", 0)})
    assert read_config(tmp_path).samples == 5
    with ResultsFile(tmp_path, CONFIG.model_copy(update={"samples": 1})) as file:
        assert file.record.samples == 5  # what was asked for once stays asked for
    assert CONFIG.digest == CONFIG.model_copy(update={"samples": 7}).digest


@pytest.mark.parametrize("name", ["image", "prompts", "version", "model_files", "reward_digest"])
def test_what_the_results_depend_on_is_compared_where_it_is_known(tmp_path: Path, name: str) -> None:
    one, two = (CONFIG.model_copy(update={name: value}) for value in ("one", "two"))
    opened(tmp_path)
    opened(tmp_path, one)  # the folder of an older version
    opened(tmp_path / "known", one)
    with pytest.raises(UsageError, match=f"{name} \\('one', now 'two'\\)"):
        opened(tmp_path / "known", two)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", '{"student_model": "Qwen/Qwen3-8B"}', "contains no evaluation of this version"),
        ("results.jsonl", result("a").model_dump_json() + "\n", "has results without their config.json"),
    ],
)
def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=f"{message}.*choose another --out"):
        opened(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (Path("/proc/evaluation"), tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match=r"^--out: "):
            opened(folder)


def test_a_full_disk_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG.model_dump_json())
    with ResultsFile(tmp_path, CONFIG) as file:
        file._file.close()
        (tmp_path / "results.jsonl").unlink()
        (tmp_path / "results.jsonl").symlink_to("/dev/full")
        file._file = open("/dev/full", "a+b", buffering=0)  # noqa: SIM115 - closed with the results
        with pytest.raises(SandboxError, match=r"results\.jsonl cannot be written: No space left"):
            file.append(result("a"))
        assert file.done == {}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_folder_that_is_removed_or_moved_gets_no_more_results(tmp_path: Path, kept: bool, again: bool) -> None:
    folder, moved = tmp_path / "run", tmp_path / "moved"
    with ResultsFile(folder, CONFIG) as file:
        file.append(result("a"))
        folder.rename(moved)
        if not kept:
            shutil.rmtree(moved)
        if again:  # another evaluation has begun at the old place
            opened(folder)
        with pytest.raises(UsageError, match="removed or moved"):
            file.append(result("b"))
    if kept:
        assert [one.problem_id for one in read_results(moved)] == ["a"]


def test_two_processes_at_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG.model_dump_json())
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'a+b'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "results.jsonl")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(UsageError, match="another process"):
            opened(tmp_path)
        other.kill()
    opened(tmp_path)  # the lock ends with the process


def test_a_file_system_without_locks_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(UsageError, match="cannot lock files"):
        opened(tmp_path)


def test_seeds_are_of_the_episode_alone() -> None:
    seeds = {episode_seed(0, problem, sample) for problem in ("a", "b") for sample in range(50)}
    assert len(seeds) == 100
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert episode_seed(0, "a", 1) != episode_seed(1, "a", 1)


@pytest.mark.parametrize(
    ("cause", "values"),
    [
        ("machine", {"score": None, "fault": "DaemonError: gone"}),
        ("malformed", {"passed": False, "stop_reason": "parse_error"}),
        ("out of turns or tokens", {"passed": False, "stop_reason": "max_turns", "syntax": 0.0}),
        ("out of turns or tokens", {"passed": False, "stop_reason": "max_tokens"}),
        ("broken sandbox", {"passed": False, "stop_reason": "sandbox_broken", "format": 0.0}),
        ("violation", {"passed": False, "violations": ["$system at rtl/a.sv:1"]}),
        ("missing", {"passed": False, "format": 0.5, "syntax": 0.5}),
        ("syntax", {"passed": False, "syntax": 0.0, "interface": 0.0}),
        ("interface", {"passed": False, "interface": 0.8, "compile": 0.0}),
        ("compile", {"passed": False, "compile": 0.0}),
        ("tests", {"passed": False}),
        ("untested", {"passed": False, "compile": 0.0, "tests_total": 0}),
        ("interface", {"passed": False, "compile": 0.0, "interface": 0.5, "tests_total": 0}),
        (None, {"stop_reason": "max_turns"}),
        ("refused", {"passed": False, "refused": True, "stop_reason": "parse_error"}),
        (None, {"refused": True}),
    ],
)
def test_the_cause_is_the_first_that_is_true(cause: str | None, values: dict[str, Any]) -> None:
    assert result(**values).cause == cause


def test_a_summary_counts_faults_apart() -> None:
    results = [
        result("a", 0, output_tokens=100, retries=1, reward=1.4, seconds=12.0, acting_seconds=2.0),
        result("a", 1, passed=False, interface=0.5, turns=6, output_tokens=200, graded_again=2, reward=0.4),
        result("b", 0, passed=False, category=16, difficulty="hard", format=0.0, malformed=2, tests_total=0),
        result("b", 1, category=16, difficulty="hard", score=None, fault="gone", retries=2, seconds=60.0, turns=1),
    ]
    summary = summarise(results, episodes=4)
    assert (summary.episodes, summary.finished, summary.passed, summary.faults, summary.retries) == (4, 3, 1, 1, 5)
    assert summarise(results, episodes=9).faults == 1, "episodes that are not played yet are no faults"
    assert summarise(results, same_policy=False).pass_at == {}
    assert summary.pass_at[1].value == pytest.approx((1 / 2 + 0) / 2)
    assert (summary.pass_at[2].value, summary.pass_at[2].problems) == (1.0, 1)
    assert summary.overall is not None
    assert (summary.overall.passed, summary.overall.format, summary.overall.interface) == pytest.approx(
        (1 / 3, 2 / 3, 2 / 3)
    )
    assert (summary.overall.tests, summary.overall.reward) == pytest.approx(((1 + 1 / 3) / 3, 0.6))
    assert list(summary.by_category) == ["cid003", "cid016"]
    assert list(summary.by_difficulty) == ["easy", "hard"]
    assert summary.by_difficulty["hard"].episodes == 1
    assert summary.causes == {"interface": 1, "missing": 1, "machine": 1}
    assert summary.cost is not None
    cost = summary.cost
    assert (cost.output_tokens, cost.tokens_per_turn) == (150, 30)
    assert (cost.turns, cost.malformed) == pytest.approx((14 / 3, 2 / 3))
    assert (cost.seconds, cost.acting_seconds, cost.total_seconds) == pytest.approx((4, 2 / 3, 12))
    json.dumps(summary.as_json())


def test_nothing_but_faults_has_no_rates() -> None:
    summary = summarise([result(score=None, fault="gone", fair=True)])
    assert (summary.overall, summary.cost, summary.pass_at, summary.faults) == (None, None, {}, 1)
    assert (summary.fair, summary.noted) == (None, 0)


def test_the_official_raw_result() -> None:
    failed = result(
        "b", passed=False, difficulty="hard", reason="2 of 3 tests failed", graded_in=2.5, transcript="t/b.jsonl"
    )
    raw = raw_result([result("a"), failed, result("c", score=None, fault="gone")])
    assert list(raw) == ["a", "b"]
    assert raw["b"] == {
        "category": "cid003",
        "difficulty": "hard",
        "tests": [{"result": 1, "log": "t/b.jsonl", "error_msg": "2 of 3 tests failed", "execution": 2.5}],
        "errors": 1,
    }
    assert raw["a"]["tests"][0] | {"execution": 0} == {"result": 0, "log": None, "error_msg": None, "execution": 0}
    assert raw["a"]["errors"] == 0


def test_a_damaged_difficulty_is_in_no_official_count() -> None:
    content = report(raw_result([result("a"), result("b", difficulty="odd")]), CONFIG, timestamp="")
    assert [content["cid003"][level]["Total Tests"] for level in ("hard", "medium", "easy")] == [0, 0, 1]


def test_the_official_report() -> None:
    raw = raw_result([result("a"), result("b", passed=False), result("c", difficulty="hard", category=16)])
    content = report(raw, CONFIG, timestamp="2026-01-01 00:00:00")
    assert set(content) == {"cid003", "cid016", "metadata", "test_details"}
    assert content["cid003"]["easy"] == {
        "Passed Tests": 1,
        "Failed Tests": 1,
        "Total Tests": 2,
        "Passed Tests (%)": 50,
        "Passed Problems": 1,
        "Failed Problems": 1,
        "Total Problems": 2,
        "Passed Problems (%)": 50,
    }
    assert content["cid003"]["hard"]["Total Problems"] == 0
    assert [entry["id"] for entry in content["cid003"]["logs"]] == ["a", "b"]
    assert [test["test_id"] for test in content["test_details"]["failing_tests"]] == ["b"]
    assert [test["difficulty"] for test in content["test_details"]["passing_tests"]] == ["easy", "hard"]
    assert content["metadata"]["golden_mode"] is True


def test_several_samples_make_a_composite_report(tmp_path: Path) -> None:
    paths = write_official(tmp_path, [result("a", 0), result("a", 1, passed=False)], CONFIG)
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "sample_1/report.json",
        "sample_2/report.json",
        "composite_report.json",
    ]
    composite = json.loads(paths[-1].read_text())
    assert composite["metadata"]["composite"] is True
    assert composite["metadata"]["n_samples"] == len(composite["samples"]) == 2
    assert [sample["cid003"]["easy"]["Passed Problems"] for sample in composite["samples"]] == [1, 0]
    assert json.loads((tmp_path / "sample_2/raw_result.json").read_text())["a"]["tests"][0]["result"] == 1


def test_one_sample_stands_in_the_folder_itself(tmp_path: Path) -> None:
    paths = write_official(tmp_path, [result("a")], CONFIG.model_copy(update={"samples": 1}))
    assert paths == [tmp_path / "report.json"]
    assert (tmp_path / "raw_result.json").is_file()
    write_official(tmp_path, [result("a"), result("a", 1)], CONFIG)  # more samples were asked for later
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")}
    each = {f"sample_{number}/{name}.json" for number in (1, 2) for name in ("raw_result", "report")}
    assert found == {"composite_report.json", *each}
