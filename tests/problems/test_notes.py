"""Notes on CVDP's rows: which row a note belongs to, what it makes of it, and how rows are selected by it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems import notes as notes_module
from rtl_agent_gym.problems.notes import (
    NOTES,
    TESTBENCH,
    Note,
    Statement,
    all_notes,
    digest_of_testbench,
    keep_rows,
    note_of,
    read_notes,
    row_digest,
    write_notes,
)
from tests.cli import in_process
from tests.cli.in_process import ROOT

FIGURES = ROOT / "docs" / "assets" / "mutants.json"
"""What ``benchmarks/mutants.py`` measured."""

V102 = "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
V110 = "cvdp_v1.1.0_agentic_code_generation_no_commercial.jsonl"
EXAMPLES = "cvdp_v1.1.0_example_*.jsonl"
OF_V102 = {note.id: note for note in all_notes().values() if note.release in ("v1.0.2", "v1.1.0 (example)")}
"""And of the examples."""
WANTS = Statement(name="a", kind="wants", about="value", text="x", shown="run", fails=("t::one", "t::two"), part=True)
UNSEEN = Statement(name="b", kind="unseen", about="data", text="y", shown="run")
CORE = UNSEEN.model_copy(update={"name": "c", "core": True})


def note(**changes: Any) -> Note:
    fields = {"id": "r", "digest": "0", "release": "v1", "right": "passes", "how": "so"}
    return Note.model_validate(fields | changes)


@pytest.fixture(scope="module")
def rows(cvdp_data: Path) -> list[Problem]:
    return load_problems(cvdp_data / V102)


def test_every_published_row_has_its_note(cvdp_data: Path, rows: list[Problem]) -> None:
    examples = [problem for path in sorted(cvdp_data.glob(EXAMPLES)) for problem in load_problems(path)]
    assert len(examples) == 5  # one of them with its solution, too
    newer = load_problems(cvdp_data / V110)
    every = [*rows, *examples, *newer]
    assert [problem.id for problem in every if note_of(problem) is None] == []
    assert {note_of(problem) for problem in newer}.isdisjoint(map(note_of, rows))
    assert Counter(note.release for note in all_notes().values()) == {
        "v1.0.2": 92, "v1.1.0": 92, "v1.1.0 (example)": 4, "verilog-eval": 156, "rtllm": 50
    }  # fmt: skip


def test_releases_share_ids_and_each_row_has_the_note_of_its_own(cvdp_data: Path, rows: list[Problem]) -> None:
    newer = {problem.id: problem for problem in load_problems(cvdp_data / V110)}
    for row in rows:
        old, new = note_of(row), note_of(newer[row.id])
        assert old is not None
        assert new is not None
        assert (old.release, new.release) == ("v1.0.2", "v1.1.0")
        names = {statement.name for statement in new.statements}
        assert names.isdisjoint(new.unshown)
        assert names | set(new.unshown) == {statement.name for statement in old.statements}
    assert len(keep_rows(list(newer.values()), "fair")) > 60


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


def test_a_note_of_another_benchmark_belongs_to_its_id_and_testbench(
    rows: list[Problem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = rows[0].model_copy(update={"id": "adder", "harness": {TESTBENCH: "module tb; endmodule"}})
    note = Note(id="adder", digest=digest_of_testbench(problem), release="other", right="impossible", how="too long")
    write_notes(tmp_path / "notes.json", [note])
    monkeypatch.setattr(notes_module, "SUITE_NOTES", tmp_path / "notes.json")
    forgotten = (notes_module.all_notes, notes_module._noted)
    for known in forgotten:
        known.cache_clear()
    try:
        assert note_of(problem) == note
        assert note_of(problem.model_copy(update={"harness": {**problem.harness, "src/.env": "ours"}})) == note
        assert note_of(problem.model_copy(update={"harness": {TESTBENCH: "module tb;endmodule"}})) is None
        assert note_of(problem.model_copy(update={"id": "adder2"})) is None
    finally:
        for known in forgotten:
            known.cache_clear()


def test_a_problem_of_ours_has_none() -> None:
    assert {note_of(problem) for problem in load_problems("bundled")} == {None}


@pytest.mark.parametrize(
    ("changes", "rating", "fair", "sound"),
    [
        ({}, "sound", True, True),
        ({"statements": [UNSEEN]}, "partial", True, False),
        ({"statements": [UNSEEN, CORE]}, "weak", True, False),
        ({"statements": [WANTS, CORE]}, "unfair", False, False),
        ({"right": "impossible"}, "impossible", False, False),
        ({"right": "unknown"}, "unknown", False, False),
    ],
)
def test_what_a_note_makes_of_its_row(changes: dict[str, Any], rating: str, fair: bool, sound: bool) -> None:
    found = note(**changes)
    assert (found.rating, found.fair, found.sound) == (rating, fair, sound)


def test_a_demand_explains_failures_only_where_something_else_could_have_failed() -> None:
    both = {"t::one", "t::two"}
    assert WANTS.explains(both, None)
    assert not WANTS.explains(both | {"t::three"}, None)
    assert not WANTS.explains(set(), None)
    assert not UNSEEN.explains(both, None)
    everything = WANTS.model_copy(update={"part": False})
    assert not everything.explains(both, {"rtl/x.sv": "module x; endmodule"})
    named = everything.model_copy(update={"lacks": r"\bstate_ff\b"})
    assert named.explains(both, {"rtl/x.sv": "reg state_ff2;"})
    assert not named.explains(both, {"rtl/x.sv": "reg state_ff;"})
    assert not named.explains(both, None)  # the files are unknown


def test_a_demand_that_is_met_explains_nothing() -> None:
    """A decoder with the demanded latency passes one of three tests, so the other two fail for a fault of its own."""
    [latency] = OF_V102["cvdp_agentic_hdbn_codec_0001"].wants
    assert len(latency.fails) == 3
    assert latency.explains(set(latency.fails), None)
    assert not latency.explains(set(latency.fails[:2]), None)
    [names, table] = OF_V102["cvdp_agentic_dynamic_equalizer_0008"].wants
    [imaginary, real] = names.fails
    assert table.fails == names.fails
    assert not table.explains({imaginary}, {"rtl/x.sv": "awgn uu_awgn_real(), uu_awgn_imag();"})
    assert names.explains({real}, {"rtl/x.sv": "awgn noise_real(), uu_awgn_imag();"})  # one of two names is right


TIMESCALES = [
    ("`timescale 1ns/1ps\nmodule x; endmodule", False),
    ("/* by me */ `timescale 1 ns / 100 ps", False),
    ("module x; // `timescale 1ns/1ps\nendmodule", True),
    ("/*\n`timescale 1ns/1ps\n*/ module x; endmodule", True),
    ('initial $display("/*");\n`timescale 1ns/1ps\n// */', False),
    ('initial $display("\n`timescale 1ns/1ps\n', False),  # a string ends with its line
    ("`timescale 1ns/1ns", True),
    ("timeunit 1ns; timeprecision 1ps;", False),
    ("module x; timeunit 1ns / 10fs; endmodule", False),
    ("timeunit 1ns; timeprecision 1ns; // timeprecision 1ps;", True),
    ("/* no end\n`timescale 1ns/1ps", True),
]


@pytest.mark.parametrize(("text", "lacking"), TIMESCALES)
def test_what_a_comment_or_a_string_says_meets_no_demand(text: str, lacking: bool) -> None:
    [timescale] = OF_V102["cvdp_agentic_axis_broadcaster_0001"].wants
    assert timescale.is_lacking({"rtl/other.sv": "module y; endmodule", "rtl/x.sv": text}) is lacking


@pytest.mark.parametrize("unit", ["\n", "/*", '"', '\\"', "`timescale ", "`timescale 1", "//"])
def test_no_submission_holds_up_the_search(unit: str) -> None:
    """As large as a file in a transcript may be: minutes, if the time were quadratic."""
    text = unit * ((256 << 10) // len(unit))
    wants = {one.lacks: one for note in all_notes().values() for one in note.wants if one.lacks}
    for one in wants.values():
        assert one.is_lacking({"rtl/x.sv": text})


def test_rows_are_selected(rows: list[Problem]) -> None:
    notes = OF_V102
    fair, partial, sound = keep_rows(rows, "fair"), keep_rows(rows, "partial"), keep_rows(rows, "sound")
    assert 0 < len(sound) < len(partial) < len(fair) < len(rows) == len(keep_rows(rows, "all"))
    assert [problem for problem in rows if notes[problem.id].fair] == fair
    assert {notes[problem.id].rating for problem in partial} == {"sound", "partial"}
    assert {notes[problem.id].rating for problem in sound} == {"sound"}
    assert [problem.id for problem in load_problems(rows, rows="sound")] == [problem.id for problem in sound]


def test_a_selection_that_leaves_nothing_says_why() -> None:
    with pytest.raises(UsageError, match=r"fair .*14"):
        load_problems("bundled", rows="fair")
    with pytest.raises(UsageError, match="choose one of all, fair, partial, sound"):
        load_problems("bundled", rows="good")  # type: ignore[arg-type]


def test_a_file_that_holds_no_notes(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text(json.dumps({"rows": [{"id": "r"}]}))
    with pytest.raises(ProblemError, match=r"notes\.json.*benchmarks/compatibility\.py"):
        read_notes(path)


def test_list_and_show_print_the_notes(cvdp_data: Path) -> None:
    source = str(cvdp_data / V102)
    listed = in_process.call("problems", "list", "--problems", source)
    assert listed.returncode == 0, listed.stderr
    for name, words in {"monte_carlo_0006": "unfair", "fixed_arbiter_0010": "rejects 5 of 8 mutants"}.items():
        (line,) = [line for line in listed.stdout.splitlines() if name in line]
        assert words in line
    shown = in_process.call("problems", "show", "cvdp_agentic_monte_carlo_0006", "--problems", source)
    assert "rating: unfair" in shown.stdout
    assert "demanded, but not stated: a clock of 7 and one of 13 ns" in shown.stdout
    assert "not seen by the tests (core): data" in shown.stdout
    assert "[shown by a run]" in shown.stdout
    found = in_process.call("problems", "list", "--problems", source, "--fair-only", "--json")
    fair = {row["id"]: row["note"]["rating"] for row in json.loads(found.stdout)}
    assert set(fair.values()) == {"sound", "partial", "weak"}
    assert len(fair) == sum(one.fair for one in all_notes().values() if one.release == "v1.0.2")


@pytest.mark.parametrize(
    "command",
    [
        ["problems", "list", "--problems", "bundled"],
        ["eval", "--policy", "golden", "--problems", "bundled"],
        ["problems", "strength", "--problems", "bundled"],
        ["problems", "mutate", "bundled", "--out", "/nowhere/mutants.jsonl"],
    ],
    ids=" ".join,
)
def test_fair_only_without_a_fair_row_is_wrong_usage(command: list[str]) -> None:
    done = in_process.call(*command, "--fair-only")
    assert done.returncode == 2
    assert "is known to be fair" in done.stderr


def test_the_notes_have_the_strengths_that_were_measured() -> None:
    figures = json.loads(FIGURES.read_text())
    measured = {name: one for name, one in figures.items() if name in OF_V102 and one.get("strength") is not None}
    assert measured
    for name, one in measured.items():
        found, total = OF_V102[name].strength, one["total"]
        assert found is not None, name
        assert (found.killed, found.counted) == (total["killed"], total["killed"] + total["survived"])
        assert found.rate == one["strength"]
    assert {one.id for one in all_notes().values() if one.strength is not None} == set(measured)


def test_the_documentation_lists_the_demands_that_can_never_be_named() -> None:
    """Without a mark in the text of a design, where no test of the row passes."""
    page = (ROOT / "docs" / "compatibility.md").read_text()
    listed = re.sub(r"\s+", " ", page.split("It never names ")[1].split(": these leave no mark")[0])
    silent = {
        (one.name, note.id.removeprefix("cvdp_agentic_"))
        for note in all_notes().values()
        for one in note.wants
        if not one.explains(set(one.fails), {})
    }
    assert set(re.findall(r"`([^`]+)` of `([^`]+)`", listed)) == silent


def test_notes_are_written_as_they_are_read(tmp_path: Path) -> None:
    write_notes(tmp_path / "notes.json", reversed(read_notes(NOTES)))
    assert (tmp_path / "notes.json").read_text() == NOTES.read_text()


IMPOSSIBLE = "cvdp_agentic_phase_rotation_0019"
"""A row without a right design, and so without a strength."""


def test_show_prints_the_strength(cvdp_data: Path) -> None:
    source = str(cvdp_data / V102)
    shown = in_process.call("problems", "show", "cvdp_agentic_fixed_arbiter_0010", "--problems", source)
    assert "strength of its tests: 62% (5 of 8 mutants rejected)" in shown.stdout
    data = in_process.call("problems", "show", "cvdp_agentic_fixed_arbiter_0010", "--problems", source, "--json")
    assert json.loads(data.stdout)["note"]["strength"] == {"killed": 5, "counted": 8}
    unmeasured = in_process.call("problems", "show", IMPOSSIBLE, "--problems", source)
    assert "strength" not in unmeasured.stdout
    assert "strength" not in in_process.call("problems", "list").stdout
