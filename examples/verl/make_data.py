#!/usr/bin/env python
"""Writes the rows that verl reads, train.jsonl and val.jsonl, for problems of any source.

    python examples/verl/make_data.py [--problems cvdp] [--rows fair] [--held-out 0.1] [--seed 0] [--out runs/verl]

A row names its problem; no row contains hidden tests.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rtl_agent_gym.integrations.verl import rows
from rtl_agent_gym.problems import load_problems, split_problems


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default="cvdp", help="source of the problems; cvdp: CVDP's newest agentic rows")
    parser.add_argument("--rows", default="fair", help="rows of CVDP to keep: all, fair, partial or sound")
    parser.add_argument("--held-out", type=float, default=0.1, help="share of the problems to validate with")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split")
    parser.add_argument("--out", default="runs/verl", help="folder of the two files")
    return parser.parse_args()


def main() -> None:
    """Write the files."""
    options = read_options()
    chosen = load_problems(options.problems, rows=options.rows)
    train, held_out = split_problems(chosen, options.held_out, options.seed)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", train), ("val", held_out)):
        if not part:
            raise SystemExit(f"no problem remains for {name}.jsonl; choose another --held-out or --seed")
        lines = [json.dumps(row) + "\n" for row in rows(options.problems, ids=[problem.id for problem in part])]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{len(lines)} rows written to {folder / name}.jsonl")


if __name__ == "__main__":
    main()
