"""Write a report of one or more runs: an HTML page, the same as Markdown, and a page with the episodes that it
names.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from ... import __version__
from ...errors import TranscriptError, cannot_write
from ...transcripts import Transcript
from ...visible import plural
from ..recorded import read_episode, short_name
from ..viewer.page import write_page
from .plots import can_draw, pass_curves, training_curves
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
)

MOST_FLIPS = 60
"""Upper bound on the flipped problems in a report."""


def page_path(out: Path) -> Path:
    """The page's path: `out` if it ends in ``.html``, otherwise ``report.html`` in the folder `out`.

    In the folder of a training run it is ``full_report.html``, since training writes ``report.html``.
    """
    if out.suffix == ".html":
        return out
    return out / ("full_report.html" if (out / "metrics.jsonl").exists() else "report.html")


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
            several, each is compared with the first, for example a student's evaluation with its teacher's.
        out: A folder, or the page's own path (``….html``); None for the first run's folder. See `page_path`. The
            Markdown version (``.md``), its plots (``.svg``) and a page with the episodes are written beside the page.
        unreadable: Receives a sentence for each transcript that cannot be read.
        episodes: Whether to read the episodes. If not, the report covers only the metrics, and is quick.

    Returns:
        The HTML page.

    Raises:
        UsageError: A folder holds no run, or no file can be written there.
        TranscriptError: The results of an evaluation cannot be read.
        SandboxError: The disk is full.
    """
    runs = [read_run(Path(folder), episodes=episodes) for folder in run_dirs]
    if unreadable is not None:
        unreadable.extend(sentence for run in runs for sentence in run.unreadable)
    _make_names_unique(runs)
    page = page_path(Path(out) if out is not None else runs[0].folder)
    try:
        _write(runs, page)
    except OSError as error:
        raise cannot_write("the report", page, error) from error
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
        ".html": {name: _data_address(svg) for name, svg in plots.items()},
        ".md": {name: f"{quote(page.stem)}_{name}.svg" for name in plots},
    }
    for suffix, images in addresses.items():
        text = _template(f"report{suffix}.j2").render(
            title=" against ".join(run.name for run in runs),
            version=__version__,
            runs=runs,
            changes={run.name: found for run in runs if (found := changes(run))},
            rates=side_by_side(runs),
            comparisons=[compare_runs(runs[0], run) for run in runs[1:]],
            most_flips=MOST_FLIPS,
            failures=[(failure, links.get(number)) for number, failure in enumerate(failures)],
            parts={run.name: parts(run) for run in runs},
            configuration=configuration(runs),
            plots=images,
        )
        page.with_suffix(suffix).write_text(text, encoding="utf-8", errors="replace")


def _write_episodes(failures: Sequence[FailedEpisode], page: Path) -> dict[int, str]:
    """Write a viewer page with the episodes of the failures. Returns their links by the number of the failure."""
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


def _data_address(svg: str) -> str:
    return "data:image/svg+xml," + quote(svg, safe=" <>/=:;,.()-")


def _template(name: str) -> Template:
    environment = Environment(
        loader=FunctionLoader(lambda name: (files(__package__) / "templates" / name).read_text(encoding="utf-8")),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"md": _markdown, "short": short_name, "seconds": _duration, "count_of": plural}
    return environment.get_template(name)


def _markdown(text: object) -> str:
    """Escape text for a Markdown table: one line, without markup."""
    line = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
