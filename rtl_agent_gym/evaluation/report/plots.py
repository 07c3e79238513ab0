"""The plots of a report, as SVG."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PASS_RATE = ("pass_rate", "pass rate", True)
CURVES: tuple[tuple[str, str, bool], ...] = (
    ("env/all/reward/total", "reward", False),
    PASS_RATE,
    ("teacher_kl", "teacher KL, nats a token", False),
    ("sft/nll", "negative log-likelihood, nats a token", False),
    ("sft/val_nll", "the same on validation episodes", False),
    ("optim/entropy", "entropy, nats a token", False),
    ("env/all/syntax_valid", "syntax valid", True),
    ("env/all/quality", "quality of results", True),
    ("env/all/ac_tokens_per_turn", "tokens a turn", False),
    ("time/total", "seconds a step", False),
)
"""The metrics to draw: name, title, and whether it is a share."""

EVALUATED = {"test": ("D", "full"), "train": ("o", "none")}
"""The evaluations that the plot of the pass rate shows as points, with their intervals: marker and fill style."""

COLOURS = ("#3867d6", "#d35400", "#17804d", "#8e44ad", "#c0392b", "#00838f")
WINDOW = 10
"""Smoothing: each point is the mean over at most this many steps up to it, and at most a tenth of all steps."""


def training_curves(runs: Sequence[Run]) -> str | None:
    """Curves over the steps of training runs; None if there is no metric to draw."""
    drawn = [curve for curve in CURVES if any(run.curve(curve[0])[1] for run in runs)]
    if PASS_RATE not in drawn and any(run.evaluations(kind) for run in runs for kind in EVALUATED):
        drawn.insert(0, PASS_RATE)
    if not drawn:
        return None
    columns = min(4 if len(drawn) > 6 else 3, len(drawn))
    figure, axes = _figure(-(-len(drawn) // columns), columns)
    for axis, (metric, title, share) in zip(axes, drawn, strict=False):
        for number, run in enumerate(runs):
            _curve(axis, run, metric, COLOURS[number % len(COLOURS)])
        tested = metric == PASS_RATE[0] and any(run.evaluations("test") for run in runs)
        _name(axis, f"{title}; ◆ held-out problems" if tested else title, "step", share=share)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    if len(runs) > 1:
        axes[0].legend(fontsize=8, frameon=False)
    return _svg(figure)


def pass_curves(runs: Sequence[Run]) -> str | None:
    """pass@k of evaluations with intervals, and pass rates by category; None without a finished episode."""
    runs = [run for run in runs if run.kind == "evaluation" and run.summary.finished]
    if not runs:
        return None
    figure, (by_k, by_category) = _figure(1, 2)
    from matplotlib.ticker import MaxNLocator

    categories = sorted({name for run in runs for name in run.summary.by_category})
    width = 0.8 / len(runs)
    for number, run in enumerate(runs):
        colour, found = COLOURS[number % len(COLOURS)], run.summary.pass_at
        ks = sorted(found)
        low, high = [found[k].low for k in ks], [found[k].high for k in ks]
        by_k.fill_between(ks, low, high, color=colour, alpha=0.12, lw=0)
        by_k.plot(ks, [found[k].value for k in ks], marker="o", ms=4, color=colour, label=_label(run))
        rates = run.summary.by_category
        passed = [rates[name].passed if name in rates else 0.0 for name in categories]
        places = [at + width * (number - (len(runs) - 1) / 2) for at in range(len(categories))]
        by_category.bar(places, passed, width * 0.92, color=colour, label=_label(run))
    by_k.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_k.legend(fontsize=8, frameon=False)
    by_category.set_xticks(range(len(categories)), categories)
    _name(by_k, "pass@k with 95 % intervals", "k", share=True)
    _name(by_category, "passed, by category", "", share=True)
    for axis in (by_k, by_category):
        axis.set_ylim(0, 1.03)
    return _svg(figure)


def _name(axis: Axes, title: str, x: str, *, share: bool) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axis.set_xlabel(x, fontsize=8)
    if share:
        axis.set_ylim(-0.03, 1.03)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def smoothed(values: Sequence[float]) -> list[float]:
    """Running means; see `WINDOW`."""
    size = max(1, min(WINDOW, len(values) // 10))
    return [sum(part) / len(part) for at in range(len(values)) if (part := values[max(0, at + 1 - size) : at + 1])]


def _curve(axis: Axes, run: Run, metric: str, colour: str) -> None:
    if metric == PASS_RATE[0]:
        _evaluations(axis, run, colour)
    steps, values = run.curve(metric)
    if not values:
        return
    line = smoothed(values)
    if line != list(values):
        axis.plot(steps, values, color=colour, alpha=0.25, lw=1)
    axis.plot(steps, line, color=colour, lw=1.8, marker="o" if len(values) < 12 else None, ms=3, label=_label(run))


def _evaluations(axis: Axes, run: Run, colour: str) -> None:
    for kind, (marker, fill) in EVALUATED.items():
        points = run.evaluations(kind)
        ends = [point.interval or (point.value, point.value) for point in points]
        # Rounding may put a mean outside its interval by an ulp, and matplotlib refuses negative bars.
        down = [max(0.0, point.value - low) for point, (low, _) in zip(points, ends, strict=True)]
        up = [max(0.0, high - point.value) for point, (_, high) in zip(points, ends, strict=True)]
        axis.errorbar(
            [point.steps for point in points], [point.value for point in points], yerr=[down, up], fmt=marker,
            fillstyle=fill, color=colour, ms=5, capsize=3, lw=1.2,
        )  # fmt: skip


def _label(run: Run) -> str:
    # matplotlib reads $…$ as a formula and hides labels that begin with _
    return run.name.replace("$", r"\$").lstrip("_")


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _figure(rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.9 * columns, 2.6 * rows), layout="constrained")  # no pyplot: no state, no display
    axes = [figure.add_subplot(rows, columns, at + 1) for at in range(rows * columns)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e2e5ec", lw=0.8)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8, length=2)
    return figure, axes


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "rtl-agent-gym", "svg.fonttype": "path"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()
