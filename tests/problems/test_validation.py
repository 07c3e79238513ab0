from __future__ import annotations

from collections.abc import Callable

import pytest

from rtl_agent_gym.problems import load_problems, validate_problem
from rtl_agent_gym.problems.validation import data_faults, missing_here
from tests.problems.conftest import Row, WriteRows, changed, with_files

Findings = Callable[[Row], list[str]]


@pytest.fixture
def findings(write_rows: WriteRows) -> Findings:
    def check(row: Row) -> list[str]:
        (problem,) = load_problems(write_rows(row))
        return validate_problem(problem)

    return check


def test_what_a_file_of_rows_holds_has_usable_paths_and_texts(
    agentic_row: Row, nonagentic_row: Row, write_rows: WriteRows
) -> None:
    for problem in (*load_problems("bundled"), *load_problems(write_rows(agentic_row, nonagentic_row))):
        assert list(data_faults(problem)) == []
    outside = problem.model_copy(update={"targets": ("src/x.sv",)})  # one completion may write any file that it must
    assert list(data_faults(outside)) == []
    assert list(data_faults(outside.model_copy(update={"agentic": True}))) != []


def compose(row: Row, old: str, new: str) -> Row:
    text = row["harness"]["docker-compose.yml"]
    assert old in text
    return with_files(row, harness={"docker-compose.yml": text.replace(old, new)})


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
    assert findings(with_files(row, harness={"src/.env_two": "VERILOG_SOURCES = /code/rtl/tiny.sv\n"})) == []


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
    env = agentic_row["harness"]["src/.env"].replace("MODULE = test_tiny", f"MODULE = {module}")
    row = with_files(agentic_row, harness={"src/.env": env, "src/test_runner.py": RUNNER, **files})
    name = missing.replace("/", ".")
    said = f"service 'direct' sets MODULE to {name}, but the harness has no {missing}.py"
    assert findings(row) == ([f"harness.docker-compose.yml: {said}"] if missing else [])
    built = compose(row, "image: __OSS_SIM_IMAGE__", "build: .")
    copies = {"Dockerfile": "FROM __OSS_SIM_IMAGE__\nCOPY tests /src\n"}
    assert findings(with_files(built, harness=copies)) == []  # it may be there


def test_each_service_is_checked(agentic_row: Row, findings: Findings) -> None:
    second = (
        "  second:\n    image: __OSS_SIM_IMAGE__\n    env_file: src/other.env\n    command: pytest /src/test_two.py\n"
    )
    row = compose(agentic_row, "services:\n", "services:\n" + second)
    assert findings(row) == [
        "harness.docker-compose.yml: service 'second' names the env_file src/other.env, which the harness lacks",
        "harness.docker-compose.yml: service 'second' runs /src/test_two.py, which the harness lacks",
    ]


COMMAND, IMAGE = "pytest /src/test_runner.py -v", "image: __OSS_SIM_IMAGE__"
GONE = "runs /src/gone.py, which the harness lacks"


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (COMMAND, "pytest -s /src/gone.py", GONE),
        (COMMAND, '/bin/sh -c "pytest /src/gone.py -v"', GONE),
        (COMMAND, "[pytest, /src/gone.py]", GONE),
        (IMAGE, "build: .", "is built from Dockerfile, which the harness lacks"),
        (IMAGE, "build: {context: src, dockerfile: D}", "is built from src/D, which the harness lacks"),
    ],
)
def test_a_file_that_a_service_lacks(old: str, new: str, finding: str, agentic_row: Row, findings: Findings) -> None:
    assert findings(compose(agentic_row, old, new)) == [f"harness.docker-compose.yml: service 'direct' {finding}"]


def sources(names: str, **more: str) -> dict[str, dict[str, str]]:
    """A harness that compiles these files."""
    return {"harness": {"src/.env": f"DIR = /code/rtl\nVERILOG_SOURCES = {names}\n", **more}}


def unprovided(name: str) -> list[str]:
    return [f"harness: VERILOG_SOURCES names {name}, which is not in context, targets or the harness's src/"]


OTHER = {"patch": {"rtl/other.sv": "@@ -0,0 +1 @@\n+module other;endmodule\n"}}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (OTHER, ["patch.rtl/other.sv: neither VERILOG_SOURCES nor the context names this target"]),
        (OTHER | sources("../rtl/tiny.sv /code/rtl/other.sv"), []),
        ({"patch": {"verif/tb.sv": "@@ -0,0 +1 @@\n+module tb;endmodule\n"}}, []),  # need not be compiled
        (
            sources("/code/rtl/tiny.sv /code/rtl/gone.sv /src/helper.sv", **{"src/helper.sv": ""}),
            unprovided("/code/rtl/gone.sv"),
        ),
        (sources("/code/rtl/*.sv"), []),  # only a shell could tell
        (sources(""), []),
        (sources("$DIR/tiny.sv"), []),
        (sources("$DIR/tiny.sv $DIR/other.sv"), unprovided("/code/rtl/other.sv")),
        (
            {"harness": {"src/.env": "VERILOG_SOURCES = /code/rtl/tiny.sv\nX = a\0b\n"}},
            [
                "harness.docker-compose.yml: service 'direct' names the env_file src/.env, which contains a NUL "
                "character"
            ],
        ),
        ({"patch": {"verif/tb.sv": ""}}, ["patch.verif/tb.sv: the golden solution lacks this target"]),
        (
            {"patch": {"docs/spec.md": "@@ -1 +0,0 @@\n-# Tiny\n"}},
            ["patch.docs/spec.md: the golden solution's file is empty"],
        ),
        (
            {"patch": {"src/test_runner.py": "@@ -0,0 +1 @@\n+pass\n"}},
            [
                "patch.src/test_runner.py: a solution may only change files below rtl/, verif/, docs/",
                "patch.src/test_runner.py: the golden solution changes a file that a solution may not change",
            ],
        ),
        (
            {"context": {"verif/hint.py": "def test_runner():\n    pass\n", "src/x.py": "x"}},
            [
                "context.verif/hint.py: the agent would see a file of the hidden harness",
                "context.src/x.py: this place belongs to the hidden harness",
            ],
        ),
    ],
)
def test_files_that_do_not_fit_together(
    parts: dict[str, dict[str, str]], expected: list[str], agentic_row: Row, findings: Findings
) -> None:
    assert findings(with_files(agentic_row, **parts)) == expected


def test_a_source_of_the_harness_that_the_tests_do_not_find(agentic_row: Row, findings: Findings) -> None:
    row = with_files(agentic_row, **sources("/code/rtl/tiny.sv /code/verif/tb.sv", **{"verif/tb.sv": ""}))
    assert findings(row) == unprovided("/code/verif/tb.sv")
    copies = {"Dockerfile": "FROM __OSS_SIM_IMAGE__\nCOPY verif /code/verif\n"}
    assert findings(compose(with_files(row, harness=copies), IMAGE, "build: .")) == []


@pytest.mark.parametrize(
    "environment", ["\n      VERILOG_SOURCES: /code/rtl/gone.sv", " [VERILOG_SOURCES=/code/rtl/gone.sv]"]
)
def test_sources_set_in_the_compose_file_count(environment: str, agentic_row: Row, findings: Findings) -> None:
    row = compose(agentic_row, "    command:", f"    environment:{environment}\n    command:")
    assert findings(row) == unprovided("/code/rtl/gone.sv")


def test_no_target(agentic_row: Row, nonagentic_row: Row, findings: Findings) -> None:
    assert "patch: names no target file" in findings(agentic_row | {"patch": {}})
    row = changed(nonagentic_row, "output", "context", value={})
    assert "output.context: names no target file" in findings(row)


def test_a_problem_without_hidden_tests_cannot_be_scored(agentic_row: Row, write_rows: WriteRows) -> None:
    (problem,) = load_problems(write_rows(agentic_row))
    problem = problem.model_copy(update={"harness": {}})
    assert missing_here(problem) == "the problem has no hidden tests"
    assert validate_problem(problem) == []


def test_rows_that_cannot_be_scored_are_not_held_against_their_harness(agentic_row: Row, findings: Findings) -> None:
    row = compose(agentic_row, "__OSS_SIM_IMAGE__", "__VERIF_EDA_IMAGE__")
    del row["harness"]["src/.env"]
    assert findings(row) == []
