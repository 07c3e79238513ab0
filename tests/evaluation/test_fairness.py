"""Rates of fair rows beside those of all rows, and failures for which an unstated demand accounts."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rtl_agent_gym.cli.eval import print_summary, print_unstated
from rtl_agent_gym.evaluation import EpisodeResult, EvaluationConfig, evaluate, summarise
from rtl_agent_gym.evaluation.fairness import Unstated, bare_name, find_unstated
from rtl_agent_gym.policies import ScriptedPolicy
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.problems.notes import Note, Statement
from rtl_agent_gym.scoring.score import Score, TestOutcome

from .recording import command_turn, final_turn, record, score

ROWS = "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
DESIGNS = Path(__file__).parents[1] / "scoring" / "designs"
MONTE_CARLO = "monte_carlo_0006"
LINE = "`timescale 1ns/1ps\n"


def note(name: str, *statements: Statement, right: str = "passes") -> Note:
    return Note.model_validate(
        {"id": name, "digest": "0", "release": "v1", "right": right, "how": "so", "statements": statements}
    )


def wants(*fails: str, part: bool = True, lacks: str = "") -> Statement:
    return Statement(name="w", kind="wants", about="value", text="x", shown="run", fails=fails, part=part, lacks=lacks)


def result(
    name: str, failed: tuple[str, ...] = (), sample: int = 0, fair: bool | None = None, **more: Any
) -> EpisodeResult:
    tests = [TestOutcome(name=test, outcome="failed" if test in failed else "passed") for test in ("a", "b[3]", "c")]
    stages: dict[str, Any] = {"format": 1.0, "syntax": 1.0, "interface": 1.0, "compile": 1.0} | more
    plain: dict[str, Any] = {"category": 3, "difficulty": "easy", "seed": 1}
    plain["stop_reason"] = stages.pop("stop_reason", "completed")
    score = Score(passed=not failed, tests_passed=3 - len(failed), tests_total=3, tests=tests, **stages)
    return EpisodeResult(problem_id=name, sample=sample, score=score, fair=fair, **plain)


def printed(show: Callable[[Console, Any], None], found: Any, width: int = 120) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width), found)
    return file.getvalue()


def test_every_rate_is_given_twice() -> None:
    notes = [note("fair"), note("unfair", wants("a")), note("never", right="impossible")]
    results = [result(one.id, () if one.fair else ("a",), fair=one.fair) for one in notes]
    found = summarise([*results, result("unnoted", ("c",))])
    assert found.overall is not None
    assert (found.overall.passed, found.pass_at[1].value, found.noted) == (0.25, 0.25, 3)
    assert found.fair is not None
    assert found.fair.overall is not None
    assert (found.fair.overall.passed, found.fair.overall.problems, found.fair.pass_at[1].value) == (1.0, 1, 1.0)
    assert (found.fair.by_difficulty["easy"].episodes, found.fair.finished) == (1, 1)
    data = json.loads(json.dumps(found.as_json()))
    assert data["fair"]["pass_at"]["1"]["value"] == 1.0
    text = printed(print_summary, found)
    assert text.index("all rows: episodes") < text.index("fair rows: episodes")
    assert text.index("all rows: pass@k") < text.index("fair rows: pass@k")


def test_a_narrow_terminal_cuts_no_figure() -> None:
    text = printed(print_summary, summarise([result("a"), result("b", ("c",))]), 40)
    assert "…" not in text
    assert re.search(r"\b50\. .*\n.* 0% ", text)  # folded


def test_rates_have_a_decimal() -> None:
    """Otherwise 301 of 302 would be all."""
    results = [result("a", ("c",)), *(result("b", sample=number) for number in range(7))]
    assert "87.5%" in printed(print_summary, summarise(results))


def test_rows_without_notes_have_one_rate() -> None:
    found = summarise([result("unnoted")])
    assert (found.fair, found.noted) == (None, 0)
    assert "rows" not in printed(print_summary, found)
    assert "all of these rows are known to be fair" in printed(print_summary, summarise([result("r", fair=True)]))
    only = summarise([result("r", fair=False)])
    assert only.fair is None
    assert "none of these rows is known to be fair" in printed(print_summary, only)


@pytest.mark.parametrize(
    ("statement", "failed", "listed"),
    [
        (wants("a"), ("a",), True),
        (wants("a", "b"), ("a",), False),  # b would fail, too
        (wants("a", "b"), ("a", "b[3]"), True),
        (wants("a", "b"), ("a", "c"), False),
        (wants("a", "b", "c", part=False), ("a",), False),
        (wants("a", "b", "c", part=False, lacks="x"), ("a", "b[3]", "c"), False),  # without the files nothing is known
        (wants("a"), (), False),
    ],
)
def test_failures_that_an_unstated_demand_accounts_for(
    statement: Statement, failed: tuple[str, ...], listed: bool
) -> None:
    found = find_unstated([result("r", failed)], {"r": note("r", statement)})
    assert bool(found) is listed
    assert bare_name("x.py::test_a[8-3]/m.t") == "x.py::test_a/m.t"


def test_what_fails_for_another_cause_is_not_listed() -> None:
    notes = {"r": note("r", wants("a"))}
    assert find_unstated([result("r", ("a",), compile=0.5)], notes) == []
    assert find_unstated([result("r", ("a",), format=0.5)], notes) == []
    assert find_unstated([result("r", ("a",), violations=["rtl/x.sv:1: $finish"])], notes) == []
    assert find_unstated([result("other", ("a",))], notes) == []
    text = printed(print_unstated, find_unstated([result("r", ("a",))], notes))
    assert "1 episode failed only because of a demand that the task does not state" in text
    assert "r, sample 0: w: x" in text


@pytest.mark.parametrize("end", ["max_turns", "max_tokens", "parse_error", "sandbox_broken"])
def test_an_episode_that_did_not_end_by_itself_is_graded_and_listed(end: str) -> None:
    """Its files would have passed, had the task stated the demand."""
    assert find_unstated([result("r", ("a",), stop_reason=end)], {"r": note("r", wants("a"))}) != []


@pytest.mark.parametrize(
    ("left_out", "listed"),
    [
        ([], True),
        (["verif/wave.vcd: larger than the limit", "rtl/obj_dir/Vtop: larger than the limit"], True),
        (["rtl/big.sv: larger than the limit"], False),
        (["verif/wave.vcd: larger than the limit", "and 1 more"], False),
    ],
)
def test_a_submission_lacks_nothing_where_a_file_was_not_recorded(
    left_out: list[str], listed: bool, tmp_path: Path
) -> None:
    turns = [command_turn(1, "make", "", left_out=left_out), final_turn(2, "done")]
    path = record(tmp_path, turns, graded=score(False), submitted={"rtl/top.sv": "module top; endmodule"})
    played = result("r", ("a",)).model_copy(update={"transcript": path.name})
    assert bool(find_unstated([played], {"r": note("r", wants("a", lacks="`timescale"))}, tmp_path)) is listed


@pytest.mark.docker
async def test_an_episode_that_failed_only_on_a_missing_line(cvdp_data: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_text() for path in (DESIGNS / MONTE_CARLO / "rtl").iterdir()}
    top = "monte_carlo_dsp_monitor_top.sv"
    assert files[top].startswith(LINE)
    files[top] = files[top].removeprefix(LINE)
    script = tmp_path / "script.yaml"
    commands = [f"cat > rtl/{name} <<'END'\n{text}\nEND" for name, text in files.items()]
    script.write_text(json.dumps([{"run": commands}]))
    problems = load_problems(cvdp_data / ROWS, ids=f"cvdp_agentic_{MONTE_CARLO}")
    config = EvaluationConfig(problems=problems, folder=tmp_path / "run", cache=False)
    evaluation = await evaluate(config, ScriptedPolicy(script))
    (demand,) = evaluation.unstated
    assert demand == Unstated(problems[0].id, 0, "timescale", demand.text)
    assert "`timescale" in demand.text
    saved = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert saved["unstated"][0]["demand"] == "timescale"
    assert (saved["passed"], saved["noted"], saved["fair"]) == (0, 1, None)


def test_a_skipped_test_has_not_failed() -> None:
    played = result("r", ("a",))
    assert played.score is not None
    tests = [*played.score.tests[:2], TestOutcome(name="c", outcome="skipped")]
    played = played.model_copy(update={"score": played.score.model_copy(update={"tests": tests})})
    assert find_unstated([played], {"r": note("r", wants("a"))}) != []
