"""A short run without an API key: a real student, real containers, the real harness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.training.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "train_distillation_agentic.py"

pytestmark = pytest.mark.docker


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TINKER")}
    return {**kept, "PYTHONPATH": str(ROOT)}


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, str(SCRIPT), f"log_path={folder}", *options]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_student_learns_from_its_teacher(tmp_path: Path, environment: dict[str, str]) -> None:
    options = ("num_steps=12", "group_size=8", "warmup_steps=0", "lr_schedule=constant", "eval_every=0")
    done = subprocess.run(command(tmp_path / "run", *options), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = RunFolder(tmp_path / "run").metrics()

    def mean(part: list[dict[str, Any]], name: str) -> float:
        return sum(row[name] for row in part) / len(part)

    assert len(rows) == 12
    assert mean(rows[-4:], "pass_rate") > mean(rows[:3], "pass_rate") + 0.4, done.stderr
    assert mean(rows[-4:], "teacher_kl") < 0.4 * mean(rows[:3], "teacher_kl"), done.stderr
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
    assert len(list((tmp_path / "run" / "transcripts").glob("*.jsonl"))) == 12 * 8


@pytest.mark.timeout(900)
@pytest.mark.slow  # a whole run; that an interrupted evaluation leaves nothing has a quick test
def test_ctrl_c_leaves_a_report_and_no_containers(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder, "group_size=2", "num_steps=40", "held_out=none"),
        env=environment, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 500
    while not RunFolder(folder).metrics() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "the same command resumes the run" in errors
    assert (folder / "report.html").exists()
    assert RunFolder(folder).checkpoints()
