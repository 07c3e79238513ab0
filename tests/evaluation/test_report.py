"""Reports of runs."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from selenium import webdriver
from selenium.webdriver.common.by import By
from typer.testing import CliRunner

from rtl_agent_gym.cli import app
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.evaluation.recorded import each_readable, summary
from rtl_agent_gym.evaluation.report import page as page_module
from rtl_agent_gym.evaluation.report import side_by_side, write_report
from rtl_agent_gym.evaluation.report.page import pass_curves, training_curves
from rtl_agent_gym.evaluation.report.run import (
    changes,
    compare_runs,
    configuration,
    parts,
    read_run,
    telling_failures,
)
from rtl_agent_gym.evaluation.spending import Spent
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.transcripts import End, Transcript, read_transcript

from .recording import command_turn, final_turn, record, score

HOSTILE = "<script>window.pwned = 1</script><img src=x onerror=window.pwned=2> | **b** $x_1$ \u202e"


def training_run(folder: Path, steps: int = 30, **config: Any) -> Path:
    """A run that learns, with a line of the metrics cut off and one number that is none."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"learning_rate": 1e-4, "student_model": "small", **config}))
    rows = []
    for step in range(steps):
        share = step / (steps - 1)
        row = {
            "step": step,
            "pass_rate": share,
            "env/all/reward/total": 0.4 + share,
            "env/all/syntax_valid": 1.0,
            "env/all/quality": share / 2,
            "env/all/total_ac_tokens": 1000,
            "teacher_kl": 0.5 * (1 - share),
            "optim/entropy": math.nan if step == 3 else 1.0 - share / 2,
            "time/sample": 50.0,
            "time/wait": 6.0,
            "time/teacher": 1.0,
            "time/train": 2.0,
            "time/total": 10.0,
        }
        if step == 0:
            row |= {"test_before/pass_rate": 0.25, "test_before/reward": 0.5}
            row |= {"test_before/pass_rate_low": 0.1, "test_before/pass_rate_high": 0.4}
        if step in (14, 29):
            row |= {"test/pass_rate": 0.5 + step / 100, "test/reward": 1.0, "test/names/pass_rate": 0.0}
            row |= {"test/pass_rate_low": 0.6, "test/pass_rate_high": 0.85, "time/evaluate": 50.0}
        rows.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + '\n{"step": 30, "pass')
    return folder


def evaluation(
    folder: Path, passes: dict[str, int], samples: int = 2, fair: dict[str, bool] | None = None, **more: Any
) -> Path:
    """An evaluation's folder: for each problem how many of its samples pass, and for some whether they are fair."""
    (folder / "transcripts").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"policy": folder.name, "samples": samples}))
    lines = []
    for problem, passed in passes.items():
        for sample in range(samples):
            graded = score(sample < passed, **more)
            turns = [command_turn(1, "ls", "x"), final_turn(2, "done")]
            path = record(folder / "transcripts", turns, problem=problem, graded=graded)
            result = EpisodeResult(
                problem_id=problem, sample=sample, category=3, difficulty="easy", seed=1, score=graded,
                stop_reason="completed", turns=2, output_tokens=100, seconds=8.0, acting_seconds=2.0,
                transcript=f"transcripts/{path.name}", fair=(fair or {}).get(problem),
            )  # fmt: skip
            lines.append(result.model_dump_json())
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_before_and_after_come_from_evaluations_first(tmp_path: Path) -> None:
    found = changes(read_run(training_run(tmp_path / "run")))
    first = found[0]
    assert (first.name, first.before) == ("pass rate, held-out problems", 0.25)
    assert first.after == pytest.approx(0.79)
    assert first.how.endswith("95 % intervals 10% – 40% and 60% – 85%")
    assert [change.name for change in found[:3]][-1] == "pass rate, held-out problems: names"
    own = next(change for change in found if change.name == "pass rate" and "training episodes" in change.how)
    assert own.before == pytest.approx((0 + 1 + 2) / 29 / 3)
    assert own.after == pytest.approx((27 + 28 + 29) / 29 / 3)
    quality = next(change for change in found if change.name == "quality of results")
    assert quality.before == pytest.approx(1 / 29 / 2)
    assert quality.after == pytest.approx(28 / 29 / 2)
    entropy = next(change for change in found if change.name.startswith("entropy"))
    assert math.isfinite(entropy.before)


def test_the_time_of_training_by_part(tmp_path: Path) -> None:
    found = {part.name: part for part in parts(read_run(training_run(tmp_path / "run")))}
    assert found["waiting for episodes"].value == pytest.approx(180)
    assert found["waiting for episodes"].share == pytest.approx(0.45)
    assert (found["evaluating"].value, found["all steps and evaluations"].value) == (100, 400)
    assert "sampling episodes" not in found  # it went on while the last step was trained on
    assert found["the rest"].share == pytest.approx(0.075)
    assert found["tokens sampled"].value == 30_000


def test_the_time_of_an_evaluation_by_part(tmp_path: Path) -> None:
    found = {part.name: part.value for part in parts(read_run(evaluation(tmp_path / "ev", {"a": 1}, seconds=3.0)))}
    assert found["waiting for the policy"] == pytest.approx(4)
    assert found["grading"] == pytest.approx(6)
    assert found["shell and sandbox"] == pytest.approx(6)
    assert found["tokens written"] == 200
    cached = read_run(evaluation(tmp_path / "cached", {"a": 1}, seconds=3.0, cached=True))
    assert {part.name: part.value for part in parts(cached)}["grading"] == 0, "its seconds passed in another episode"


def test_unknown_tokens_of_an_evaluation_are_not_counted_as_none(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "ev", {"a": 1})
    first, second = (json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines())

    def tokens(*lines: dict[str, Any]) -> dict[str, float]:
        (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = parts(read_run(folder))
        return {part.name: part.value for part in found if part.name.startswith(("tokens", "cost"))}

    assert tokens(first, second | {"output_tokens": None}) == {}
    spent = Spent(answers=1, prompt_tokens=50, cached_tokens=40, output_tokens=10, cost=0.5).model_dump()
    lost = {"score": None, "fault": "SandboxLost: gone", "spent": spent}
    assert tokens(first | lost, first | {"spent": spent}, second | {"spent": spent}) == {
        "tokens written, lost attempts included": 30,
        "tokens read, lost attempts included": 150,
        "tokens from a cache, of all read": 120,
        "cost in US dollars, lost attempts included": 1.5,
    }


def test_the_quality_of_results_is_drawn(tmp_path: Path) -> None:
    drawn = training_curves([read_run(training_run(tmp_path / "run"))])
    assert drawn is not None
    assert {"quality of results", "reward"} <= set(re.findall("<!-- (.*) -->", drawn)), "the texts of the plot"


def test_the_legend_names_runs_that_have_no_line_in_the_first_plot(tmp_path: Path) -> None:
    runs = []
    for name in ("slow", "fast"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 0, "sft/nll": 1.5, "test/pass_rate": 0.5}\n')
        runs.append(read_run(tmp_path / name))
    drawn = training_curves(runs)
    assert drawn is not None
    assert {"slow", "fast"} <= set(re.findall("<!-- (.*) -->", drawn))


def test_the_interval_of_a_single_k_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(page_module, "_svg", drawn.append)
    run = read_run(evaluation(tmp_path / "ev", {"a": 1, "b": 0}, samples=1))
    pass_curves([run])
    [bar] = [found for found in drawn[0].axes[0].collections if isinstance(found, LineCollection)]
    [segment] = bar.get_segments()
    assert [height for _, height in segment] == [run.summary.pass_at[1].low, run.summary.pass_at[1].high]
    assert all(width > 0 for width in np.atleast_1d(bar.get_linewidth()))


def test_the_intervals_of_a_runs_evaluations_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(page_module, "_svg", drawn.append)
    training_curves([read_run(training_run(tmp_path / "run"))])
    found = [one for axis in drawn[0].axes for one in axis.collections]
    bars = [one for one in found if isinstance(one, LineCollection)]
    ends = [tuple(height for _, height in segment) for bar in bars for segment in bar.get_segments()]
    assert ends == [pytest.approx(interval) for interval in ((0.1, 0.4), (0.6, 0.85), (0.6, 0.85))]


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not installed; also for tests to which the plots do not matter, since they take a second."""
    monkeypatch.setattr(page_module, "can_draw", lambda: False)


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_there_are_no_plots(tmp_path: Path) -> None:
    written = write_report([evaluation(tmp_path / "ev", {"a": 1})], tmp_path / "report.html")
    assert "svg" not in written.read_text()
    assert not list(tmp_path.glob("*.svg"))


def test_flipped_problems(tmp_path: Path) -> None:
    student = read_run(evaluation(tmp_path / "student", {"a": 0, "b": 2, "c": 1, "only_here": 0}))
    teacher = read_run(evaluation(tmp_path / "teacher", {"a": 2, "b": 0, "c": 2}))
    compared = compare_runs(student, teacher)
    found = [(flip.problem_id, flip.first, flip.other, flip.gained) for flip in compared["flips"]]
    assert found == [("a", (0, 2), (2, 2), True), ("b", (2, 2), (0, 2), False)]
    difference = compared["paired"]
    assert difference is not None
    assert (difference.problems, difference.difference) == (3, pytest.approx(0.5 / 3))
    assert difference.p_value > 0.5


@pytest.mark.usefixtures("without_matplotlib")
def test_problems_of_other_content_are_not_compared(tmp_path: Path) -> None:
    runs = []
    for name, passed, digests in (("first", 0, {"a": "1", "b": "1"}), ("other", 2, {"a": "1", "b": "2", "c": "1"})):
        runs.append(evaluation(tmp_path / name, dict.fromkeys("abc", passed)))  # the first knows no digest of c
        (runs[-1] / "config.json").write_text(json.dumps({"digests": digests}))
    first, other = map(read_run, runs)
    compared = compare_runs(first, other)
    assert [flip.problem_id for flip in compared["flips"]] == ["a", "c"]
    difference = compared["paired"]
    assert difference is not None
    assert difference.problems == 2
    page = write_report(runs, tmp_path / "out")
    for path in (page, page.with_suffix(".md")):
        assert "Left out: 1 shared problem, whose texts" in path.read_text()


@pytest.mark.parametrize(
    ("first", "other", "changed"), [("1", "1", False), ("1", "2", True), ("12", "2", True)], ids=str
)
def test_transcripts_of_other_content_are_not_compared(tmp_path: Path, first: str, other: str, changed: bool) -> None:
    """Without a configuration their headers have the digests; each character here is that of one episode."""
    for name, digests in (("first", first), ("other", other)):
        for digest in digests:
            record(tmp_path / name, [final_turn(1, "done")], graded=score(True), problem_digest=digest)
    found = compare_runs(read_run(tmp_path / "first"), read_run(tmp_path / "other"))
    assert bool(found["left_out"]) is changed
    assert (found["paired"] is None) is changed


@pytest.mark.usefixtures("without_matplotlib")
def test_only_evaluations_are_compared(tmp_path: Path) -> None:
    """The episodes of a training run are of a policy that changed."""
    slow, fast = (training_run(tmp_path / name) for name in ("slow", "fast"))
    for run in (slow, fast):
        record(run / "transcripts", [final_turn(1, "x")], problem="a", graded=score(run == fast))
    student, teacher = (evaluation(tmp_path / name, {"a": passed}) for name, passed in (("student", 0), ("teacher", 2)))
    for runs, compared in (([slow, fast], False), ([student, fast], False), ([student, teacher], True)):
        page = write_report(runs, tmp_path / "out")
        for path in (page, page.with_suffix(".md")):
            assert ("permutation test" in path.read_text()) == compared, (runs, path)


def test_options_that_differ_are_marked_also_where_it_is_not_shown(tmp_path: Path) -> None:
    digests = dict.fromkeys("abcdefg", "0")
    options: list[dict[str, Any]] = [
        {"digests": digests, "notes": "x" * 300},
        {"digests": digests | {"g": "1"}, "notes": "x" * 300 + "y"},
    ]
    runs = [read_run(training_run(tmp_path / str(number), **found)) for number, found in enumerate(options)]
    assert {name: values for name, values, differs in configuration(runs) if differs} == {
        "digests": ["7 entries"] * 2,
        "notes": ["x" * 199 + "…"] * 2,
    }


def test_telling_failures_begin_with_forgeries_and_near_misses(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for problem, graded in (
        ("far", score(False, tests_passed=0, compile=0.0)),
        ("near", score(False, tests_passed=3)),
        ("cheat", score(False, violations=["wrote a log"])),
        ("near", score(False, tests_passed=2)),
        ("fine", score(True)),
    ):
        record(folder / "transcripts", [final_turn(1, "x")], problem=problem, graded=graded)
    found = telling_failures(read_run(folder))
    assert [failure.result.problem_id for failure in found] == ["cheat", "near", "far"]
    assert found[0].why == "violation: wrote a log"
    assert found[1].why.startswith("3 of 4 tests pass")
    assert all(failure.transcript is not None and failure.transcript.is_file() for failure in found)


def test_rates_side_by_side(tmp_path: Path) -> None:
    runs = [read_run(evaluation(tmp_path / "student", {"a": 1, "b": 0})), read_run(training_run(tmp_path / "train"))]
    rows = dict(side_by_side(runs))
    assert rows["pass@1"][0].startswith("25.0% (")
    assert rows["pass@1"][1] == "–"
    assert rows["passed"] == ["25.0%", "–"]
    assert rows["tokens written per episode"] == ["100", "–"]
    assert rows["failed: tests"] == ["3", "–"]
    assert not [name for name in rows if name.startswith("fair rows")]


def test_rates_of_fair_rows_stand_beside_those_of_all(tmp_path: Path) -> None:
    some = read_run(evaluation(tmp_path / "some", {"a": 1, "b": 0, "c": 0}, fair={"a": True, "b": False}))
    every = read_run(evaluation(tmp_path / "every", {"a": 2}, fair={"a": True}))
    rows = dict(side_by_side([some, every]))
    assert (rows["passed"], rows["fair rows: passed"]) == (["16.7%", "100.0%"], ["50.0%", "100.0%"])
    assert (rows["problems"], rows["fair rows: problems"]) == (["3", "1"], ["1", "1"])
    assert rows["fair rows: pass@2"][0].startswith("100.0%")
    assert "fair rows: passed" not in dict(side_by_side([every]))


def test_the_report_of_two_runs(browser: webdriver.Chrome, tmp_path: Path) -> None:
    student = evaluation(tmp_path / "student", {"a": 0, "b": 2}, reason=HOSTILE)
    teacher = evaluation(tmp_path / "teacher <b>$", {"a": 2, "b": 2})
    page = write_report([student, teacher], tmp_path / "out" / "both.html")
    assert page == tmp_path / "out" / "both.html"
    browser.get(page.as_uri())
    text = browser.find_element(By.TAG_NAME, "body").text
    assert "student against teacher <b>$" in text
    assert "1 gained and 0 lost" in text
    assert "points of pass rate over" in text
    assert "paired permutation test: p = " in text
    assert "<script>window.pwned = 1</script>" in text
    assert browser.execute_script("return window.pwned") is None
    images = browser.find_elements(By.TAG_NAME, "img")
    assert [browser.execute_script("return arguments[0].naturalWidth > 300", image) for image in images] == [True]
    link = browser.find_element(By.LINK_TEXT, "transcript")
    link.click()
    assert browser.find_element(By.TAG_NAME, "h1").text == "a"
    assert "not" not in browser.find_element(By.ID, "count").text


def test_markdown_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MOST_FLIPS", 1)
    student = evaluation(tmp_path / "student", {"a": 0, "b": 2}, reason=HOSTILE)
    teacher = evaluation(tmp_path / "teacher", {"a": 2, "b": 0})
    train = training_run(tmp_path / "train")
    rows = [{"step": 0, "sft/nll": 0.12341}, {"step": 1, "sft/nll": 12345.4}]
    with (train / "metrics.jsonl").open("a") as stream:
        stream.write("\n" + "\n".join(map(json.dumps, rows)))
    page = write_report([student, teacher, train], tmp_path / "out")
    text = page.with_suffix(".md").read_text()
    assert "\n| policy (differs) | student | teacher | – |\n" in text
    assert "\n\n… and 1 more.\n\n" in text
    for heading in ("Before and after: train", "Curves", "Side by side", "The most telling failures", "Cost and time"):
        assert f"## {heading}" in text
    assert "<script>" not in text
    assert "\\| \\*\\*b\\*\\*" in text
    images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert images
    for name in images:
        assert (page.parent / name).read_bytes().startswith(b"<?xml")
    for path in (page, page.with_suffix(".md")):
        assert re.search(r"0\.1234\b.*12,345\b", path.read_text())
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


def test_the_command(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run")
    done = CliRunner().invoke(app, ["report", str(run), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"html": str(run / "full_report.html"), "markdown": str(run / "full_report.md")}
    assert "data:image/svg+xml" in (run / "full_report.html").read_text()


def write_trainers_report(folder: Path) -> None:
    write_report([folder], folder / "report.html", episodes=False)


@pytest.mark.slow
def test_a_trainers_own_report_is_left_alone(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    write_trainers_report(folder)
    own = (folder / "report.html").read_bytes()
    for out in (None, folder):
        assert write_report([folder], out) == folder / "full_report.html"
    assert (folder / "report.html").read_bytes() == own
    full = (folder / "full_report.html").read_bytes()
    write_trainers_report(folder)
    assert (folder / "full_report.html").read_bytes() == full
    assert write_report([folder], tmp_path / "elsewhere") == tmp_path / "elsewhere" / "report.html"
    assert write_report([evaluation(tmp_path / "eval", {"a": 1})]) == tmp_path / "eval" / "report.html"


@pytest.mark.usefixtures("without_matplotlib")
def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    page = write_report(
        [evaluation(tmp_path / "x" / "run", {"a": 0}), evaluation(tmp_path / "y" / "run", {"a": 2})], tmp_path
    )
    assert "x/run against y/run" in page.read_text()


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    names = [os.fsdecode(name) for name in (b"student\xff", b"report\xfe.html")]
    student = evaluation(tmp_path / names[0], {"a": 0, "b": 2})
    page = write_report([student, training_run(tmp_path / "train")], tmp_path / names[1])
    text = page.with_suffix(".md").read_text()
    linked = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert linked
    for address in [*linked, *re.findall(r"\(([^()]*_episodes\.html)#", text)]:
        assert (page.parent / os.fsdecode(unquote_to_bytes(address))).is_file()


@pytest.mark.parametrize(("folder", "message"), [("none", "no such folder"), (".", "is not a run")])
def test_what_is_no_run(tmp_path: Path, folder: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write_report([tmp_path / folder])


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="pathlib passes over what it cannot list")
def test_a_folder_that_cannot_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(20):  # together longer than any path that the system takes
        os.mkdir("x" * 250)
        os.chdir("x" * 250)
    with pytest.raises(UsageError, match=r"cannot be searched: .*: File name too long"):
        write_report([tmp_path])


def test_a_folder_of_runs_is_no_run(tmp_path: Path) -> None:
    """Its episodes are of several policies, or of one that learned: a common pass@k would mean nothing."""
    runs = [evaluation(tmp_path / name, {"a": 1}) for name in ("student", "teacher")]
    training = training_run(tmp_path / "train")
    evaluation(training / "evaluations" / "before", {"a": 0})
    with pytest.raises(UsageError) as refused:
        write_report([tmp_path])
    assert str(refused.value).endswith("; name those to report: " + ", ".join(map(str, [*runs, training])))
    assert read_run(training).kind == "training"
    (training / "metrics.jsonl").unlink()  # as before its first step
    assert read_run(training).folder == training


@pytest.mark.usefixtures("without_matplotlib")
def test_transcripts_that_cannot_be_read_are_counted_and_the_first_is_explained(tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text("nonsense\n{}\n")
    note = r"2 transcripts could not be read; first: .*a\.jsonl: not a transcript"
    with pytest.raises(UsageError, match=f"no transcript of a finished episode; {note}"):
        write_report([tmp_path])
    record(folder, [final_turn(1, "x")], graded=score(True))
    page = write_report([tmp_path])
    for path in (page, page.with_suffix(".md")):
        assert re.search(note, path.read_text()), path


@pytest.mark.sampled(1)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e999"])
def test_numbers_that_are_not_finite_are_unknown(tmp_path: Path, value: str) -> None:
    path = record(tmp_path / "transcripts", [final_turn(1, "x")], graded=score(False, seconds=2.5))
    path.write_text(re.sub(r'"(seconds|reward)": [\d.]+', rf'"\1": {value}', path.read_text()))
    page = write_report([tmp_path])
    assert not re.search(r"\b(nan|inf)\b", page.with_suffix(".md").read_text())
    assert dict(side_by_side([read_run(tmp_path)])).keys().isdisjoint({"reward"})


def test_a_run_without_a_verdict(tmp_path: Path) -> None:
    result = EpisodeResult(problem_id="a", sample=0, category=3, difficulty="easy", seed=1, fault="SandboxLost: gone")
    (tmp_path / "results.jsonl").write_text(result.model_dump_json() + "\n")
    page = write_report([tmp_path])
    assert "SandboxLost: gone" in page.read_text()
    assert dict(side_by_side([read_run(tmp_path)]))["machine faults"] == ["1"]


def test_scores_of_transcripts_are_scores(tmp_path: Path) -> None:
    record(tmp_path / "transcripts", [final_turn(1, "x")], graded=score(True), category=16)
    record(tmp_path / "transcripts", [final_turn(1, "x")])  # cut off: no result
    for error in ("CancelledError: ", "LimitReached: --max-cost is reached"):  # nor of these
        end = End(stop_reason="error", turns=1, seconds=1.0, error=error)
        stopped = record(tmp_path / "transcripts", [final_turn(1, "x")], end=end)
        assert summary(read_transcript(stopped))["outcome"] == "cut off"
    [result] = read_run(tmp_path).results
    assert isinstance(result.score, Score)
    assert (result.category, result.difficulty, result.passed) == (16, "easy", True)


def test_a_training_run_is_read_one_episode_at_a_time_and_has_no_pass_at_k(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run has gigabytes of transcripts, and thousands of episodes of a problem, each of which is a k."""
    run = training_run(tmp_path / "run")
    for _ in range(4):
        record(run / "transcripts", [final_turn(1, "x")], graded=score(True))
    read, kept = list[weakref.ref[Transcript]](), list[int]()

    def noted(files: Iterable[Path], unreadable: list[str]) -> Iterator[Transcript]:
        for transcript in each_readable(files, unreadable):
            read.append(weakref.ref(transcript))
            yield transcript
            del transcript
            kept.append(sum(reference() is not None for reference in read))

    monkeypatch.setattr("rtl_agent_gym.evaluation.report.run.each_readable", noted)
    found = read_run(run)
    assert kept == [1] * 4
    assert [result.sample for result in found.results] == [0, 1, 2, 3]
    assert found.summary.pass_at == {}
