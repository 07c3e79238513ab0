"""A report of one run, or of several against each other: a page, the same as Markdown, and the episodes it names."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined

from .. import __version__
from ..errors import TranscriptError, cannot_write
from ..transcripts import Transcript
from .report_data import (
    Failure,
    Flip,
    Run,
    changes,
    configuration,
    flips,
    paired,
    parts,
    read_run,
    telling_failures,
)
from .report_plots import pass_curves, training_curves
from .statistics import Paired
from .summary import STAGES
from .viewer.model import short_name
from .viewer.page import write_page
from .viewer.sources import read_episode

MOST_FLIPS = 60
"""Flipped problems that a report lists, at most."""

REPORT, FULL_REPORT = "report.html", "full_report.html"
"""The page's name in a folder; the second where training keeps its own ``report.html``, which it writes anew."""


@dataclass(frozen=True)
class Comparison:
    """The first run against another one."""

    first: str
    other: str
    flips: list[Flip]
    paired: Paired | None = None
    """The difference of the pass rates over the problems of both, with a test of it."""

    @property
    def gained(self) -> int:
        """How many problems the other run passes and the first does not."""
        return sum(flip.gained for flip in self.flips)


def page_path(out: Path) -> Path:
    """Where the page goes: to `out` itself where that is named ``….html``, otherwise into the folder `out`."""
    if out.suffix == ".html":
        return out
    return out / (FULL_REPORT if (out / "metrics.jsonl").exists() else REPORT)


def write_report(
    run_dirs: Sequence[Path | str], out: Path | str | None = None, unreadable: list[str] | None = None
) -> Path:
    """Write a report.

    Args:
        run_dirs: The folders of one run or more: training runs, evaluations, or any folder with transcripts. With
            several, each is set against the first, such as a student's evaluation and its teacher's.
        out: Where to: a folder, or the page's own path (``….html``). The first run's folder without it. The page is
            ``report.html``; in the folder of a training run, whose own ``report.html`` is the trainer's, it is
            ``full_report.html``. Beside it go the same as Markdown (``.md``) with its plots (``.svg``), and the named
            episodes as a page of the viewer.
        unreadable: Told which transcripts were left out and why, a sentence each.

    Returns:
        The HTML page.

    Raises:
        UsageError: A folder holds no run, matplotlib is not installed, or no file can be written there.
        TranscriptError: The results of an evaluation cannot be read.
        SandboxError: The disk is full.
    """
    runs = [read_run(Path(folder)) for folder in run_dirs]
    if unreadable is not None:
        unreadable.extend(sentence for run in runs for sentence in run.unreadable)
    _tell_apart(runs)
    page = page_path(Path(out) if out is not None else runs[0].folder)
    try:
        _write(runs, page)
    except OSError as error:
        raise cannot_write("the report", page, error) from error
    return page


def _write(runs: list[Run], page: Path) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    plots = {"curves": training_curves(runs), "passes": pass_curves(evaluations(runs))}
    failures = [failure for run in runs for failure in telling_failures(run)]
    links = _write_episodes(failures, page)
    values = _values(runs, failures, links)
    for name, svg in plots.items():
        if svg is not None:
            page.with_name(f"{page.stem}_{name}.svg").write_bytes(svg)
    images = {name: _data_address(svg) for name, svg in plots.items() if svg is not None}
    page.write_text(_render("report.html.j2", plots=images, **values), encoding="utf-8", errors="replace")
    named = {name: f"{quote(page.stem)}_{name}.svg" for name in images}
    page.with_suffix(".md").write_text(
        _render("report.md.j2", plots=named, **values), encoding="utf-8", errors="replace"
    )


def _tell_apart(runs: list[Run]) -> None:
    """Runs of one name are called by more of their path."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = "/".join(run.folder.resolve().parts[-2:])
    for number, run in enumerate(runs):
        if any(run.name == other.name for other in runs[:number]):
            run.name = f"{run.name} ({number + 1})"


def _values(runs: list[Run], failures: list[Failure], links: dict[int, str]) -> dict[str, Any]:
    rows = [(failure, links.get(number)) for number, failure in enumerate(failures)]
    return {
        "title": " against ".join(run.name for run in runs),
        "version": __version__,
        "runs": runs,
        "changes": {run.name: found for run in runs if (found := changes(run))},
        "rates": side_by_side(runs),
        "comparisons": [
            Comparison(runs[0].name, run.name, flips(runs[0], run), paired(runs[0], run)) for run in runs[1:]
        ],
        "most_flips": MOST_FLIPS,
        "failures": rows,
        "parts": {run.name: parts(run) for run in runs},
        "configuration": configuration(runs),
    }


def side_by_side(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Rates and costs: a name, and what each run has. Rows that no run has are left out."""
    rows: list[tuple[str, list[str]]] = []

    def add(name: str, values: list[str | None]) -> None:
        if any(value is not None for value in values):
            rows.append((name, [value if value is not None else "–" for value in values]))

    rates = [run.summary.overall for run in runs]
    costs = [run.summary.cost for run in runs]
    add("problems", [f"{rate.problems:,}" if rate else None for rate in rates])
    add("episodes with a verdict", [f"{rate.episodes:,}" if rate else None for rate in rates])
    for k in sorted({k for run in evaluations(runs) for k in run.summary.pass_at}):
        if k <= 5 or all(k >= max(run.summary.pass_at, default=0) for run in runs):
            add(f"pass@{k}", [_estimate(run, k) if run.kind == "evaluation" else None for run in runs])
    add("passed", [f"{rate.passed:.1%}" if rate else None for rate in rates])
    for stage in (*STAGES, "tests"):
        label = "share of the tests that pass" if stage == "tests" else f"{stage} whole"
        add(label, [f"{getattr(rate, stage):.1%}" if rate else None for rate in rates])
    add("reward", [f"{rate.reward:.3f}" if rate else None for rate in rates])
    add("turns an episode", [f"{cost.turns:.1f}" if cost else None for cost in costs])
    add("malformed turns an episode", [f"{cost.malformed:.2f}" if cost else None for cost in costs])
    for label, name in (
        ("tokens written an episode", "output_tokens"),
        ("tokens written a turn", "tokens_per_turn"),
        ("tokens read an episode", "prompt_tokens"),
    ):
        found = [getattr(cost, name) if cost else None for cost in costs]
        add(label, [f"{value:,.0f}" if value is not None else None for value in found])
    add("seconds an episode", [f"{cost.seconds:.1f}" if cost else None for cost in costs])
    add("machine faults", [str(run.summary.faults) if run.summary.faults else None for run in runs])
    for cause in sorted({cause for run in runs for cause in run.summary.causes}):
        add(f"failed: {cause}", [str(run.summary.causes.get(cause, 0)) if run.results else None for run in runs])
    return rows


def evaluations(runs: Sequence[Run]) -> list[Run]:
    """The runs whose policy stayed the same, so that pass@k says something of it."""
    return [run for run in runs if run.kind == "evaluation"]


def _estimate(run: Run, k: int) -> str | None:
    found = run.summary.pass_at.get(k)
    return f"{found.value:.1%} ({found.low:.1%} – {found.high:.1%})" if found is not None else None


def _write_episodes(failures: Sequence[Failure], page: Path) -> dict[int, str]:
    """One page of the viewer with the named episodes beside the report; gives the address of each failure's."""
    transcripts: list[Transcript] = []
    links: dict[int, str] = {}
    target = page.with_name(f"{page.stem}_episodes.html")
    for number, failure in enumerate(failures):
        if failure.transcript is None:
            continue
        try:
            transcripts.append(read_episode(failure.transcript))
        except TranscriptError:
            continue  # the failure is named without a link
        links[number] = f"{quote(target.name)}#{quote(failure.transcript.name, safe='')}"
    if transcripts:
        write_page(transcripts, target, title=f"failures of {page.stem}")
    return links


def _data_address(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FunctionLoader(lambda name: (files(__package__) / "templates" / name).read_text(encoding="utf-8")),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"md": _markdown, "short": short_name, "seconds": _duration}
    return environment.get_template(template).render(**values)


def _markdown(text: object) -> str:
    """Foreign text as it must stand in a Markdown table: one line, nothing of it read as markup."""
    line = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
