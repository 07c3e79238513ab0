#!/usr/bin/env python
"""Make the models that the package ships for training without an API key, by their recorded recipe.

    .venv/bin/python scripts/make_demo_models.py --out models

Uses one core; `docs/experiments.md` has the time. The same versions of torch, transformers and tokenizers on the same
kind of processor give the same bytes. ``recipe.json`` has the digests of the shipped models, which were made in parts.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from research.making import make
from research.recipe import RECIPE


def main() -> None:
    """Make the models."""
    parser = argparse.ArgumentParser(description="Make the models that the package ships.")
    parser.add_argument("--out", type=Path, required=True, help="Folder for the models.")
    parser.add_argument("--members", type=int, default=256, help="Held-out problems used to measure each model.")
    options = parser.parse_args()
    begun = time.monotonic()
    make(
        RECIPE,
        options.out,
        lambda line: print(f"{time.monotonic() - begun:7.0f} s  {line}", flush=True),
        options.members,
    )


if __name__ == "__main__":
    main()
