"""Read the folder of a run: a training run, an evaluation, or a folder of transcripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard

from ... import strict_json
from ...errors import UsageError
from ..outcome import EpisodeResult, Summary, summarise
from ..results import read_results, read_spending
from ..viewer.model import each_readable, transcript_files


@dataclass(frozen=True)
class Point:
    """A metric of one evaluation within a training run."""

    steps: float
    """Number of steps that the weights were trained for."""
    value: float
    interval: tuple[float, float] | None
    """Its 95 % interval, if it is known."""


@dataclass
class Run:
    """The contents of a run's folder."""

    folder: Path
    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    results: list[EpisodeResult]
    summary: Summary
    unreadable: list[str] = field(default_factory=list)
    best: dict[str, Any] | None = None
    """The checkpoint of a training run with the highest pass rate on held-out problems."""

    @property
    def kind(self) -> Literal["training", "evaluation"]:
        """``training`` if there are metrics."""
        return "training" if self.metrics else "evaluation"

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """Steps and values of a metric, without missing and infinite values."""
        points = [
            (float(row.get("step", at)), float(row[name]))
            for at, row in enumerate(self.metrics)
            if _drawable(row.get(name)) and _drawable(row.get("step", at))
        ]
        return [step for step, _ in points], [value for _, value in points]

    def evaluations(self, kind: str, metric: str = "pass_rate") -> list[Point]:
        """A metric of a training run's evaluations; `kind` is ``test``, ``train`` or ``test/NAME``."""
        first, slash, extra = kind.partition("/")
        found = []
        for at, row in enumerate(self.metrics):
            step = row.get("step", at)
            if not _drawable(step):
                continue
            for prefix, done in ((f"{first}_before{slash}{extra}", 0.0), (kind, step + 1.0)):
                value, low, high = (row.get(f"{prefix}/{metric}{end}") for end in ("", "_low", "_high"))
                if _drawable(value):
                    found.append(Point(done, value, (low, high) if _drawable(low) and _drawable(high) else None))
        return found


def _drawable(value: object) -> TypeGuard[float]:
    """Whether it is a number that can be averaged and drawn; a diverged run may have NaN and infinities."""
    return isinstance(value, int | float) and -1e100 < value < 1e100


def read_run(folder: Path, *, episodes: bool = True) -> Run:
    """Read a run. Incomplete lines and transcripts, as after a crash, are left out.

    Args:
        folder: The run's folder.
        episodes: Whether to read the episodes too, which is slow for a long run.

    Raises:
        UsageError: There are no metrics, results or transcripts.
        TranscriptError: The results cannot be read.
    """
    if folder.is_file():
        raise UsageError(f"{folder}: is a file; a report is made of the folders of runs")
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; a report is made of the folders of runs")
    metrics, unreadable = _json_objects(folder / "metrics.jsonl", lambda text: text.split("\n")), list[str]()
    results = _results(folder, unreadable) if episodes else []
    if not metrics and not results:
        raise UsageError(
            f"{folder}: holds no metrics.jsonl, no results.jsonl and no transcript of a finished episode, "
            "so there is no run"
        )
    (config,) = _json_objects(folder / "config.json", lambda text: [text]) or [{}]
    checkpoints = _json_objects(folder / "checkpoints.jsonl", lambda text: text.split("\n"))
    best = next((one for one in reversed(checkpoints) if one.get("best")), None)
    spent = read_spending(folder) if episodes and (folder / "results.jsonl").exists() else None
    summary = summarise(results, spent=spent)
    return Run(folder, folder.resolve().name, config, metrics, results, summary, unreadable, best)


def _json_objects(path: Path, texts: Callable[[str], list[str]]) -> list[dict[str, Any]]:
    """The JSON objects in a file, which `texts` splits; none if the file is missing."""
    rows = []
    with suppress(OSError):
        for text in texts(path.read_text(encoding="utf-8", errors="replace")):
            with suppress(ValueError):
                rows.append(strict_json.loads(text))
    return [row for row in rows if isinstance(row, dict)]


def _results(folder: Path, unreadable: list[str]) -> list[EpisodeResult]:
    """The results of an evaluation; for other runs, those in their transcripts."""
    if (folder / "results.jsonl").exists():
        return read_results(folder)
    try:
        files = transcript_files(folder, evaluations=False)
    except UsageError:
        return []
    seen: Counter[str] = Counter()
    found = []
    transcripts = sorted(each_readable(files, unreadable), key=lambda transcript: transcript.header.time)
    for transcript in transcripts:
        if transcript.end is None:
            continue  # the episode is still running, or the file was cut off
        sample = seen[transcript.header.problem_id]
        seen[transcript.header.problem_id] += 1
        path = str(transcript.path.relative_to(folder))
        found.append(EpisodeResult.of_transcript(transcript, sample=sample, transcript=path))
    return found
