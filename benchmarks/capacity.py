#!/usr/bin/env python3
"""How long many episodes take on 1, 10 and 100 machines like this one, computed from what `scale.py` measured here.

    .venv/bin/python benchmarks/scale.py --json > scale.jsonl
    .venv/bin/python benchmarks/capacity.py scale.jsonl [--problems 10000] [--samples 16]

Throughput grows with the machines as long as the one process that plays the episodes keeps up. `scale.py` measures its
processor time per step without Ray; `--remote-ms` gives what Ray adds, as measured by `remote_step.py`. The table shows
the share of one processor that this process needs; from 100 % on, the episodes must be split over several processes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def row(measured: dict[str, Any], nodes: int, episodes: int, remote_ms: float) -> str:
    """A row of the table, in Markdown."""
    rate = nodes * measured["episodes/min"] / 60
    steps = rate * measured["turns"]
    share = steps * (measured["client CPU ms a step"] + remote_ms) / 1000
    hours = episodes / rate / 3600
    time = f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
    return f"| {nodes} | {nodes * measured['size']:,} | {60 * rate:,.0f} | {steps:,.0f} | {share:.0%} | {time} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, help="the output of scale.py --json; its largest size is used")
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument(
        "--remote-ms", type=float, default=0.4, help="processor time that Ray adds to a step, from remote_step.py"
    )
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.measured.read_text().splitlines()]
    whole = [row for row in rows if not row.get("steps only")]
    if not whole:
        parser.error(f"{options.measured}: no row has whole episodes; run scale.py without --steps-only")
    measured = max(whole, key=lambda row: row["size"])
    print("| machines | live at once | episodes/min | steps/s | driver | time |", "|---|---|---|---|---|---|", sep="\n")
    for nodes in (1, 10, 100):
        print(row(measured, nodes, options.problems * options.samples, options.remote_ms if nodes > 1 else 0.0))


if __name__ == "__main__":
    main()
