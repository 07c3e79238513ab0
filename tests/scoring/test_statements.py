"""The statements about CVDP's rows, each shown by a design on the real tests, and the notes that are shipped."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.notes import Note, all_notes
from rtl_agent_gym.scoring import Scorer

from .conftest import EXAMPLES, ROWS
from .test_compatibility import DESIGNS, IMPOSSIBLE, row_id

pytestmark = pytest.mark.docker

WITH_SOLUTIONS = "cvdp_v1.1.0_example_agentic_code_generation_no_commercial_with_solutions.jsonl"
STATEMENTS = Path(__file__).parent / "statements"
WRITTEN = {
    f"{path.stem}: {fields['name']}": (path.stem, number)
    for path in sorted(STATEMENTS.glob("*_[0-9]*.json"))
    for number, fields in enumerate(json.loads(path.read_text()))
    if fields.get("shown") != "read"
}
FIRST = {"cont_adder_0001: everything", "hdbn_codec_0001: decoder latency"}
"""One that a wrong design passes, and one that fails some tests. The others are slow."""


@pytest.fixture(scope="module")
def rows(cvdp_data: Path) -> dict[str, Problem]:
    files = (ROWS, EXAMPLES, WITH_SOLUTIONS)
    found = [problem for file in files for problem in load_problems(cvdp_data / file)]
    return {problem.id.removeprefix("cvdp_agentic_"): problem for problem in found}


@pytest.fixture(scope="module")
def compatibility() -> ModuleType:
    """``benchmarks/compatibility.py``, which writes the notes."""
    return import_module("compatibility")


def shipped(row: str) -> Note:
    [note] = [one for one in all_notes().values() if one.id == row_id(row) and one.release != "v1.1.0"]
    return note


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.slow]) for name in WRITTEN]
)
async def test_a_statement_is_so(
    scorer: Scorer, rows: dict[str, Problem], compatibility: ModuleType, name: str
) -> None:
    row, number = WRITTEN[name]
    written = compatibility.written_statements()[row][number]
    found = await compatibility.try_statement(rows[row], written, scorer)
    assert found == shipped(row).statements[number]


def test_the_shipped_notes_are_those_that_are_written(rows: dict[str, Problem], compatibility: ModuleType) -> None:
    written, needs = compatibility.written_statements(), compatibility.needs()
    assert set(written) | set(needs) <= set(rows)
    names = {"name", "kind", "about", "text", "lacks", "core"}
    for row, problem in rows.items():
        note = shipped(row)
        assert note.digest == compatibility.row_digest(problem)
        assert note.needs == needs.get(row, ())
        told = [one.statement(None).model_dump(include=names) for one in written.get(row, [])]
        assert [one.model_dump(include=names) for one in note.statements] == told
        assert (note.right == "impossible") == (IMPOSSIBLE / row).is_dir()
        known = (DESIGNS / row).is_dir() or (note.right != "unknown" and problem.golden is not None)
        assert (note.right == "passes") == known


def test_a_demand_can_be_told_by_what_a_submission_lacks(rows: dict[str, Problem], compatibility: ModuleType) -> None:
    for row, statements in compatibility.written_statements().items():
        for one in statements:
            if lacks := one.fields.get("lacks"):
                right = compatibility.right_design(rows[row]).values()
                assert any(re.search(lacks, text) for text in right), (row, one.name)
                [written] = [shown for shown in shipped(row).wants if shown.name == one.name]
                assert not written.is_lacking(compatibility.right_design(rows[row])), (row, one.name)
                assert written.is_lacking(one.design(rows[row])), (row, one.name)


def test_no_task_gives_the_names_that_its_tests_want(rows: dict[str, Problem], compatibility: ModuleType) -> None:
    for row, statements in compatibility.written_statements().items():
        task = rows[row].prompt + "\n".join(rows[row].context.values())
        for one in statements:
            if one.fields["about"] == "name":
                tests = "\n".join(rows[row].harness.values())
                for old in one.fields["rename"]:
                    assert re.search(rf"\b{old}\b", tests), (row, old)
                    assert not re.search(rf"\b{old}\b", task), (row, old)


def test_the_tables_of_the_documentation_are_those_of_the_notes(compatibility: ModuleType) -> None:
    text = compatibility.PAGE.read_text(encoding="utf-8")
    assert compatibility.page_with(text, compatibility.read_notes(compatibility.NOTES)) == text
    assert text.count("monte_carlo_0006") >= 3


def test_a_row_that_is_run_again_keeps_its_strength(
    compatibility: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NOTES", "PAGE"):
        monkeypatch.setattr(compatibility, name, Path(shutil.copy(getattr(compatibility, name), tmp_path)))
    measured = shipped("door_lock_0001")
    assert measured.strength is not None
    again = measured.model_copy(update={"strength": None, "how": "again"})
    compatibility.write([again])
    place = (measured.id, measured.release)
    [found] = [note for note in compatibility.read_notes(compatibility.NOTES) if (note.id, note.release) == place]
    assert found == measured.model_copy(update={"how": "again"})
    compatibility.write([again.model_copy(update={"digest": "0" * 64})])  # another row: nothing was measured of it
    [found] = [note for note in compatibility.read_notes(compatibility.NOTES) if (note.id, note.release) == place]
    assert found.strength is None


def test_a_mistake_in_a_statement_is_told(rows: dict[str, Problem], compatibility: ModuleType) -> None:
    fields = {"name": "sum", "kind": "unseen", "about": "data", "text": "the sum"}
    with pytest.raises(UsageError, match=r"adder_0001\.json, 'sum': about: Input should be 'timescale', "):
        compatibility.Written("adder_0001", {**fields, "about": "sums"})
    (written,) = compatibility.written_statements()["cont_adder_0001"]
    [file] = written.design(rows["cont_adder_0001"])
    wrong = compatibility.Written(written.row, {**fields, "edits": [{"file": file, "from": "\n", "to": ""}]})
    with pytest.raises(UsageError, match=r"cont_adder_0001\.json, 'sum': '.n' occurs \d+ times"):
        wrong.design(rows["cont_adder_0001"])


@pytest.mark.slow  # a grading more, of a script that writes
async def test_a_statement_that_is_not_so_is_told(
    scorer: Scorer, rows: dict[str, Problem], compatibility: ModuleType
) -> None:
    (written,) = compatibility.written_statements()["cont_adder_0001"]
    wrong = compatibility.Written(written.row, {**written.fields, "kind": "wants"})
    with pytest.raises(compatibility.Untrue, match="is not so: its design passes"):
        await compatibility.try_statement(rows["cont_adder_0001"], wrong, scorer)
