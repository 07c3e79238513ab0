"""The benchmarks: each runs to its end at its smallest size. Documented figures are measured by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "rtl_agent_gym/problems/bundled/problems.jsonl"
PROBLEM = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(600)]


def benchmark(name: str, *options: str) -> str:
    argv = [sys.executable, f"benchmarks/{name}.py", *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(name: str, *options: str) -> Any:
    return json.loads(benchmark(name, *options, "--json"))


def test_the_latency_of_a_step() -> None:
    found = figures("step_latency", "--runs", "20")
    assert all(row["median_ms"] > 0 for row in found["latency"].values())
    assert "env.step" in found["latency"]


def test_the_rendering_of_a_long_episode() -> None:
    rows = figures("rendering", "--turns", "5", "--tokens", "500", "--repeats", "1")
    assert {row["renderer"] for row in rows} == {"qwen3", "gpt_oss"}
    assert {row["ours_datums"] for row in rows} == {1}


def test_the_scoring_of_submissions() -> None:
    found = figures("scoring", "--submissions", "2", "--rounds", "1", "--problem", PROBLEM)
    assert found["problem"] == PROBLEM


def test_the_compatibility_of_a_row() -> None:
    [line] = [line for line in benchmark("compatibility", str(BUNDLED), "--row", PROBLEM).splitlines() if "|" in line]
    assert "passes" in line


def test_the_options_of_the_measure_of_learning() -> None:
    assert "--variant" in benchmark("learning", "--help")
