"""Writing a report on one or more runs: an HTML page, the same as Markdown, plots, and the episodes that it names."""

from __future__ import annotations

import html
import importlib.util
import io
import math
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from ... import __version__
from ...errors import writing
from ...scoring.score import Score
from ...visible import plural, visible
from ..recorded import short_name
from ..viewer.page import write_page
from .run import (
    FailedEpisode,
    Run,
    changes,
    compare_runs,
    configuration,
    parts,
    read_run,
    side_by_side,
    telling_failures,
    unreadable_note,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PASS_RATE = ("pass_rate", "pass rate", True)
CURVES: tuple[tuple[str, str, bool], ...] = (
    ("env/all/reward/total", "reward", False),
    PASS_RATE,
    ("teacher_kl", "teacher KL, nats per token", False),
    ("sft/nll", "negative log-likelihood, nats per token", False),
    ("sft/val_nll", "the same, on validation episodes", False),
    ("optim/entropy", "entropy, nats per token", False),
    ("env/all/syntax_valid", "syntax valid", True),
    ("env/all/quality", "quality of results", True),
    ("env/all/coverage", "coverage of testbenches", True),
    ("env/all/ac_tokens_per_turn", "tokens per turn", False),
    ("time/total", "seconds per step", False),
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
        from matplotlib.lines import Line2D

        axes[0].legend(  # separate lines, since the first plot may lack one for some runs
            handles=[
                Line2D([], [], color=COLOURS[number % len(COLOURS)], lw=1.8, label=_label(run))
                for number, run in enumerate(runs)
                if run.metrics
            ],
            fontsize=8,
            frameon=False,
        )
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
        shift = width * (number - (len(runs) - 1) / 2)
        places = [k + shift / 4 if len(ks) == 1 else k for k in ks]
        if len(ks) == 1:  # an area over a single k is invisible
            by_k.vlines(places, low, high, color=colour, lw=1.2)
        else:
            by_k.fill_between(places, low, high, color=colour, alpha=0.12, lw=0)
        by_k.plot(places, [found[k].value for k in ks], marker="o", ms=4, color=colour, label=_label(run))
        rates = run.summary.by_category
        passed = [rates[name].passed if name in rates else 0.0 for name in categories]
        places = [at + shift for at in range(len(categories))]
        by_category.bar(places, passed, width * 0.92, color=colour, label=_label(run))
    by_k.set_xlim(0.5, by_k.dataLim.x1 + 0.5)
    by_k.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
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


def _curve(axis: Axes, run: Run, metric: str, colour: str) -> None:
    if metric == PASS_RATE[0]:
        _evaluations(axis, run, colour)
    steps, values = run.curve(metric)
    if not values:
        return
    size = max(1, min(WINDOW, len(values) // 10))
    line = [sum(part) / len(part) for at in range(len(values)) if (part := values[max(0, at + 1 - size) : at + 1])]
    if line != values:
        axis.plot(steps, values, color=colour, alpha=0.25, lw=1)
    axis.plot(steps, line, color=colour, lw=1.8, marker="o" if len(values) < 12 else None, ms=3)


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
    # matplotlib reads $…$ as a formula, hides labels that begin with _, and draws no name that is not UTF-8
    return visible(run.name).replace("$", r"\$").lstrip("_")


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


MOST_FLIPS = 60
"""Upper bound on the flipped problems in a report."""


def write_report(
    run_dirs: Sequence[Path | str],
    out: Path | str | None = None,
    unreadable: list[str] | None = None,
    *,
    episodes: bool = True,
) -> Path:
    """Write a report.

    Args:
        run_dirs: The folders of one or more runs: training runs, evaluations, or any folder with transcripts. With
            several, the evaluations are compared with the first, for example a student's evaluation with its teacher's.
        out: The page's path (``….html``), or a folder for ``report.html``, called ``full_report.html`` in a training
            run's folder, since training writes ``report.html``; None for the first run's folder. The Markdown version
            (``.md``), its plots (``.svg``) and a page with the episodes are written beside the page.
        unreadable: Receives a sentence for each transcript that cannot be read.
        episodes: Whether to read the episodes. If not, the report covers only the metrics, and is quick.

    Returns:
        The HTML page.

    Raises:
        UsageError: A folder contains no run, or the report cannot be written.
        TranscriptError: The results of an evaluation cannot be read.
        SandboxError: The disk is full.
    """
    runs = [read_run(Path(folder), episodes=episodes) for folder in run_dirs]
    if unreadable is not None:
        unreadable.extend(sentence for run in runs for sentence in run.unreadable)
    _make_names_unique(runs)
    page = Path(out) if out is not None else runs[0].folder
    if page.suffix != ".html":
        page /= "full_report.html" if (page / "metrics.jsonl").exists() else "report.html"
    with writing("the report", page):
        _write(runs, page)
    return page


def _make_names_unique(runs: list[Run]) -> None:
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = "/".join(run.folder.resolve().parts[-2:])
    for number, run in enumerate(runs):
        if any(run.name == other.name for other in runs[:number]):
            run.name = f"{run.name} ({number + 1})"


def _write(runs: list[Run], page: Path) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    drawn = {"curves": training_curves(runs), "passes": pass_curves(runs)} if can_draw() else {}
    plots = {name: svg for name, svg in drawn.items() if svg is not None}
    failures = [failure for run in runs for failure in telling_failures(run)]
    links = _write_episodes(failures, page)
    for name, svg in plots.items():
        page.with_name(f"{page.stem}_{name}.svg").write_text(svg, encoding="utf-8")
    addresses = {
        ".html": {name: "data:image/svg+xml," + quote(svg, safe=" <>/=:;,.()-") for name, svg in plots.items()},
        ".md": {name: f"{quote(os.fsencode(page.stem))}_{name}.svg" for name in plots},
    }
    for suffix, images in addresses.items():
        text = _template(f"report{suffix}.j2").render(
            title=" against ".join(run.name for run in runs),
            version=__version__,
            runs=runs,
            changes={run.name: found for run in runs if (found := changes(run))},
            rates=side_by_side(runs),
            # Training runs are not compared: their policy changed between episodes.
            comparisons=[compare_runs(runs[0], run) for run in runs[1:] if runs[0].kind == run.kind == "evaluation"],
            most_flips=MOST_FLIPS,
            failures=[(failure, links.get(number)) for number, failure in enumerate(failures)],
            parts={run.name: parts(run) for run in runs},
            configuration=configuration(runs),
            plots=images,
        )
        page.with_suffix(suffix).write_text(text, encoding="utf-8", errors="replace")


def _write_episodes(failures: Sequence[FailedEpisode], page: Path) -> dict[int, str]:
    """Write a viewer page with the episodes of the failures. Returns their links by the number of the failure."""
    files = {number: failure.transcript for number, failure in enumerate(failures) if failure.transcript is not None}
    target = page.with_name(f"{page.stem}_episodes.html")
    if files:
        write_page(files.values(), target, title=f"failures of {page.stem}")
    return {
        number: f"{quote(os.fsencode(target.name))}#{quote(path.name, safe='', errors='replace')}"
        for number, path in files.items()
    }


def _template(name: str) -> Template:
    environment = Environment(
        loader=FunctionLoader(lambda name: (files(__package__) / "templates" / name).read_text(encoding="utf-8")),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "md": _markdown,
        "short": short_name,
        "seconds": _duration,
        "reward": _reward,
        "amount": _amount,
        "count_of": plural,
        "note": unreadable_note,
    }
    return environment.get_template(name)


def _markdown(text: object) -> str:
    """Escape text for a Markdown table: one line, without markup."""
    line = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line)


def _reward(score: Score | None) -> str:
    return f"{score.reward:.2f}" if score is not None and math.isfinite(score.reward) else "–"


def _amount(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
