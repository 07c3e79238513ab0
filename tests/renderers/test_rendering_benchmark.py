"""The benchmark runs, and its episode is one training example our way and several the other."""

from __future__ import annotations

import json
import runpy
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # measures the other way, too
def test_the_benchmark_compares_both_ways(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--turns", "10", "--tokens", "3000", "--repeats", "1", "--json"]
    monkeypatch.setattr("sys.argv", ["rendering.py", *options])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(ROOT / "benchmarks" / "rendering.py"), run_name="__main__")
    rows = json.loads(capsys.readouterr().out)
    assert [(row["renderer"], row["turns"]) for row in rows] == [
        (name, turns) for name in ("qwen3", "gpt_oss") for turns in (2, 4, 6, 8, 10)
    ]
    for row in rows:
        assert row["ours_datums"] == 1
        assert row["cookbook_datums"] > 1
        assert row["ours_s"] > 0
