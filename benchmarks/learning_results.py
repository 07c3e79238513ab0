"""The result files, tables and plots of `learning.py`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.statistics import wilson


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, without lines that an interruption cut off."""
    found = list[dict[str, Any]]()
    for line in path.read_text().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file of JSON lines, whose last line may have been cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":
                stream.write(b"\n")
        stream.write(json.dumps(row).encode() + b"\n")


def results(folder: Path) -> list[dict[str, Any]]:
    """The results in a folder."""
    return read_rows(folder / "results.jsonl")


def models_of(found: Sequence[Mapping[str, Any]]) -> str | None:
    """The digest of the models that gave these results; None if it was not recorded, as in old results.

    Raises:
        UsageError: The results are of several models, so they cannot be pooled.
    """
    by_models: dict[str | None, str] = {}
    for row in found:
        by_models.setdefault(row.get("models"), f"{row['name']} of seed {row['seed']}")
    if len(by_models) > 1:
        first, other, *_ = by_models.values()
        raise UsageError(f"--folder: its results are of different models, such as {first} and {other}; do not mix them")
    return next(iter(by_models), None)


def check_options(found: Sequence[Mapping[str, Any]]) -> None:
    """Check that the results of a run differ only in their seeds. Options that old results lack are not compared.

    Raises:
        UsageError: Results of a run have different options, so they cannot be pooled.
    """
    first: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in found:
        for key in row.keys() & {"held_out", "set", "transcripts"}:
            other = first.setdefault((row["name"], key), row)
            if row[key] != other[key]:
                both = f"{other[key]} (seed {other['seed']}) and {row[key]} (seed {row['seed']})"
                option = f"--{key.replace('_', '-')}"
                raise UsageError(f"{option}: {row['name']} with {both} cannot be pooled; use another --folder")


def table(found: Sequence[Mapping[str, Any]], title: str, names: Mapping[str, str], value: str) -> list[str]:
    """A Markdown table with a row for each run: pooled share with its 95 % interval, and the share of each seed.

    `names` gives each run's description. The interval is Wilson's, since each seed has different problems.
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


def finished_runs(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """The metrics of the finished runs `following` by seed. Unfinished runs are named on stderr.

    Raises:
        UsageError: No run is finished.
    """
    found = {}
    for path in folder.glob("following-*/metrics.jsonl"):
        rows = read_rows(path)
        if rows and "test_before/pass_rate" in rows[0] and "test/pass_rate" in rows[-1]:
            found[int(path.parent.name.removeprefix("following-"))] = rows
        else:
            print(f"left out: {path.parent} is not finished; finish it without --plot", file=sys.stderr)
    if not found:
        raise UsageError(f"--plot: there is no finished run `following` in {folder}")
    return dict(sorted(found.items()))


def plot(folder: Path, path: Path) -> None:
    """Draw `following` as a PNG: held-out problems before and after, and the episodes of each step, with intervals.

    No problem occurs in two steps, so a step's episodes are on problems not trained on before. Raises like
    `finished_runs`.
    """
    from matplotlib.figure import Figure

    runs = finished_runs(folder)
    rows = list(runs.values())
    figure = Figure(figsize=(8, 3.6), layout="constrained", dpi=120)
    axes = figure.subplots()
    steps = min(map(len, rows))
    episodes = [sum(run[step]["env/all/total_episodes"] for run in rows) for step in range(steps)]
    passed = [
        sum(run[step]["pass_rate"] * run[step]["env/all/total_episodes"] for run in rows) for step in range(steps)
    ]
    bounds = [wilson(round(number), round(total)) for number, total in zip(passed, episodes, strict=True)]
    played = [step + 0.5 for step in range(steps)]
    rates = [100 * number / total for number, total in zip(passed, episodes, strict=True)]
    axes.fill_between(played, [100 * low for low, _ in bounds], [100 * high for _, high in bounds], alpha=0.15)
    axes.plot(played, rates, label=f"the step's own episodes, {len(rows)} seeds pooled")
    for place, (seed, run) in enumerate(runs.items()):
        ends = [(0, run[0], "test_before"), (steps, run[-1], "test")]
        values = [100 * row[f"{kind}/pass_rate"] for _, row, kind in ends]
        lows = [value - 100 * row[f"{kind}/pass_rate_low"] for value, (_, row, kind) in zip(values, ends, strict=True)]
        highs = [
            100 * row[f"{kind}/pass_rate_high"] - value for value, (_, row, kind) in zip(values, ends, strict=True)
        ]
        places = [step + 0.15 * (place - (len(rows) - 1) / 2) for step, *_ in ends]
        label = f"{run[0]['test_before/episodes']:.0f} held-out problems, seed {seed}"
        axes.errorbar(places, values, [lows, highs], fmt="o", capsize=3, label=label)
    axes.set(xlabel="step", ylabel="% that pass the hidden tests", ylim=(-3, 103))
    axes.legend(frameon=False, loc="center right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.savefig(path)


def plot_splits(found: Sequence[Mapping[str, Any]], name: str, words: Mapping[str, str], path: Path) -> None:
    """Draw the results of a run as a PNG: pass rates before and after it, all seeds pooled, with 95 % intervals.

    Args:
        found: Results of `spelled`.
        name: The name of the run.
        words: The splits in the order of the plot, with their labels; `combinations` are the held-out problems
            themselves.
        path: The PNG file.

    Raises:
        UsageError: There are no results of this run, they are of only one split, or of several models or options.
    """
    from matplotlib.figure import Figure

    rows = [row for row in found if row["name"] == name]
    if not rows:
        raise UsageError(f"--plot: there is no finished run {name!r}; do it with the same command without --plot")
    if any("splits" not in row for row in rows):
        raise UsageError(f"--plot: {name!r} is evaluated on one split only; choose another run with --runs")
    models_of(rows)
    check_options(rows)
    figure = Figure(figsize=(8, 3.6), layout="constrained", dpi=120)
    axes = figure.subplots()
    for shift, kind, label in ((-0.12, "before", "before"), (0.12, "after", f"after {rows[0]['steps']} steps")):
        points = []
        for split in words:
            total = sum(row["episodes" if split == "combinations" else "split_episodes"] for row in rows)
            passed = sum(_passed(row, split, kind) for row in rows)
            low, high = wilson(passed, round(total))
            points.append((100 * passed / total, 100 * low, 100 * high))
        shares = [share for share, *_ in points]
        below, above = [share - low for share, low, _ in points], [high - share for share, _, high in points]
        places = [place + shift for place in range(len(words))]
        axes.errorbar(places, shares, [below, above], fmt="o", capsize=3, label=label)
    axes.set(ylabel="% that pass the hidden tests", ylim=(-3, 103))
    axes.set_xticks(range(len(words)), list(words.values()))
    axes.legend(frameon=False, title=f"{len(rows)} seed{'s' * (len(rows) > 1)}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path)


def _passed(row: Mapping[str, Any], split: str, kind: str) -> int:
    """How many problems of a split passed in a run, before or after it."""
    if split == "combinations":
        return round(float(row[kind] * row["episodes"]))
    shares = row["splits_before" if kind == "before" else "splits"]
    return round(float(shares[split] * row["split_episodes"]))
