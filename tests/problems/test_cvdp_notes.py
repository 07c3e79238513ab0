"""Notes on CVDP's rows: which row a note belongs to, what it makes of it, and how rows are selected by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.cvdp_notes import Note, Statement, all_notes, keep_rows, note_of, read_notes, row_digest
from tests.cli import in_process

V102 = "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
EXAMPLES = "cvdp_v1.1.0_example_*.jsonl"
WANTS = Statement(name="a", kind="wants", about="value", text="x", shown="run", fails=("t::one", "t::two"), part=True)
UNSEEN = Statement(name="b", kind="unseen", about="data", text="y", shown="run")


def note(**changes: Any) -> Note:
    fields = {"id": "r", "digest": "0", "release": "v1", "right": "passes", "how": "so"}
    return Note.model_validate(fields | changes)


@pytest.fixture(scope="module")
def rows(cvdp_data: Path) -> list[Problem]:
    return load_problems(cvdp_data / V102)


def test_every_published_row_has_its_note(cvdp_data: Path, rows: list[Problem]) -> None:
    examples = [problem for path in sorted(cvdp_data.glob(EXAMPLES)) for problem in load_problems(path)]
    assert len(examples) == 5  # one of them with its solution, too
    every = [*rows, *examples]
    assert [problem.id for problem in every if note_of(problem) is None] == []
    assert {problem.id for problem in every} == set(all_notes())
    assert len(all_notes()) == 96


def test_a_changed_row_loses_its_note(rows: list[Problem]) -> None:
    row = rows[0]
    assert note_of(row) is not None
    changed: list[dict[str, Any]] = [
        {"prompt": row.prompt + " "},
        {"context": row.context | {"docs/more.md": "x"}},
        {"harness": row.harness | {"src/.env": "x"}},
        {"targets": (*row.targets, "rtl/more.sv")},
        {"id": rows[1].id},
    ]
    for change in changed:
        assert note_of(row.model_copy(update=change)) is None, change
    assert note_of(row.model_copy(update={"golden": {"rtl/x.sv": "module x; endmodule\n"}})) is not None
    assert row_digest(row) != row.digest


def test_a_problem_of_ours_has_none() -> None:
    assert {note_of(problem) for problem in load_problems("bundled")} == {None}


@pytest.mark.parametrize(
    ("changes", "rating", "fair", "sound"),
    [
        ({}, "sound", True, True),
        ({"statements": [UNSEEN]}, "weak", True, False),
        ({"statements": [WANTS, UNSEEN]}, "unfair", False, False),
        ({"right": "impossible"}, "impossible", False, False),
        ({"right": "unknown"}, "unknown", False, False),
    ],
)
def test_what_a_note_makes_of_its_row(changes: dict[str, Any], rating: str, fair: bool, sound: bool) -> None:
    found = note(**changes)
    assert (found.rating, found.fair, found.sound) == (rating, fair, sound)


def test_a_demand_explains_failures_only_where_something_else_could_have_failed() -> None:
    assert WANTS.explains({"t::one"}, None)
    assert not WANTS.explains({"t::one", "t::three"}, None)
    assert not WANTS.explains(set(), None)
    assert not UNSEEN.explains({"t::one"}, None)
    everything = WANTS.model_copy(update={"part": False})
    assert not everything.explains({"t::one"}, {"rtl/x.sv": "module x; endmodule"})
    named = everything.model_copy(update={"lacks": r"\bstate_ff\b"})
    assert named.explains({"t::one"}, {"rtl/x.sv": "reg state_ff2;"})
    assert not named.explains({"t::one"}, {"rtl/x.sv": "reg state_ff;"})
    assert not named.explains({"t::one"}, None)  # the files are unknown


def test_rows_are_selected(rows: list[Problem]) -> None:
    notes = all_notes()
    fair = keep_rows(rows, "fair")
    sound = keep_rows(rows, "sound")
    assert 0 < len(sound) < len(fair) < len(rows) == len(keep_rows(rows, "all"))
    assert [problem for problem in rows if notes[problem.id].fair] == fair
    assert all(notes[problem.id].rating == "sound" for problem in sound)
    assert [problem.id for problem in load_problems(rows, rows="sound")] == [problem.id for problem in sound]


def test_a_selection_that_leaves_nothing_says_why() -> None:
    with pytest.raises(
        UsageError, match=r"none of the \d+ selected problems is known to be fair: 0 of them have notes"
    ):
        load_problems("bundled", rows="fair")
    with pytest.raises(UsageError, match="choose one of all, fair, sound"):
        load_problems("bundled", rows="good")  # type: ignore[arg-type]


def test_a_file_that_holds_no_notes(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text(json.dumps({"rows": [{"id": "r"}]}))
    with pytest.raises(ProblemError, match=r"notes\.json.*not a file of notes.*benchmarks/compatibility\.py"):
        read_notes(path)


def test_list_and_show_print_the_notes(cvdp_data: Path) -> None:
    source = str(cvdp_data / V102)
    listed = in_process.call("problems", "list", "--problems", source)
    assert listed.returncode == 0, listed.stderr
    (line,) = [line for line in listed.stdout.splitlines() if "monte_carlo_0006" in line]
    assert "unfair" in line
    shown = in_process.call("problems", "show", "cvdp_agentic_monte_carlo_0006", "--problems", source)
    assert "row: unfair" in shown.stdout
    assert "demanded, but not stated: a clock of 7 and one of 13 ns" in shown.stdout
    assert "not seen by the tests: data" in shown.stdout
    assert "[shown by a run]" in shown.stdout
    found = in_process.call("problems", "list", "--problems", source, "--fair-only", "--json")
    fair = {row["id"]: row["note"]["rating"] for row in json.loads(found.stdout)}
    assert set(fair.values()) == {"sound", "weak"}
    assert len(fair) == sum(one.fair for one in all_notes().values() if one.release == "v1.0.2")


def test_fair_only_without_a_fair_row_is_wrong_usage() -> None:
    for command in (["problems", "list"], ["eval", "--policy", "golden"]):
        done = in_process.call(*command, "--problems", "bundled", "--fair-only")
        assert done.returncode == 2
        assert "is known to be fair" in done.stderr
