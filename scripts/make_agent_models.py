#!/usr/bin/env python
"""Make a student and a teacher that act through mini-swe-agent, starting from the shipped models.

    .venv/bin/python scripts/make_agent_models.py --out models

Takes some minutes on one core. Needs the extra ``agents``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from research.agents import LESSONS, make


def main() -> None:
    """Make the models."""
    parser = argparse.ArgumentParser(description="Make a student and a teacher that act through mini-swe-agent.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the models")
    parser.add_argument("--only", nargs="+", choices=list(LESSONS), default=[], help="default: both models")
    options = parser.parse_args()
    begun = time.monotonic()
    recipe = {name: LESSONS[name] for name in options.only or LESSONS}
    make(options.out, lambda line: print(f"{time.monotonic() - begun:7.0f} s  {line}", flush=True), recipe)


if __name__ == "__main__":
    main()
