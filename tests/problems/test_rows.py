"""Every way a row can be bad is one error that names file, line, field, and what was expected."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.rows import problem_row
from rtl_agent_gym.problems.validation import missing_here
from tests.problems.conftest import Row, WriteRows, changed, with_files


def load_one(path: Path) -> Problem:
    (problem,) = load_problems(path)
    return problem


def refusal(path: Path) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        load_problems(path)
    assert "\n" not in str(caught.value)
    return caught.value


def without(row: Row, *keys: str) -> Row:
    row = copy.deepcopy(row)
    place = row
    for key in keys[:-1]:
        place = place[key]
    del place[keys[-1]]
    return row


def test_an_agentic_row(agentic_row: Row, write_rows: WriteRows) -> None:
    problem = load_one(write_rows(agentic_row))
    assert problem.id == "cvdp_agentic_tiny_0001"
    assert (problem.category, problem.difficulty, problem.agentic) == (4, "easy", True)
    assert problem.system_message == "Work carefully."
    assert problem.context == agentic_row["context"]
    assert problem.targets == ("rtl/tiny.sv",)
    assert problem.harness == agentic_row["harness"]
    assert problem.golden == {"rtl/tiny.sv": "module tiny(input a, output y);\n  assign y = ~a;\nendmodule\n"}
    assert problem.unscorable is None


def test_a_withheld_solution_is_no_golden(agentic_row: Row, nonagentic_row: Row, write_rows: WriteRows) -> None:
    withheld = changed(nonagentic_row, "output", "context", "rtl/tiny.sv", value="")
    for row in (with_files(agentic_row, patch={"rtl/tiny.sv": ""}), withheld):
        problem = load_one(write_rows(row))
        assert problem.golden is None
        assert problem.targets == ("rtl/tiny.sv",)


def test_a_patch_may_make_a_new_file(agentic_row: Row, write_rows: WriteRows) -> None:
    row = with_files(agentic_row, patch={"rtl/new.sv": "@@ -0,0 +1 @@\n+module new;endmodule\n"})
    assert (load_one(write_rows(row)).golden or {})["rtl/new.sv"] == "module new;endmodule\n"


def test_a_nonagentic_row(nonagentic_row: Row, write_rows: WriteRows) -> None:
    problem = load_one(write_rows(nonagentic_row))
    assert (problem.category, problem.difficulty, problem.agentic) == (3, "medium", False)
    assert problem.targets == ("rtl/tiny.sv",)
    assert problem.golden == {"rtl/tiny.sv": "module tiny;\nendmodule\n"}
    assert "docker-compose.yml" in problem.harness
    assert problem.unscorable is None


@pytest.mark.parametrize(
    ("category", "words"), [("cid006", ""), ("cid008", ""), ("cid009", "judge model"), ("cid010", "judge model")]
)
def test_comprehension_rows_ask_for_text(category: str, words: str, nonagentic_row: Row, write_rows: WriteRows) -> None:
    row = nonagentic_row | {
        "categories": [category, "hard"],
        "output": {"response": "Because it is so.", "context": {"docs/x.md": "not asked for"}},
        "harness": {},
    }
    problem = load_one(write_rows(row))
    assert problem.reference_response == "Because it is so."
    assert (problem.asks_text, problem.unscorable, problem.targets, problem.golden) == (True, None, (), None)
    assert (words in str(missing_here(problem))) if words else missing_here(problem) is None
    withheld = row | {"output": {"response": "", "context": {}}}
    assert "no reference" in str(load_one(write_rows(withheld)).unscorable)


def test_a_row_without_harness_cannot_be_scored(agentic_row: Row, write_rows: WriteRows) -> None:
    assert "no harness" in str(load_one(write_rows(changed(agentic_row, "harness", value={}))).unscorable)


def test_commercial_rows_say_what_they_need(agentic_row: Row, write_rows: WriteRows) -> None:
    compose = agentic_row["harness"]["docker-compose.yml"]
    eda = compose.replace("__OSS_SIM_IMAGE__", "__VERIF_EDA_IMAGE__")
    licence = "networks:\n  net:\n    name: __LICENSE_NETWORK__\n    external: true\n"
    external = licence.replace("__LICENSE_NETWORK__", "licnetwork")
    for name, text, need in (
        ("docker-compose.yml", eda, "commercial simulator"),
        ("Dockerfile", "FROM __VERIF_EDA_IMAGE__\n", "commercial simulator"),
        ("docker-compose.yml", compose + licence, "licence server"),
        ("docker-compose.yml", compose + external, "external network licnetwork"),
    ):
        problem = load_one(write_rows(with_files(agentic_row, harness={name: text})))
        assert problem.unscorable is None
        assert need in str(missing_here(problem))


def test_heavy_rows_without_their_bundle_load_but_cannot_be_scored(agentic_row: Row, write_rows: WriteRows) -> None:
    row = agentic_row | {
        "id": "cvdp_agentic_heavy_big-core_0009",
        "context": {"repo": "cvdp_agentic_heavy_big-core", "commit": "abc123"},
        "origin": {"url": "somewhere"},
    }
    problem = load_one(write_rows(row))
    assert problem.context == {}
    assert problem.golden is None
    assert problem.targets == ("rtl/tiny.sv",)
    assert "cvdp_agentic_heavy_big-core at abc123" in str(problem.unscorable)


def test_a_heavy_row_without_its_commit_is_bad(agentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(changed(agentic_row, "context", value={"repo": "x"})))
    assert error.field == "context.commit"


def test_an_error_names_file_line_id_and_field(agentic_row: Row, write_rows: WriteRows) -> None:
    bad = changed(agentic_row, "prompt", value=7) | {"id": "cvdp_agentic_bad_0001"}
    path = write_rows(agentic_row, "", bad)
    error = refusal(path)
    assert (error.source, error.line, error.field) == (str(path), 3, "prompt")
    assert error.problem_id == "cvdp_agentic_bad_0001"
    assert str(error) == f"{path}:3: cvdp_agentic_bad_0001: prompt: expected a string, got a number"


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        *(("agentic_row", field) for field in ("id", "categories", "prompt", "context", "patch", "harness")),
        *(("nonagentic_row", field) for field in ("input", "output", "input.prompt", "input.context", "harness")),
    ],
)
def test_a_missing_field(kind: str, field: str, request: pytest.FixtureRequest, write_rows: WriteRows) -> None:
    error = refusal(write_rows(without(request.getfixturevalue(kind), *field.split("."))))
    assert error.field == field
    assert "missing; expected" in error.message


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("id",), 5, "expected a string, got a number"),
        (("id",), "../x", "is not an id"),
        (("id",), "", "is not an id"),
        (("categories",), "cid003", 'expected an array such as ["cid003", "easy"], got a string'),
        (("categories",), ["cid003"], "got 1 entries"),
        (("categories",), ["cid003", "trivial"], "unknown difficulty 'trivial'"),
        (("categories",), ["cid099", "easy"], "unknown category 'cid099'"),
        (("categories",), ["easy", "cid003"], "unknown category 'easy'"),
        (("prompt",), " \n", "the prompt is empty"),
        (("prompt",), None, "the field is missing; expected a string"),
        (("prompt",), "half \ud800", "surrogate"),
        (("system_message",), [], "expected a string, got an array"),
        (("context",), [], "expected an object of file path to text, got an array"),
        (("context",), {"rtl/x": "", "rtl/x/y.sv": ""}, "'rtl/x' is a file"),
        (("patch",), None, "the field is missing; expected an object of file path to diff body"),
        (("patch",), True, "expected an object of file path to diff body, got a boolean"),
        (("harness",), "x", "expected an object of file path to text, got a string"),
        (("harness",), {"src/.env": ""}, "docker-compose.yml is missing"),
    ],
)
def test_a_mistyped_field(
    keys: tuple[str, ...], value: object, message: str, agentic_row: Row, write_rows: WriteRows
) -> None:
    error = refusal(write_rows(changed(agentic_row, *keys, value=value)))
    assert error.field == ".".join(keys)
    assert message in error.message


def test_an_entry_of_the_categories_is_named(agentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(changed(agentic_row, "categories", value=["cid003", 1])))
    assert error.field == "categories[1]"
    assert error.message == "expected a string, got a number"


def test_several_faults_of_one_row_are_one_error(agentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(changed(without(agentic_row, "patch"), "prompt", value=1)))
    assert error.field == "prompt"
    assert "more faults in patch" in error.message


@pytest.mark.parametrize("field", ["context", "patch", "harness"])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x.sv", "rtl/../../x", "rtl\\x.sv", "rtl/x\0.sv", "C:\\x", "", "./x"]
)
def test_a_path_out_of_the_work_folder(field: str, path: str, agentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(changed(agentic_row, field, path, value="")))
    assert error.field == f"{field}.{path}"
    assert "the path" in error.message


@pytest.mark.parametrize("value", [3, {"text": "x"}])
@pytest.mark.parametrize("field", ["context", "patch", "harness"])
def test_a_file_that_is_no_text(field: str, value: object, agentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(changed(agentic_row, field, "rtl/x.sv", value=value)))
    assert error.field == f"{field}.rtl/x.sv"
    assert "expected a string, got" in error.message


def test_a_nested_harness_is_named_as_it_stands(nonagentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(changed(nonagentic_row, "harness", "files", "src/x.py", value=1)))
    assert error.field == "harness.files.src/x.py"
    error = refusal(write_rows(changed(nonagentic_row, "harness", "files", "docker-compose.yml", value="services: {}")))
    assert error.field == "harness.files.docker-compose.yml"


@pytest.mark.parametrize(
    ("compose", "message"),
    [
        ("services: [", "not YAML: line 1"),
        ("services:\n  a: 'x\n", "not YAML: line"),
        ("x: \x01", "not YAML"),
        ("[" * 3000, "not YAML"),
        ("day: 2001-99-99\n", "not YAML"),
        ("user: !!bool maybe\n", "not YAML: a value does not suit its tag"),
        ("services:\n  a:\n    image: x\n    environment: A=b\n", "environment of service 'a' is text"),
        ("", "expected a mapping with services, got nothing"),
        ("- a\n", "expected a mapping with services, got a list"),
        ("version: '3'\n", "expected at least one service below services:, got none"),
        ("services: {}\n", "expected at least one service below services:, got none"),
        ("services: [a]\n", "got a list"),
        ("services:\n  a: pytest\n", "service 'a' is text; expected a mapping"),
        ("services:\n  a:\n", "service 'a' is nothing"),
        ("services:\n  1:\n    image: x\n", "the name of service 1 is a number"),
        ("services:\n  a:\n    command: x\n", "service 'a' names neither image nor build"),
        ("services:\n  a:\n    image: x\n  a:\n    image: y\n", "the key 'a' is repeated"),
        ('services:\n  a:\n    image: x\n    command: "a\\0"\n', "line 4, column 14: a value contains a NUL character"),
        (
            "services:\n  a:\n    image: __SIM_IMAGE__\n",
            "unknown template __SIM_IMAGE__; did you mean __OSS_SIM_IMAGE__",
        ),
    ],
)
def test_a_bad_compose_file(compose: str, message: str, agentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(changed(agentic_row, "harness", "docker-compose.yml", value=compose)))
    assert error.field == "harness.docker-compose.yml"
    assert message in error.message


def test_templates_are_those_of_compose_files_and_dockerfiles(agentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(with_files(agentic_row, harness={"Dockerfile": "FROM __MY_IMAGE__\n"})))
    assert error.field == "harness.Dockerfile"
    assert "unknown template __MY_IMAGE__" in error.message
    runner, dockerfile = "if __name__ == '__MAIN__': pass", "FROM __OSS_SIM_IMAGE__\nRUN rm -r __pycache__\n"
    row = with_files(agentic_row, harness={"src/test_runner.py": runner, "Dockerfile": dockerfile})
    assert load_one(write_rows(row)).unscorable is None


def test_a_patch_that_does_not_apply(agentic_row: Row, write_rows: WriteRows) -> None:
    row = changed(agentic_row, "context", "rtl/tiny.sv", value="module other;\nendmodule\n")
    error = refusal(write_rows(row))
    assert error.field == "patch.rtl/tiny.sv"
    assert error.line == 1
    assert "hunk 1" in error.message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: "),
        ("module x;", "not JSON: Expecting value at character 1"),
        ("[1]", "expected a JSON object, got an array"),
        ("null", "expected a JSON object, got null"),
        ('{"id": "a", "id": "b"}', "the key 'id' is repeated"),
        ('{"context": {"rtl/x": "", "rtl/x": "1"}}', "the key 'rtl/x' is repeated"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"id": ' + "9" * 5000 + "}", "not JSON that can be read"),
    ],
)
def test_a_line_that_is_no_row(line: str, message: str, agentic_row: Row, write_rows: WriteRows) -> None:
    error = refusal(write_rows(agentic_row, line))
    assert error.line == 2
    assert message in error.message


def test_a_row_survives_json_unchanged(agentic_row: Row, write_rows: WriteRows) -> None:
    text = "β \u2028 \x85 line\r\nend"
    row = changed(agentic_row, "context", "docs/spec.md", value=text)
    assert load_one(write_rows(json.dumps(row, ensure_ascii=False))).context["docs/spec.md"] == text


def aligned(row: Any, other: Any) -> Any:
    """`row` with null for each key that only `other` has, at every depth."""
    if not isinstance(row, dict) or not isinstance(other, dict):
        return row
    return {key: aligned(row.get(key), other.get(key)) for key in row | other}


def test_null_is_no_value(agentic_row: Row, nonagentic_row: Row, write_rows: WriteRows) -> None:
    """Hugging Face's `datasets` writes each row with the keys of all rows."""
    heavy = agentic_row | {"id": "mine_big_0001", "context": {"repo": "big", "commit": "abc123"}, "patch": {}}
    rows = [agentic_row, nonagentic_row, heavy, with_files(agentic_row, context={"rtl/b.sv": ""}) | {"id": "b"}]
    written = [functools.reduce(aligned, rows, row) for row in rows]
    assert load_problems(write_rows(*written)) == load_problems(write_rows(*rows, name="plain.jsonl"))


def test_only_agentic_problems_have_such_rows(nonagentic_row: Row, write_rows: WriteRows) -> None:
    (problem,) = load_problems(write_rows(nonagentic_row))
    with pytest.raises(UsageError, match="cvdp_copilot_tiny_0001 is not an agentic problem"):
        problem_row(problem)
