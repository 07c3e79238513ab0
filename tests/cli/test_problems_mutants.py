"""``problems strength`` and ``problems mutate`` as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtl_agent_gym.cli.problems_derived import check_out
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.problems.rows import problem_row
from tests.arbiter import ARBITER
from tests.cli.in_process import call

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


def test_mutate_writes_rows_with_their_proof(tmp_path: Path) -> None:
    out = tmp_path / "mutants.jsonl"
    done = call("problems", "mutate", "bundled", "--count", "5", "--out", str(out), XDG_CACHE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "5 problems made of 5 designs written to" in done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for row in rows:
        assert row["proof"]["source"] in {problem.id for problem in load_problems("bundled")}
        assert (row["proof"]["mutant"]["passed"], row["proof"]["reference"]["passed"]) == (False, True)
        assert row["proof"]["mutant"]["failed"]
        assert row["proof"]["image"].startswith("sha256:")
    assert load_problems(out) == load_problems("bundled+mutants?count=5")


@pytest.mark.parametrize("command", [("generate", "bundled"), ("mutate", "bundled", "--count", "1")])
def test_rows_are_written_where_a_tilde_points(command: tuple[str, ...], tmp_path: Path) -> None:
    out, home = tmp_path / "made" / "rows.jsonl", str(tmp_path)
    done = call("problems", *command, "--out=~/made/rows.jsonl", HOME=home, XDG_CACHE_HOME=home)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"written to {out}" in done.stderr
    assert load_problems(out)


@pytest.mark.slow
def test_mutate_grades_what_is_not_known(tmp_path: Path) -> None:
    out = tmp_path / "mutants.jsonl"
    source = "family:registers?count=1&seed=3"
    argv = ("problems", "mutate", source, "--count", "1", "--workers", "1", "--hint", "check", "--out", str(out))
    done = call(*argv, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    [problem] = load_problems(out)
    assert "Of the hidden checks, these fail: `" in problem.prompt
    again = call("problems", "list", "--problems", f"{source}+mutants?count=1", XDG_CACHE_HOME=str(tmp_path))
    assert problem.id in again.stdout


def test_what_takes_a_design_is_refused_without_one(tmp_path: Path) -> None:
    rows = tmp_path / "withheld.jsonl"
    rows.write_text(json.dumps(problem_row(load_problems("bundled")[0]) | {"patch": {"rtl/x.sv": ""}}) + "\n")
    out = str(tmp_path / "out.jsonl")
    for arguments, words in (
        (["mutate", str(rows), "--out", out], "none of its problems has a reference solution"),
        (["strength", "--problems", str(rows)], "give designs with --designs DIR"),
    ):
        done = call("problems", *arguments, XDG_CACHE_HOME=str(tmp_path))
        assert done.returncode == 2
        assert words in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_mutate_tells_why_a_reference_is_no_use(tmp_path: Path) -> None:
    rows = tmp_path / "wrong.jsonl"
    [source] = [problem_row(problem) for problem in load_problems("bundled", ids=ARBITER)]
    [(path, text)] = source["patch"].items()
    rows.write_text(json.dumps(source | {"patch": {path: text.replace("posedge", "negedge")}}) + "\n")
    argv = ("problems", "mutate", str(rows), "--count", "3", "--out", str(tmp_path / "out.jsonl"))
    done = call(*argv, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert f"left out: {ARBITER}: its own tests reject the reference solution: " in done.stderr
    assert f"{rows}: none of its problems has a reference solution" in done.stderr


def test_what_cannot_be_done_is_said_before_any_grading(tmp_path: Path) -> None:
    """And nothing is overwritten."""
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    text = "".join(json.dumps(problem_row(one)) + "\n" for one in load_problems("bundled", ids=ARBITER))
    rows.write_text(text)
    (tmp_path / "designs").mkdir()
    cases: list[tuple[list[str], str]] = [
        ([str(rows), "--out", str(rows)], "is one of the files that the problems are read from"),
        ([str(rows), "--out", str(tmp_path)], "it is a folder"),
        ([str(rows), "--out", str(rows / "x.jsonl")], "cannot be created"),
        ([str(rows), "--out", str(out), "--count", "100"], "have 33 mutants in all"),
        ([str(rows), "--out", str(out), "--count", "10000000"], "1000000"),
        (["bundled+mutants?count=2", "--out", str(out)], "its problems are mutants, which are not mutated again"),
        (["bundled+mutants+mutants", "--out", str(out)], "leave out one +mutants"),
        ([str(rows), "--out", str(out), "--designs=~/designs"], f"{tmp_path}/designs: contains no folder for"),
        ([str(rows), "--out", str(out), "--category", "16"], "none of its problems has a reference solution"),
    ]
    for argv, words in cases:
        done = call("problems", "mutate", *argv, XDG_CACHE_HOME=str(tmp_path / "cache"), HOME=str(tmp_path))
        assert done.returncode == 2, (argv, done.stderr)
        assert words in " ".join(done.stderr.split()), (argv, done.stderr)
    generated = call("problems", "generate", str(rows), "--out", str(rows))
    assert "is one of the files that the problems are read from" in generated.stderr
    assert rows.read_text() == text
    assert not out.exists()


def test_no_problems_are_written_over_the_file_that_they_are_made_of(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    for suffixes in ("", "+mutants?count=3", "+mutants?count=3+verify?kind=checker"):
        with pytest.raises(UsageError, match="is one of the files that the problems are read from"):
            check_out(rows, f"{rows}{suffixes}")


@pytest.mark.slow
def test_strength_shows_rates_and_survivors(tmp_path: Path) -> None:
    argv = ("problems", "strength", "--problem", ARBITER, "--limit", "12")
    done = call(*argv, "--json", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)
    assert found["problem_id"] == ARBITER
    assert sum(found["total"].values()) == 12
    assert found["strength"] == found["total"]["killed"] / (found["total"]["killed"] + found["total"]["survived"])
    assert "together" in done.stderr


@pytest.mark.slow
def test_strength_goes_on_behind_a_row_without_a_design(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    [arbiter] = map(problem_row, load_problems("bundled", ids=ARBITER))
    withheld = arbiter | {"id": "cvdp_agentic_withheld_0001", "patch": dict.fromkeys(arbiter["patch"], "")}
    rows.write_text("".join(json.dumps(row) + "\n" for row in (withheld, arbiter)))
    argv = ("problems", "strength", "--problems", str(rows), "--limit", "1", "--json")
    done = call(*argv, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [row["problem_id"] for row in json.loads(done.stdout)] == [ARBITER]
    assert "left out: cvdp_agentic_withheld_0001: no reference solution" in done.stderr


@pytest.mark.slow
def test_strength_of_fair_rows_only(cvdp_data: Path, tmp_path: Path) -> None:
    source = cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
    fair, unfair = "cvdp_agentic_fixed_arbiter_0010", "cvdp_agentic_axis_broadcaster_0001"
    argv = ("--problems", str(source), "--problem", fair, "--problem", unfair, "--limit", "1", "--json", "--fair-only")
    done = call("problems", "strength", *argv, "--designs", "tests/scoring/designs", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [row["problem_id"] for row in json.loads(done.stdout)] == [fair]
