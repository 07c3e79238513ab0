"""SIGKILL at a random moment: no container stays, transcripts can be read, the same command goes on to the same end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.evaluation import read_results
from tests.arbiter import ARBITER
from tests.sandboxes.providers import owned, programs

from .moments import Moment
from .processes import EVAL, ROOT, killed, lines, started, transcripts, wait_for

pytestmark = pytest.mark.docker
PROBLEMS = (ARBITER, "cvdp_agentic_rtlgym_gray_counter_0001")
OPTIONS = [word for name in PROBLEMS for word in ("--problem", name)]
OPTIONS += ["-n", "3", "--max-turns", "3", "--command-timeout", "5", "--concurrency", "2", "--json"]
RUNS = {
    "at any moment": ["--policy", "random", "--weights", "proxy"],
    "while hidden tests run": ["--policy", "golden", "--no-cache"],
}


def finished(folder: Path, log: Path, more: list[str]) -> dict[str, Any]:
    """Run an evaluation to its end; returns its summary."""
    with started([*EVAL, "--out", str(folder), *OPTIONS, *more], log) as process:
        assert process.wait(400) == 0, log.read_text()
    found = json.loads((folder / "summary.json").read_text())
    assert isinstance(found, dict)
    return found


def simulates(owner: int) -> bool:
    """Whether a simulation runs in one of a process's sandboxes: the policy itself starts none."""
    return any("vvp" in program for program in programs(owner))


def verdicts(folder: Path) -> list[tuple[Any, ...]]:
    found = sorted(read_results(folder), key=lambda result: result.key)
    return [(r.key, r.seed, r.turns, r.malformed, r.stop_reason, r.cause, r.score and r.score.reward) for r in found]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", list(RUNS))
def test_an_evaluation_that_is_killed_goes_on_to_the_same_result(tmp_path: Path, moment: Moment, when: str) -> None:
    whole, cut, log = tmp_path / "whole", tmp_path / "cut", tmp_path / "log"
    more, in_grading = RUNS[when], when == "while hidden tests run"
    expected = finished(whole, log, more)
    after, pause = moment.number(0, 2 if in_grading else 5), moment.within(0, 0.5)
    with started([*EVAL, "--out", str(cut), *OPTIONS, *more], log) as process:
        wait_for(lambda: lines(cut / "results.jsonl") >= after and any(cut.glob("transcripts/*")), process=process)
        if in_grading:
            wait_for(lambda: simulates(process.pid), process=process)
        else:
            time.sleep(pause)
        killed(process)
    before = read_results(cut)
    assert len(before) < 6 or not (cut / "summary.json").exists()
    assert transcripts(cut)
    found = finished(cut, log, more)
    assert f"{len(before)} of 6 episodes are saved already" in log.read_text() or not before
    assert not owned(process.pid, every=True)
    assert verdicts(cut) == verdicts(whole)
    for name in ("pass_at", "overall", "by_category", "causes"):
        assert found[name] == expected[name]


STEPS = 10
JOB = [
    sys.executable,
    "-m",
    "rtl_agent_gym.demo.jobs",
    "1problem",
    "held_out=none",
    "eval_episodes=0",
    f"num_steps={STEPS}",
]
JOB += ["group_size=2", "engine=local"]
METRICS = (
    "step",
    "env/all/reward/total",
    "env/all/total_episodes",
    "env/all/tests_passed",
    "progress/lag",
    "teacher_kl",
)


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: pytest.approx(row[name], abs=1e-4) for name in METRICS} for row in found]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_trainer_that_is_killed_goes_on_to_the_same_metrics(tmp_path: Path, moment: Moment) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tinker_cookbook")
    whole, cut, log = tmp_path / "whole", tmp_path / "cut", tmp_path / "log"
    done = subprocess.run([*JOB, f"log_path={whole}"], cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    steps, pause = moment.number(0, STEPS // 2), moment.within(0, 2)
    with started([*JOB, f"log_path={cut}"], log, PYTHONUNBUFFERED="1") as process:
        wait_for(lambda: lines(cut / "metrics.jsonl") >= steps and bool(owned(process.pid)), 400, process)
        time.sleep(pause)
        killed(process)
    assert lines(cut / "metrics.jsonl") < STEPS
    transcripts(cut)
    done = subprocess.run([*JOB, f"log_path={cut}"], cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not owned(process.pid, every=True)
    assert transcripts(cut)
    expected = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [{name: row[name] for name in METRICS} for row in expected] == rows(cut)
