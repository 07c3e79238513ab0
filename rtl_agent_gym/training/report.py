"""A run's curves as one HTML file that needs nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from .run_folder import CONFIG, RunFolder

CURVES: tuple[tuple[str, str, bool], ...] = (
    ("pass_rate", "Pass rate of the step's episodes", False),
    ("env/all/reward/total", "Reward", False),
    ("teacher_kl", "KL to the teacher, nats a token", True),
    ("optim/entropy", "Entropy of the student, nats a token", False),
    ("env/all/ac_tokens_per_turn", "Tokens a turn", False),
    ("time/total", "Seconds a step", False),
)
"""Which metrics are drawn, under which title, and whether on a logarithmic scale."""

WINDOW = 5
"""Steps that the smooth line averages."""


def write_report(folder: RunFolder) -> None:
    """Write ``report.html`` of the steps so far."""
    rows = folder.metrics()
    try:
        options: dict[str, Any] = json.loads((folder.path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        options = {}
    made = Environment(
        loader=PackageLoader(__package__, "templates"), autoescape=True, undefined=StrictUndefined
    ).get_template("report.html")
    text = made.render(
        title=folder.path.name,
        options=options,
        steps=len(rows),
        curves=draw(rows),
        figures=figures(rows),
        last=sorted(rows[-1].items()) if rows else [],
    )
    (folder.path / "report.html").write_text(text, encoding="utf-8")


def figures(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The figures that say whether it learned."""
    found: list[tuple[str, str]] = []
    for name, label, form in (
        ("pass_rate", "pass rate", "{:.0%}"),
        ("env/all/reward/total", "reward", "{:.3f}"),
        ("teacher_kl", "KL a token", "{:.4f}"),
    ):
        values = [float(row[name]) for row in rows if name in row]
        if values:
            first, last = values[:5], values[-10:]
            begin, end = form.format(sum(first) / len(first)), form.format(sum(last) / len(last))
            found.append((f"{label}, first {len(first)} → last {len(last)} steps", f"{begin} → {end}"))
    before = next((row["test_before/pass_rate"] for row in rows if "test_before/pass_rate" in row), None)
    after = next((row["test/pass_rate"] for row in reversed(rows) if "test/pass_rate" in row), None)
    if before is not None and after is not None:
        found.append(("fresh episodes that pass, before → after", f"{before:.0%} → {after:.0%}"))
    if rows:
        found.append(("time in steps", f"{sum(float(row.get('time/total', 0)) for row in rows):.0f} s"))
    return found


def draw(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The curves as SVG texts."""
    if not rows:
        return []
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    drawn: list[str] = []
    for name, title, logarithmic in CURVES:
        points = [(int(row["step"]) + 1, float(row[name])) for row in rows if name in row]
        if not points:
            continue
        steps, values = [step for step, _ in points], [value for _, value in points]
        figure = Figure(figsize=(5.2, 2.8), layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, values, color="#9bb7d4", linewidth=1, marker="." if len(points) < 3 else "")
        axes.plot(steps, smooth(values), color="#1f4e79", linewidth=2)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=9)
        axes.grid(alpha=0.3)
        if logarithmic and min(values) > 0:
            axes.set_yscale("log")
        if name == "pass_rate":
            axes.set_ylim(-0.03, 1.03)
        text = io.StringIO()
        figure.savefig(text, format="svg")
        drawn.append(text.getvalue()[text.getvalue().index("<svg") :])
    return drawn


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of each value and the ones before it, `WINDOW` in all."""
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - WINDOW) : end]
        means.append(sum(part) / len(part))
    return means
