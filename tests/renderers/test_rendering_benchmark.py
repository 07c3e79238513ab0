"""The benchmark runs, and its episode is one training example our way and several the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_compares_both_ways() -> None:
    command = [
        sys.executable,
        "benchmarks/rendering.py",
        "--turns",
        "10",
        "--tokens",
        "3000",
        "--repeats",
        "1",
        "--json",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["renderer"], row["turns"]) for row in rows] == [
        (name, turns) for name in ("qwen3", "gpt_oss") for turns in (2, 4, 6, 8, 10)
    ]
    for row in rows:
        assert row["ours_datums"] == 1
        assert row["cookbook_datums"] > 1
        assert row["ours_s"] > 0
