"""The tables and the curve of `learning.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtl_agent_gym.evaluation.statistics import wilson


def results(folder: Path) -> list[dict[str, Any]]:
    """What has been measured."""
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(found: Sequence[Mapping[str, Any]], title: str, names: Mapping[str, str], value: str) -> list[str]:
    """A Markdown table with a row for each run: pooled share with its 95 % interval, and the share of each seed.

    `names` gives each run's words. The interval is Wilson's, for different problems in every seed.
    """
    lines = [
        f"| {title} | steps | before | after, all seeds (95 %) | each seed | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, what in names.items():
        rows = sorted((row for row in found if row["name"] == name), key=lambda row: int(row["seed"]))
        if not rows:
            continue
        total = int(sum(row["episodes"] for row in rows))
        passed = round(sum(row[value] * row["episodes"] for row in rows))
        low, high = wilson(passed, total)
        seeds = ", ".join(f"{row[value]:.0%}" for row in rows)
        steps = "/".join(str(row["steps"]) for row in rows) if "steps" in rows[0] else ""
        before = f"{sum(row['before'] for row in rows) / len(rows):.0%}" if "before" in rows[0] else ""
        lines.append(
            f"| {what} | {steps} | {before} | {passed / total:.1%} ({low:.1%} – {high:.1%}) | {seeds} | "
            f"{sum(row['seconds'] for row in rows) / len(rows):.0f} |"
        )
    return lines


def plot(folder: Path, path: Path) -> None:
    """Draw `following` as a PNG: held-out problems before and after, and the episodes of each step, with intervals.

    No problem occurs in two steps, so a step's episodes are on problems that were not trained on before it.
    """
    from matplotlib.figure import Figure

    runs = sorted(folder.glob("following-*/metrics.jsonl"))
    rows = [[json.loads(line) for line in run.read_text().splitlines()] for run in runs]
    figure = Figure(figsize=(8, 3.6), layout="constrained", dpi=120)
    axes = figure.subplots()
    steps = min(map(len, rows))
    episodes = [sum(one[step]["env/all/total_episodes"] for one in rows) for step in range(steps)]
    passed = [
        sum(one[step]["pass_rate"] * one[step]["env/all/total_episodes"] for one in rows) for step in range(steps)
    ]
    bounds = [wilson(round(number), round(total)) for number, total in zip(passed, episodes, strict=True)]
    played = [step + 0.5 for step in range(steps)]
    rates = [100 * number / total for number, total in zip(passed, episodes, strict=True)]
    axes.fill_between(played, [100 * low for low, _ in bounds], [100 * high for _, high in bounds], alpha=0.15)
    axes.plot(played, rates, label=f"the step's own episodes, {len(rows)} seeds pooled")
    for seed, one in enumerate(rows):
        ends = [(0, one[0], "test_before"), (steps, one[-1], "test")]
        values = [100 * row[f"{kind}/pass_rate"] for _, row, kind in ends]
        lows = [value - 100 * row[f"{kind}/pass_rate_low"] for value, (_, row, kind) in zip(values, ends, strict=True)]
        highs = [
            100 * row[f"{kind}/pass_rate_high"] - value for value, (_, row, kind) in zip(values, ends, strict=True)
        ]
        places = [step + 0.15 * (seed - (len(rows) - 1) / 2) for step, *_ in ends]
        label = f"{one[0]['test_before/episodes']:.0f} held-out problems, seed {runs[seed].parent.name[-1]}"
        axes.errorbar(places, values, [lows, highs], fmt="o", capsize=3, label=label)
    axes.set(xlabel="step", ylabel="% that pass the hidden tests", ylim=(-3, 103))
    axes.legend(frameon=False, loc="center right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.savefig(path)
