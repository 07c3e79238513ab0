"""The benchmark of what Ray adds to a step runs to its end at its smallest size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_ray_adds_to_a_step() -> None:
    argv = [sys.executable, "benchmarks/remote_step.py", "--rounds", "5", "--at-once", "2", "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    here, there, added = [json.loads(line) for line in done.stdout.splitlines()]
    assert (here["where"], there["where"], added["where"]) == ("this process", "a Ray node", "Ray adds")
    for name in ("step p50, ms", "driver CPU, ms a step"):
        assert 0 < here[name] < there[name]
    assert added == {name: pytest.approx(there[name] - here[name]) for name in here if "ms" in name} | {
        "where": "Ray adds",
        "at once": 2,
    }
