#!/usr/bin/env python
"""Make a teacher and a student that spell what they write, each from different random weights.

    .venv/bin/python scripts/make_spelled_models.py --out models
    .venv/bin/python scripts/make_spelled_models.py --out models --only teacher

Each uses one core. The script may be stopped at any time; the same command resumes it and loses at most about two
minutes. docs/experiments.md describes the models and the time that it took. The folders ``models/teacher`` and
``models/student`` are in the format of transformers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from research.spelled_recipe import RECIPE, make
from rtl_agent_gym.errors import UsageError


def main() -> None:
    """Make the models."""
    parser = argparse.ArgumentParser(description="Make the teacher and the student that spell what they write.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models and the state of their training")
    parser.add_argument("--only", nargs="+", choices=list(RECIPE.pupils), default=[], help="default: all models")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu; a GPU takes minutes")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU on this machine; use --device cpu")
    begun = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - begun:7.0f} s  {line}", flush=True)

    try:
        make(RECIPE, options.out, log, options.only, options.device)
    except UsageError as error:
        parser.error(f"--out: {error}")


if __name__ == "__main__":
    main()
