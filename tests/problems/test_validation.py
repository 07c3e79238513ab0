from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.problems import load_problems, validate_problem
from rtl_agent_gym.problems.validation import data_faults, missing_here

Row = dict[str, Any]
Write = Callable[..., Path]
Findings = Callable[[Row], list[str]]


@pytest.fixture
def findings(write_rows: Write) -> Findings:
    def check(row: Row) -> list[str]:
        (problem,) = load_problems(write_rows(row))
        return validate_problem(problem)

    return check


def test_what_a_file_of_rows_holds_has_usable_paths_and_texts(
    agentic_row: Row, nonagentic_row: Row, write_rows: Write
) -> None:
    for problem in (*load_problems("bundled"), *load_problems(write_rows(agentic_row, nonagentic_row))):
        assert list(data_faults(problem)) == []
    outside = problem.model_copy(update={"targets": ("src/x.sv",)})  # one completion may write any file that it must
    assert list(data_faults(outside)) == []
    assert list(data_faults(outside.model_copy(update={"agentic": True}))) != []


def compose(row: Row, old: str, new: str) -> Row:
    row = copy.deepcopy(row)
    text = row["harness"]["docker-compose.yml"]
    assert old in text
    row["harness"]["docker-compose.yml"] = text.replace(old, new)
    return row


def test_right_problems_have_no_findings(agentic_row: Row, nonagentic_row: Row, findings: Findings) -> None:
    assert findings(agentic_row) == []
    assert findings(nonagentic_row) == []


@pytest.mark.parametrize(
    "entry",
    ["src/.env_two", "./src/.env_two", "[./src/.env, ./src/.env_two]", "[{path: src/.env_two, required: true}]"],
)
def test_an_env_file_that_is_not_there(entry: str, agentic_row: Row, findings: Findings) -> None:
    row = compose(agentic_row, "env_file: ./src/.env", f"env_file: {entry}")
    assert findings(row) == [
        "harness.docker-compose.yml: service 'direct' names the env_file src/.env_two, which the harness lacks"
    ]
    row["harness"]["src/.env_two"] = "VERILOG_SOURCES = /code/rtl/tiny.sv\n"
    assert findings(row) == []


def test_an_env_file_with_a_nul_character(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["harness"]["src/.env"] += "X = a\0b\n"
    found = "harness.docker-compose.yml: service 'direct' names the env_file src/.env, which contains a NUL character"
    assert findings(row) == [found]


RUNNER = 'runner.test(hdl_toplevel=os.getenv("TOPLEVEL"), test_module=os.getenv("MODULE"))\n'


@pytest.mark.parametrize(
    ("module", "files", "missing"),
    [
        ("gone", {}, "gone"),
        ("test_tiny", {"src/test_tiny.py": ""}, ""),
        ("test_tiny", {"src/tests/test_tiny.py": ""}, ""),
        ("test_tiny, gone", {"src/test_tiny.py": ""}, "gone"),
        ("tests.test_tiny", {"src/tests/test_tiny.py": ""}, ""),
        ("tests", {"src/tests/__init__.py": ""}, ""),
        ("tests.gone", {"src/tests/test_tiny.py": ""}, "tests/gone"),
        ("cocotbext.axi.tests", {}, ""),  # may be installed
        ("", {}, ""),
        ("gone", {"src/test_runner.py": "def test_runner():\n    os.getenv('MODULE')\n"}, ""),  # not for cocotb
    ],
)
def test_a_module_of_tests_that_is_not_there(
    module: str, files: dict[str, str], missing: str, agentic_row: Row, findings: Findings
) -> None:
    row = copy.deepcopy(agentic_row)
    env = row["harness"]["src/.env"].replace("MODULE = test_tiny", f"MODULE = {module}")
    row["harness"] |= {"src/.env": env, "src/test_runner.py": RUNNER, **files}
    name = missing.replace("/", ".")
    said = f"service 'direct' sets MODULE to {name}, but the harness has no {missing}.py"
    assert findings(row) == ([f"harness.docker-compose.yml: {said}"] if missing else [])
    row = compose(row, "image: __OSS_SIM_IMAGE__", "build: .")
    row["harness"]["Dockerfile"] = "FROM __OSS_SIM_IMAGE__\nCOPY tests /src\n"
    assert findings(row) == []  # it may be there


def test_each_service_is_checked(agentic_row: Row, findings: Findings) -> None:
    second = (
        "  second:\n    image: __OSS_SIM_IMAGE__\n    env_file: src/other.env\n    command: pytest /src/test_two.py\n"
    )
    row = compose(agentic_row, "services:\n", "services:\n" + second)
    assert findings(row) == [
        "harness.docker-compose.yml: service 'second' names the env_file src/other.env, which the harness lacks",
        "harness.docker-compose.yml: service 'second' runs /src/test_two.py, which the harness lacks",
    ]


@pytest.mark.parametrize(
    "command", ["pytest -s /src/gone.py", '/bin/sh -c "pytest /src/gone.py -v"', "[pytest, /src/gone.py]"]
)
def test_a_test_file_that_is_not_there(command: str, agentic_row: Row, findings: Findings) -> None:
    row = compose(agentic_row, "pytest /src/test_runner.py -v", command)
    assert findings(row) == ["harness.docker-compose.yml: service 'direct' runs /src/gone.py, which the harness lacks"]


@pytest.mark.parametrize(
    ("build", "missing"), [("build: .", "Dockerfile"), ("build: {context: src, dockerfile: D}", "src/D")]
)
def test_a_dockerfile_that_is_not_there(build: str, missing: str, agentic_row: Row, findings: Findings) -> None:
    row = compose(agentic_row, "image: __OSS_SIM_IMAGE__", build)
    assert findings(row) == [
        f"harness.docker-compose.yml: service 'direct' is built from {missing}, which the harness lacks"
    ]


def test_a_target_that_no_test_would_compile(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["patch"]["rtl/other.sv"] = "@@ -0,0 +1 @@\n+module other;endmodule\n"
    assert findings(row) == ["patch.rtl/other.sv: neither VERILOG_SOURCES nor the context names this target"]
    row["harness"]["src/.env"] = "VERILOG_SOURCES = ../rtl/tiny.sv /code/rtl/other.sv\n"
    assert findings(row) == []


def test_a_testbench_may_be_asked_for_without_being_compiled(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["patch"]["verif/tb.sv"] = "@@ -0,0 +1 @@\n+module tb;endmodule\n"
    assert findings(row) == []


def test_a_source_that_nothing_provides(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["harness"]["src/.env"] = "VERILOG_SOURCES = /code/rtl/tiny.sv /code/rtl/gone.sv /src/helper.sv\n"
    row["harness"]["src/helper.sv"] = ""
    assert findings(row) == [
        "harness: VERILOG_SOURCES names /code/rtl/gone.sv, which is not in context, targets or the harness's src/"
    ]


def test_a_source_of_the_harness_that_the_tests_do_not_find(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["harness"] |= {"src/.env": "VERILOG_SOURCES = /code/rtl/tiny.sv /code/verif/tb.sv\n", "verif/tb.sv": ""}
    (found,) = findings(row)
    assert "names /code/verif/tb.sv" in found
    row["harness"]["Dockerfile"] = "FROM __OSS_SIM_IMAGE__\nCOPY verif /code/verif\n"
    assert findings(compose(row, "image: __OSS_SIM_IMAGE__", "build: .")) == []


def test_sources_set_in_the_compose_file_count(agentic_row: Row, findings: Findings) -> None:
    extra = "    environment:\n      VERILOG_SOURCES: /code/rtl/gone.sv\n    command:"
    (finding,) = findings(compose(agentic_row, "    command:", extra))
    assert "/code/rtl/gone.sv" in finding
    as_list = "    environment: [VERILOG_SOURCES=/code/rtl/gone.sv]\n    command:"
    assert findings(compose(agentic_row, "    command:", as_list)) == [finding]


@pytest.mark.parametrize("sources", ["/code/rtl/*.sv", ""])
def test_sources_that_only_a_shell_could_tell_are_not_judged(
    sources: str, agentic_row: Row, findings: Findings
) -> None:
    row = copy.deepcopy(agentic_row)
    row["harness"]["src/.env"] = f"VERILOG_SOURCES = {sources}\n"
    assert findings(row) == []


def test_sources_are_those_that_a_service_has(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["harness"]["src/.env"] = "DIR = /code/rtl\nVERILOG_SOURCES = $DIR/tiny.sv\n"
    assert findings(row) == []
    row["harness"]["src/.env"] = "DIR = /code/rtl\nVERILOG_SOURCES = $DIR/tiny.sv $DIR/other.sv\n"
    (found,) = findings(row)
    assert "names /code/rtl/other.sv" in found


def test_a_golden_solution_that_leaves_a_target_out(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["patch"]["verif/tb.sv"] = ""
    assert findings(row) == ["patch.verif/tb.sv: the golden solution lacks this target"]


def test_a_golden_solution_that_empties_a_file(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["patch"]["docs/spec.md"] = "@@ -1 +0,0 @@\n-# Tiny\n"
    assert findings(row) == ["patch.docs/spec.md: the golden solution's file is empty"]


def test_a_target_where_no_solution_may_be(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["patch"]["src/test_runner.py"] = "@@ -0,0 +1 @@\n+pass\n"
    assert findings(row) == [
        "patch.src/test_runner.py: a solution may only change files below rtl/, verif/, docs/",
        "patch.src/test_runner.py: the golden solution changes a file that a solution may not change",
    ]


def test_no_target(agentic_row: Row, nonagentic_row: Row, findings: Findings) -> None:
    assert "patch: names no target file" in findings(agentic_row | {"patch": {}})
    row = copy.deepcopy(nonagentic_row)
    row["output"]["context"] = {}
    assert "output.context: names no target file" in findings(row)


def test_context_that_gives_the_hidden_tests_away(agentic_row: Row, findings: Findings) -> None:
    row = copy.deepcopy(agentic_row)
    row["context"]["verif/hint.py"] = row["harness"]["src/test_runner.py"]
    row["context"]["src/x.py"] = "x"
    assert findings(row) == [
        "context.verif/hint.py: the agent would see a file of the hidden harness",
        "context.src/x.py: this place belongs to the hidden harness",
    ]


def test_a_problem_without_hidden_tests_cannot_be_scored(agentic_row: Row, write_rows: Write) -> None:
    (problem,) = load_problems(write_rows(agentic_row))
    problem = problem.model_copy(update={"harness": {}})
    assert missing_here(problem) == "the problem has no hidden tests"
    assert validate_problem(problem) == []


def test_rows_that_cannot_be_scored_are_not_held_against_their_harness(agentic_row: Row, findings: Findings) -> None:
    row = compose(agentic_row, "__OSS_SIM_IMAGE__", "__VERIF_EDA_IMAGE__")
    del row["harness"]["src/.env"]
    assert findings(row) == []
