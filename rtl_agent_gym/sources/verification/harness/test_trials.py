"""Judges the runs of a bench in Python. Each test is a mutant that the bench has to reject."""

import json
from pathlib import Path

import pytest

SRC = Path("/src")
SETTINGS = json.loads((SRC / "judge.json").read_text(encoding="utf-8"))
FOUND = json.loads((SRC / "trials.json").read_text(encoding="utf-8"))
"""What `trials.py` said at its end."""
FAULT = FOUND["fault"]


@pytest.mark.parametrize("mutant", SETTINGS["mutants"], ids=lambda name: name[:-3] + (f": {FAULT}" if FAULT else ""))
def test_rejects(mutant):
    assert not FAULT, FAULT
    assert FOUND["verdicts"][mutant] == "rejected", f"the run with the mutant: {FOUND['verdicts'][mutant]}"
