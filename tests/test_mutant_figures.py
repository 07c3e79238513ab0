"""``benchmarks/mutants.py``: faults of the machine, the published figures, and the tables made from them."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rtl_agent_gym.errors import SandboxLost, UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.problems.notes import MutationScore, read_notes
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.sources.mutants.grading import Count, MutantGrader
from rtl_agent_gym.sources.mutants.mutant import VerdictStore
from tests.arbiter import ARBITER

DOOR, GRAY = "cvdp_agentic_door_lock_0001", "cvdp_agentic_binary_to_gray_0003"


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    return import_module("mutants")


def test_a_line_that_was_cut_off_costs_no_other_one(mutants: ModuleType, tmp_path: Path) -> None:
    results, whole = tmp_path / "results.jsonl", json.dumps(row(DOOR))
    for cut in (len(whole) // 2, whole.rindex("}")):
        results.write_text(f"{whole}\n{whole[:cut]}")
        mutants.append_row(results, row(GRAY))
        assert [found["id"] for found in mutants.read_rows(results)] == [DOOR, GRAY]


@pytest.fixture
def published(mutants: ModuleType) -> Any:
    return json.loads(mutants.ASSET.read_text())


def row(id_: str, *, source: str = "rows.jsonl", limit: int = 8, killed: int = 3, digest: str = "d") -> dict[str, Any]:
    """What the benchmark notes of a row."""
    total = {"killed": killed, "survived": 1, "proved": 0, "invalid": 0}
    survivor = {"operator": "edge", "path": "rtl/m.sv", "line": 2, "diff": "-secret", "equivalence": "differs"}
    strength = {"problem_id": id_, "mutants": 9, "total": total, "operators": {"edge": total}}
    strength["survivors"] = [survivor | {"steps": 0, "why": ""}]
    return {"source": source, "id": id_, "design": "x", "limit": limit, "seed": 0, "row": digest, "strength": strength}


def error(id_: str) -> dict[str, Any]:
    place = {key: value for key, value in row(id_).items() if key != "strength"}
    return place | {"error": "its own tests reject the reference solution"}


def test_the_page_and_the_notes_are_those_of_the_published_figures(mutants: ModuleType, published: Any) -> None:
    page, notes = mutants.PAGE.read_text(), read_notes(mutants.NOTES)
    assert mutants.page_with(page, published) == page
    assert mutants.with_strengths(notes, published) == notes
    changed = published | {DOOR: mutants.figure(row(DOOR, digest=published[DOOR]["row"]))}
    assert mutants.page_with(page, changed) != page
    assert mutants.with_strengths(notes, changed) != notes


def test_new_rows_are_added_to_the_published_ones(mutants: ModuleType, published: Any) -> None:
    """From several files of CVDP, and however few of them the results have."""
    known = mutants.digests(read_notes(mutants.NOTES))
    few = {one: figures for one, figures in published.items() if one not in (DOOR, GRAY)}
    limit = published[DOOR]["limit"]
    rows = [row(one, source=f"{one}.jsonl", limit=limit, digest=published[one]["row"]) for one in (DOOR, GRAY)]
    found = mutants.with_measured(few, rows, known)
    assert {*found} == {*published}
    assert all(found[one] == few[one] for one in few)
    assert "secret" not in json.dumps(found)
    tables, before = (mutants.tables(mutants.by_table(one)["cvdp"]) for one in (found, few))
    assert len(tables["problems"].splitlines()) == len(before["problems"].splitlines()) + 2
    assert "| `door_lock_0001` | 9 | 3 | 1 | 0 | 0 | 75% |" in mutants.page_with(mutants.PAGE.read_text(), found)
    scores = {note.digest: note.strength for note in mutants.with_strengths(read_notes(mutants.NOTES), found)}
    assert scores[found[DOOR]["row"]] == scores[found[GRAY]["row"]] == MutationScore(killed=3, counted=4)


def test_what_is_measured_is_written_into_page_figures_and_notes(
    mutants: ModuleType, published: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {note.digest: note for note in read_notes(mutants.NOTES)}
    for name in ("PAGE", "ASSET", "NOTES"):
        monkeypatch.setattr(mutants, name, Path(shutil.copy(getattr(mutants, name), tmp_path)))
    door, gray, bundled = (published[name] for name in (DOOR, GRAY, ARBITER))
    nothing = row(GRAY, limit=gray["limit"], killed=0, digest=gray["row"])
    nothing["strength"]["total"]["survived"] = 0
    of_ours = row(ARBITER, source="bundled", limit=bundled["limit"])
    mutants.write([row(DOOR, limit=door["limit"], digest=door["row"]), nothing, of_ours])
    after = {note.digest: note for note in read_notes(mutants.NOTES)}
    assert after[door["row"]].strength == MutationScore(killed=3, counted=4)
    assert after[gray["row"]].strength is None  # nothing that counts is left
    assert {digest for digest, note in before.items() if after[digest] != note} == {door["row"], gray["row"]}
    written = json.loads(mutants.ASSET.read_text())
    assert {name for name in written if written[name] != published.get(name)} == {DOOR, GRAY, ARBITER}
    assert "| `door_lock_0001` | 9 | 3 | 1 | 0 | 0 | 75% |" in mutants.PAGE.read_text()


def test_the_last_measurement_of_a_row_counts_and_an_error_replaces_none(mutants: ModuleType) -> None:
    rows = [row(DOOR, killed=1), row(DOOR, killed=2), error(DOOR), error(GRAY)]
    found = mutants.with_measured({}, rows, {DOOR: {"d": DOOR}, GRAY: {"d": GRAY}})
    assert Count.model_validate(found[DOOR]["total"]).killed == 2
    assert found[GRAY] == {"error": "its own tests reject the reference solution"}
    assert "`binary_to_gray_0003`" not in mutants.tables(found)["problems"]
    old = {"digest": "d", "strength": MutationScore(killed=1, counted=1)}
    notes = [note.model_copy(update=old) for note in read_notes(mutants.NOTES)]
    kept = {note.id: note.strength for note in mutants.with_strengths(notes, found)}
    assert (kept[GRAY], kept[DOOR]) == (MutationScore(killed=1, counted=1), MutationScore(killed=2, counted=3))
    assert "total" in mutants.with_measured(found, [row(GRAY)], {DOOR: {"d": DOOR}, GRAY: {"d": GRAY}})[GRAY]


def test_releases_of_a_row_have_figures_and_tables_of_their_own(mutants: ModuleType, published: Any) -> None:
    notes = read_notes(mutants.NOTES)
    known, limit = mutants.digests(notes), published[DOOR]["limit"]
    old, new = (
        next(digest for digest, name in known[DOOR].items() if ("@" in name) is newer) for newer in (False, True)
    )
    assert known[DOOR][new] == f"{DOOR}@v1.1.0"
    found = mutants.with_measured(published, [row(DOOR, killed=2, limit=limit, digest=new)], known)
    assert found[DOOR] == published[DOOR]
    assert f"{DOOR}@v1.1.0" in mutants.by_table(found)["cvdp v1.1.0"]
    strengths = {note.digest: note.strength for note in mutants.with_strengths(notes, found)}
    assert strengths[new] == MutationScore(killed=2, counted=3)
    assert strengths[old] == {note.digest: note.strength for note in notes}[old]


def test_what_does_not_fit_into_the_tables_is_refused(mutants: ModuleType, published: Any) -> None:
    with pytest.raises(UsageError, match="nothing has been measured"):
        mutants.with_measured(published, [], {})
    with pytest.raises(UsageError, match=r"x_0001 of rows\.jsonl"):
        mutants.with_measured(published, [row("x_0001")], {DOOR: {"d": DOOR}})
    with pytest.raises(UsageError, match="differs from the row that its note is about"):
        mutants.with_measured(published, [row(DOOR, digest="other")], {DOOR: {"d": DOOR}})
    with pytest.raises(UsageError, match=r"--limit .*--limit"):
        mutants.with_measured(published, [row(DOOR, limit=published[DOOR]["limit"] + 1)], {DOOR: {"d": DOOR}})
    with pytest.raises(UsageError, match="rows of bundled were measured"):
        mutants.with_measured(published, [row(ARBITER, source="bundled", limit=published[ARBITER]["limit"] + 1)], {})


class LosesMutants:
    """A scorer that accepts the first files, those of the reference, and loses the containers of all others."""

    def __init__(self) -> None:
        self.graded = 0

    async def score(self, problem: object, files: object, timeout: float) -> Score:
        self.graded += 1
        if self.graded > 1:
            raise SandboxLost("the container is gone")
        return Score(passed=True, tests_passed=1, tests_total=1, format=1, syntax=1, interface=1, compile=1, reward=1)


async def test_a_lost_container_leaves_out_a_row_and_is_no_traceback(
    mutants: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def losing(**options: Any) -> AsyncIterator[MutantGrader]:
        faulty: Any = LosesMutants()
        yield MutantGrader(faulty, faulty, VerdictStore(tmp_path, shipped=False), 2, "sha256:0")

    monkeypatch.setattr(mutants, "mutant_grader", losing)
    results = tmp_path / "results.jsonl"
    options = argparse.Namespace(source="bundled", limit=3, seed=0, workers=2, minutes=1, results=results)
    assert await mutants.measure(load_problems("bundled", ids=ARBITER), options) == 1
    assert capsys.readouterr().err == f"{ARBITER}: the container is gone\n"
    assert mutants.read_rows(results) == []
