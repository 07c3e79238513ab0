"""The benchmarks: each runs to its end, at its smallest, with figures that can be true. Their sizes are measured by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROBLEM = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(600)]


def benchmark(name: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *options], cwd=ROOT, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(name: str, *options: str) -> list[dict[str, Any]]:
    found = json.loads(benchmark(name, *options, "--json"))
    return found if isinstance(found, list) else [found]


def test_the_latency_of_a_step() -> None:
    [found] = rows("step_latency", "--runs", "3")
    assert found and str(found).count("env.step")


def test_the_rendering_of_a_long_episode() -> None:
    found = rows("rendering", "--turns", "3", "--tokens", "300", "--repeats", "1")
    assert found and all(row for row in found)


def test_the_scoring_of_submissions() -> None:
    assert rows("scoring", "--submissions", "2", "--rounds", "1", "--problem", PROBLEM)


def test_the_compatibility_of_a_row(tmp_path: Path) -> None:
    bundled = ROOT / "rtl_agent_gym/problems/bundled"
    source = next(path for path in sorted(bundled.rglob("*.jsonl")) if PROBLEM in path.read_text())
    lines = benchmark("compatibility", str(source), "--row", PROBLEM).splitlines()
    assert any(PROBLEM in line or "fixed_priority_arbiter_0001" in line for line in lines)


def test_the_measure_of_learning_explains_itself() -> None:
    assert "--variant" in benchmark("learning", "--help")
