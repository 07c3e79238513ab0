from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rtl_agent_gym.cli.options import one_problem
from rtl_agent_gym.cli.problems import problems_app
from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.visible import plural
from tests.cli.in_process import call
from tests.problems.conftest import Row
from tests.problems.conftest import WriteRows as Write


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(problems_app, [str(argument) for argument in arguments])


@pytest.fixture
def source(agentic_row: Row, nonagentic_row: Row, write_rows: Write) -> Path:
    return write_rows(agentic_row, nonagentic_row)


def test_list(source: Path) -> None:
    result = run("list", "--problems", source)
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if "cvdp_agentic_tiny_0001" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "cvdp_agentic_tiny_0001",
        "cid004 RTL modification",
        "easy",
        "rtl/tiny.sv",
        "yes",
        "yes",
    ]
    assert result.output.endswith("2 problems\n")
    assert "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001" in run("list").output


@pytest.mark.parametrize("columns", ["80", "200"])
def test_list_folds_no_word_on_a_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    words = re.split(r"[\s,:│]+", re.sub(r"\x1b\[[0-9;]*m", "", run("list").output))
    for problem in load_problems("bundled"):
        assert {problem.id, problem.difficulty, *problem.targets} <= set(words)
    assert words.count("medium") == sum(problem.difficulty == "medium" for problem in load_problems("bundled"))


def test_list_in_a_narrow_terminal_loses_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", run("list", "--problems", source).output).split())
    assert "cvdp_agentic_tiny_0001 cid004 RTL modification, easy, golden: rtl/tiny.sv" in words


def test_list_says_why_a_row_cannot_be_scored(agentic_row: Row, write_rows: Write) -> None:
    result = run("list", "--problems", write_rows(agentic_row | {"harness": {}}))
    assert "no: the row has no harness" in result.output


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], ["cvdp_agentic_tiny_0001", "cvdp_copilot_tiny_0001"]),
        (["--category", "cid004", "--category", "16"], ["cvdp_agentic_tiny_0001"]),
        (["--difficulty", "medium"], ["cvdp_copilot_tiny_0001"]),
        (["--problem", "cvdp_copilot_tiny_0001"], ["cvdp_copilot_tiny_0001"]),
        (["--difficulty", "hard"], []),
    ],
)
def test_list_as_json_with_filters(filters: list[str], expected: list[str], source: Path) -> None:
    result = run("list", "--problems", source, "--json", *filters)
    listed = json.loads(result.output)
    assert result.output.count("\n") == 1
    assert [entry["id"] for entry in listed] == expected
    assert all("harness" not in entry and "golden" not in entry for entry in listed)


def test_errors_are_left_to_the_main_program(source: Path) -> None:
    assert isinstance(run("list", "--problems", source, "--category", "77").exception, UsageError)
    assert isinstance(run("show", "cvdp_agentic_tini_0001", "--problems", source).exception, UsageError)
    source.write_text("{")
    assert isinstance(run("list", "--problems", source).exception, ProblemError)


def test_show_gives_what_a_solver_gets_and_hidden_parts_only_on_request(source: Path) -> None:
    arguments = ("show", "cvdp_agentic_tiny_0001", "--problems", source)
    output = run(*arguments).output
    for text in ("cid004", "Invert the output of rtl/tiny.sv.", "assign y = a;", "# Tiny", "targets: rtl/tiny.sv"):
        assert text in output
    for text in ("test_runner", "VERILOG_SOURCES", "~a"):
        assert text not in output
    hidden = run(*arguments, "--harness").output
    assert "def test_runner" in hidden
    assert "~a" not in hidden
    solved = run(*arguments, "--golden").output
    assert "assign y = ~a;" in solved
    assert "def test_runner" not in solved


def test_show_leaves_long_lines_whole(agentic_row: Row, write_rows: Write) -> None:
    line = "word " * 100 + "end"
    row = agentic_row | {"prompt": line}
    assert line in run("show", row["id"], "--problems", write_rows(row)).output


def test_show_as_json(source: Path, agentic_row: Row) -> None:
    arguments = ("show", "cvdp_agentic_tiny_0001", "--problems", source, "--json")
    shown = json.loads(run(*arguments).output)
    assert shown["prompt"] == agentic_row["prompt"]
    assert shown["context"] == agentic_row["context"]
    assert shown["targets"] == ["rtl/tiny.sv"]
    assert "harness" not in shown
    assert "golden" not in shown
    assert json.loads(run(*arguments, "--harness").output)["harness"] == agentic_row["harness"]


def test_a_problems_text_cannot_steer_the_terminal(agentic_row: Row, write_rows: Write) -> None:
    row = agentic_row | {"prompt": "a [bold]b[/bold] \x1b[2Jc\x07\x9b31m"}
    output = run("show", row["id"], "--problems", write_rows(row)).output
    assert "a [bold]b[/bold] ⟨U+001B⟩[2Jc⟨U+0007⟩⟨U+009B⟩31m" in output


def test_validate_reports_every_finding(agentic_row: Row, nonagentic_row: Row, write_rows: Write) -> None:
    incomplete = agentic_row | {"harness": {**agentic_row["harness"]}}
    del incomplete["harness"]["src/.env"]
    path = write_rows("{", incomplete, nonagentic_row | {"prompt": 1, "input": 2})
    result = run("validate", "--problems", path)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith(f"{path}:1: not JSON")
    assert lines[1].startswith(f"{path}:3: cvdp_copilot_tiny_0001: input: expected an object")
    assert lines[2].startswith(
        "cvdp_agentic_tiny_0001: harness.docker-compose.yml: service 'direct' names the env_file"
    )
    assert lines[3:] == ["1 problem, 3 findings"]


def test_validate_as_json(agentic_row: Row, write_rows: Write) -> None:
    path = write_rows(agentic_row | {"harness": {}}, '{"id": "x"}')
    result = run("validate", "--problems", path, "--json")
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert report["problems"] == 1
    assert list(report["unscorable"]) == ["cvdp_agentic_tiny_0001"]
    (finding,) = report["findings"]
    assert (finding["source"], finding["line"], finding["field"]) == (str(path), 2, "categories")


def test_validate_one_problem(agentic_row: Row, nonagentic_row: Row, write_rows: Write) -> None:
    path = write_rows("{", agentic_row, nonagentic_row)
    result = run("validate", "--problems", path, "--problem", "cvdp_agentic_tiny_0001")
    assert (result.exit_code, result.output) == (0, "1 problem, 0 findings\n")
    path = write_rows(agentic_row, nonagentic_row | {"input": 1})
    result = run("validate", "--problems", path, "--problem", "cvdp_copilot_tiny_0001")
    assert result.exit_code == 1
    assert result.output.endswith("0 problems, 1 finding\n")


def test_validate_of_a_missing_source_is_wrong_usage(tmp_path: Path) -> None:
    assert isinstance(run("validate", "--problems", tmp_path / "gone.jsonl").exception, UsageError)


def test_the_command_that_lists_the_problems_to_choose_from_can_be_copied() -> None:
    source = "family:timers?count=2&seed=7"
    with pytest.raises(UsageError) as raised:
        one_problem(source, None)
    assert shlex.split(str(raised.value).removesuffix(")"))[-3:] == ["list", "--problems", source]


@pytest.mark.parametrize(("lines", "status"), [([], 0), (["{"], 1)])
def test_the_program_exits_with_the_commands_status(
    lines: list[str], status: int, agentic_row: Row, write_rows: Write
) -> None:
    done = call("problems", "validate", "--problems", str(write_rows(agentic_row, *lines)))
    assert done.returncode == status
    assert done.stdout.endswith(f"1 problem, {plural(status, 'finding')}\n")
