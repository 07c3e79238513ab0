from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, find_problem, load_problems, scan_problems, validate_problem
from rtl_agent_gym.problems.validation import missing_here
from tests.problems.conftest import Row
from tests.problems.conftest import WriteRows as Write


def make(row: Row, name: str, category: str = "cid004", difficulty: str = "easy") -> Row:
    return row | {"id": f"cvdp_agentic_{name}_0001", "categories": [category, difficulty]}


@pytest.fixture
def rows(agentic_row: Row) -> list[Row]:
    return [
        make(agentic_row, "arbiter", "cid003", "hard"),
        make(agentic_row, "fifo", "cid004", "easy"),
        make(agentic_row, "uart", "cid016", "medium"),
    ]


def names(problems: list[Problem]) -> list[str]:
    return [problem.id.split("_")[2] for problem in problems]


def test_gzip_is_told_by_content(rows: list[Row], write_rows: Write) -> None:
    packed = write_rows(*rows, name="rows.jsonl.gz")
    assert names(load_problems(packed)) == ["arbiter", "fifo", "uart"]
    unnamed = packed.with_name("other.jsonl")
    unnamed.write_bytes(packed.read_bytes())
    assert names(load_problems(str(unnamed))) == ["arbiter", "fifo", "uart"]


def test_a_folder_is_read_in_the_order_of_names(rows: list[Row], write_rows: Write, tmp_path: Path) -> None:
    write_rows(rows[1], name="set/b.jsonl.gz")
    write_rows(rows[0], name="set/a.jsonl")
    (tmp_path / "set" / "notes.txt").write_text("not a problem")
    assert names(load_problems(tmp_path / "set")) == ["arbiter", "fifo"]


def test_a_byte_order_mark_and_blank_lines_do_not_matter(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(rows[0]).encode() + b"\r\n\r\n  \n" + json.dumps(rows[1]).encode())
    assert names(load_problems(path)) == ["arbiter", "fifo"]


def test_problems_that_are_there_pass_through_the_filters(rows: list[Row], write_rows: Write) -> None:
    problems = load_problems(write_rows(*rows))
    assert names(problems) == ["arbiter", "fifo", "uart"]
    assert find_problem(problems, "cvdp_agentic_fifo_0001") is problems[1]
    assert load_problems(problems) == problems
    assert load_problems(tuple(problems), difficulties=["hard"]) == problems[:1]
    assert load_problems([]) == []


def test_entries_that_are_no_problems_are_refused(rows: list[Row]) -> None:
    with pytest.raises(UsageError, match="entry 0 of the problems has the type dict"):
        load_problems(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"ids": ["cvdp_agentic_uart_0001", "cvdp_agentic_arbiter_0001"]}, ["arbiter", "uart"]),
        ({"ids": "cvdp_agentic_uart_0001"}, ["uart"]),
        ({"categories": [3, "cid016"]}, ["arbiter", "uart"]),
        ({"categories": "4"}, ["fifo"]),
        ({"categories": 4}, ["fifo"]),
        ({"categories": ["CID3"]}, ["arbiter"]),
        ({"difficulties": ["easy", "Hard"]}, ["arbiter", "fifo"]),
        ({"difficulties": "medium"}, ["uart"]),
        ({"categories": [3], "difficulties": ["easy"]}, []),
        ({"categories": [12]}, []),
        ({"ids": []}, []),
    ],
)
def test_filters(filters: dict[str, Any], expected: list[str], rows: list[Row], write_rows: Write) -> None:
    assert names(load_problems(write_rows(*rows), **filters)) == expected


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"ids": ["cvdp_agentic_fifos_0001"]}, "did you mean cvdp_agentic_fifo_0001"),
        ({"ids": ["uart"]}, "did you mean cvdp_agentic_uart_0001"),
        ({"ids": ["zzz"]}, "choose one of cvdp_agentic_arbiter_0001, cvdp_agentic_fifo_0001"),
        ({"categories": [99]}, "unknown category 99"),
        ({"categories": ["cid03x"]}, "unknown category 'cid03x'; did you mean .*cid003"),
        ({"difficulties": ["eazy"]}, "unknown difficulty 'eazy'; did you mean easy"),
    ],
)
def test_an_unknown_name_in_a_filter_lists_near_matches(
    filters: dict[str, Any], message: str, rows: list[Row], write_rows: Write
) -> None:
    with pytest.raises(UsageError, match=message):
        load_problems(write_rows(*rows), **filters)


def test_an_id_that_stands_twice_names_both_places(rows: list[Row], write_rows: Write) -> None:
    path = write_rows(rows[0], rows[1], rows[0])
    with pytest.raises(ProblemError) as caught:
        load_problems(path)
    assert (caught.value.source, caught.value.line, caught.value.field) == (str(path), 3, "id")
    assert f"{path}:1" in caught.value.message
    first = write_rows(rows[0], name="set/a.jsonl")
    second = write_rows(rows[1], rows[0], name="set/b.jsonl")
    with pytest.raises(ProblemError) as caught:
        load_problems(first.parent)
    assert str(caught.value).startswith(f"{second}:2: ")
    assert f"{first}:1" in caught.value.message
    problems = load_problems(first)
    with pytest.raises(ProblemError, match=r"entry 1: .*is repeated, here and at entry 0"):
        load_problems([*problems, problems[0]])


def test_invalid_utf8_is_named_with_its_byte(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = json.dumps(rows[0]).encode() + b"\n"
    path.write_bytes(first + b'{"id": "caf\xe9"}\n')
    with pytest.raises(ProblemError) as caught:
        load_problems(path)
    assert caught.value.line == 2
    assert f"at byte {len(first) + 11} of the file (byte 11 of the line)" in caught.value.message


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:30], lambda data: data[:-4], lambda data: data[:40] + bytes([data[40] ^ 0xFF]) + data[41:]],
)
def test_damaged_gzip_data(damage: Callable[[bytes], bytes], rows: list[Row], write_rows: Write) -> None:
    path = write_rows(*rows, name="rows.jsonl.gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ProblemError, match=r"rows\.jsonl\.gz.*damaged gzip data"):
        load_problems(path)


def test_plain_text_that_is_called_gzip(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_text(json.dumps(rows[0]))
    with pytest.raises(ProblemError, match="expected gzip data"):
        load_problems(path)


@pytest.mark.parametrize("data", [b"", b"\n \n", gzip.compress(b"", mtime=0)], ids=["empty", "blank", "empty-gzip"])
def test_a_file_without_problems(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    with pytest.raises(ProblemError, match="the source contains no problem"):
        load_problems(path)


def test_a_scan_goes_on_after_bad_rows(rows: list[Row], write_rows: Write) -> None:
    items = list(scan_problems(write_rows(rows[0], "{", rows[1], {"id": "x"})))
    assert [type(item).__name__ for item in items] == ["Problem", "ProblemError", "Problem", "ProblemError"]


def test_every_row_of_the_official_agentic_file_loads(cvdp_data: Path) -> None:
    problems = load_problems(cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl")
    assert len(problems) == 92
    counts = {number: sum(p.category == number for p in problems) for number in (3, 4, 5, 16)}
    assert counts == {3: 34, 4: 25, 5: 22, 16: 11}
    assert [sum(p.difficulty == name for p in problems) for name in ("easy", "medium", "hard")] == [17, 55, 20]
    assert all(p.unscorable is None and p.golden is None and p.targets for p in problems)
    assert [finding for problem in problems for finding in validate_problem(problem)] == []


def test_every_example_file_loads(cvdp_data: Path) -> None:
    loaded = {path.name: load_problems(path) for path in sorted(cvdp_data.glob("*example*.jsonl"))}
    assert len(loaded) == 5
    missing = {name: str(missing_here(problem)) for name, (problem,) in loaded.items() if missing_here(problem)}
    assert {name.split("example_")[1]: reason.split(" ")[0] for name, reason in missing.items()} == {
        "agentic_code_generation_commercial.jsonl": "its",
        "nonagentic_code_comprehension.jsonl": "answers",
    }


def test_the_official_solution_applies(cvdp_data: Path) -> None:
    name = "cvdp_v1.1.0_example_agentic_code_generation_no_commercial_with_solutions.jsonl"
    (problem,) = load_problems(cvdp_data / name)
    assert problem.golden is not None
    text = problem.golden["rtl/fixed_priority_arbiter.sv"]
    assert text.startswith("`timescale 1ns / 1ps\nmodule fixed_priority_arbiter(\n")
    assert text.endswith("\nendmodule\n")
    assert len(text.splitlines()) == 79
    assert validate_problem(problem) == []
