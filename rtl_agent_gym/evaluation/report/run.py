"""Reading a run from its folder (training, evaluation, or only transcripts), and the figures of a report on runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeGuard

from ... import strict_json
from ...errors import MOST_NAMES, UsageError
from ...visible import plural
from ..outcome import STAGES, EpisodeResult, Summary, summarise, verdicts
from ..recorded import OF_A_RUN, each_readable, transcript_files
from ..results import read_results, read_spending
from ..statistics import compare


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
    digests: dict[str, set[str]] = field(default_factory=dict)
    """The recorded digests of its problems, by id; several if a problem changed between its episodes."""

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
    """Whether a value can be averaged and drawn; a diverged run may have NaN and infinities."""
    return isinstance(value, int | float) and -1e100 < value < 1e100


def read_run(folder: Path, *, episodes: bool = True) -> Run:
    """Read a run. Incomplete lines and transcripts, as after a crash, are left out.

    Args:
        episodes: Whether to read the episodes too, which is slow for a long run.

    Raises:
        UsageError: There are no metrics, results or transcripts, or only those of several runs in the folder.
        TranscriptError: The results cannot be read.
    """
    if not folder.is_dir():
        what = "is a file" if folder.is_file() else "no such folder"
        raise UsageError(f"{folder}: {what}; a report is made of the folders of runs")
    unreadable: list[str] = []
    metrics = _json_objects(folder / "metrics.jsonl")
    if not metrics and (below := _runs_below(folder)):
        names = ", ".join(map(str, below[:MOST_NAMES])) + (", …" if len(below) > MOST_NAMES else "")
        raise UsageError(
            f"{folder}: not a run, but a folder of {plural(len(below), 'run')}; name those to report: {names}"
        )
    digests: dict[str, set[str]] = {}
    results = _results(folder, unreadable, digests) if episodes else []
    if not metrics and not results:
        why = f"; {unreadable_note(unreadable)}" if unreadable else ""
        raise UsageError(
            f"{folder} is not a run: it has no metrics.jsonl, no results.jsonl and no transcript of a finished "
            f"episode{why}"
        )
    (config,) = _json_objects(folder / "config.json", lines=False) or [{}]
    digests |= {name: {digest} for name, digest in config.get("digests", {}).items()}
    checkpoints = _json_objects(folder / "checkpoints.jsonl")
    best = next((checkpoint for checkpoint in reversed(checkpoints) if checkpoint.get("best")), None)
    spent = read_spending(folder) if episodes and (folder / "results.jsonl").exists() else None
    summary = summarise(results, spent=spent, same_policy=not metrics)
    return Run(folder, folder.resolve().name, config, metrics, results, summary, unreadable, best, digests)


def _runs_below(folder: Path) -> list[Path]:
    """The training runs and evaluations in a folder that is not a run; not the evaluations of a training run."""
    try:
        found = {path.parent for path in folder.rglob("*.jsonl") if path.name in OF_A_RUN}
    except OSError as error:
        raise UsageError(f"{folder}: cannot be searched: {error.filename}: {error.strerror}") from error
    is_run = folder in found or (folder / "config.json").exists()  # all there is before the first training step
    return [] if is_run else sorted(run for run in found if found.isdisjoint(run.parents))


def unreadable_note(sentences: Sequence[str]) -> str:
    """How many transcripts cannot be read, and why the first cannot."""
    return f"{plural(len(sentences), 'transcript')} could not be read; first: {sentences[0]}"


def _json_objects(path: Path, *, lines: bool = True) -> list[dict[str, Any]]:
    """The objects in a file, one per line or only one; none if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    rows = []
    for part in text.split("\n") if lines else [text]:
        with suppress(ValueError):
            rows.append(strict_json.loads(part))
    return [row for row in rows if isinstance(row, dict)]


def _results(folder: Path, unreadable: list[str], digests: dict[str, set[str]]) -> list[EpisodeResult]:
    """The results of an evaluation; for other runs, those in transcripts, whose problem digests go into `digests`."""
    if (folder / "results.jsonl").exists():
        return read_results(folder)
    try:
        files = transcript_files(folder, evaluations=False)
    except UsageError:
        return []
    timed: list[tuple[float, EpisodeResult]] = []
    for transcript in each_readable(files, unreadable):  # one at a time: a long run has gigabytes
        if transcript.complete:  # otherwise the episode is still running, or was cut off
            path = str(transcript.path.relative_to(folder))
            header = transcript.header
            timed.append((header.time, EpisodeResult.of_transcript(transcript, transcript=path)))
            digests.setdefault(header.problem_id, set()).add(header.problem_digest)
    seen: Counter[str] = Counter()
    found = []
    for _, result in sorted(timed, key=itemgetter(0)):
        found.append(result.model_copy(update={"sample": seen[result.problem_id]}))
        seen[result.problem_id] += 1
    return found


TIMES = {
    "time/sample": "sampling episodes",
    "time/wait": "waiting for episodes",
    "time/teacher": "teacher log-probabilities",
    "time/train": "training",
}
"""Parts of a step's time. A pipelined run samples while it trains, so only its waiting counts."""
EVALUATING = {"time/evaluate_before": "evaluating before", "time/evaluate": "evaluating"}
"""Parts of a training run's time outside its steps."""

NEARLY = 8
"""Maximum number of failed tests of an episode that was close to passing."""


@dataclass(frozen=True)
class Change:
    """A figure at the beginning of a run and at its end."""

    name: str
    before: float
    after: float
    how: str
    """What both are averaged over, and their intervals if they are known."""
    percent: bool


SHARES = {
    "pass_rate": ("pass rate", True),
    "env/all/reward/total": ("reward", False),
    "env/all/format_valid": ("format", True),
    "env/all/syntax_valid": ("syntax", True),
    "env/all/interface": ("interface", True),
    "env/all/tests_share": ("share of tests", True),
    "env/all/quality": ("quality of results", True),
    "env/all/coverage": ("coverage of testbenches", True),
    "env/all/ac_tokens_per_turn": ("tokens per turn", False),
    "env/all/turns_per_episode": ("turns", False),
    "teacher_kl": ("teacher KL, nats per token", False),
    "sft/nll": ("negative log-likelihood, nats per token", False),
    "optim/entropy": ("entropy, nats per token", False),
}
"""The metrics whose first and last values are compared: their names, and whether they are shares."""

RATES = {
    "problems": ("problems", "{:,}"),
    "episodes": ("episodes with a verdict", "{:,}"),
    "passed": ("passed", "{:.1%}"),
    **{stage: (f"{stage} succeeds", "{:.1%}") for stage in STAGES},
    "tests": ("share of the tests that pass", "{:.1%}"),
    "reward": ("reward", "{:.3f}"),
}
COSTS = {
    "turns": ("turns per episode", "{:.1f}"),
    "malformed": ("malformed turns per episode", "{:.2f}"),
    "output_tokens": ("tokens written per episode", "{:,.0f}"),
    "tokens_per_turn": ("tokens written per turn", "{:,.0f}"),
    "prompt_tokens": ("tokens read per episode", "{:,.0f}"),
    "seconds": ("seconds per episode", "{:.1f}"),
}
"""The rows of `side_by_side`: a field of `Rates` or `Cost`, its label and its format."""


def changes(run: Run) -> list[Change]:
    """The effect of training: its evaluations first, then the training episodes of the first and last tenth."""
    found = []
    for kind, of in _evaluated(run).items():
        for end in ("pass_rate", "reward"):
            name, percent = f"{end.replace('_', ' ')}, {of}", end == "pass_rate"
            points = run.evaluations(kind, end)
            if len(points) < 2:
                continue
            first, last = points[0], points[-1]
            how = "new episodes before training and after it" if first.steps == 0 else "first and last evaluation"
            if first.interval and last.interval:
                how += ", 95 % intervals {:.0%} – {:.0%} and {:.0%} – {:.0%}".format(*first.interval, *last.interval)
            found.append(Change(name, first.value, last.value, how, percent))
    for metric, (name, percent) in SHARES.items():
        _, values = run.curve(metric)
        if len(values) < 2:
            continue
        size = -(-len(values) // 10)
        how = f"training episodes, first and last {size} of {len(values)} steps" if size > 1 else "first and last step"
        found.append(Change(name, fmean(values[:size]), fmean(values[-size:]), how, percent))
    return found


def _evaluated(run: Run) -> dict[str, str]:
    """The names of a training run's evaluations, with a description; held-out problems first."""
    found = {name.removesuffix("/pass_rate") for row in run.metrics for name in row if name.endswith("/pass_rate")}
    extra = sorted(name.removeprefix("test/") for name in found if name.startswith("test/"))
    return {
        "test": "held-out problems",
        **{f"test/{name}": f"held-out problems: {name}" for name in extra},
        "train": "training problems",
    }


def side_by_side(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Rates and costs: a name, and each run's value. Rows without any value are left out.

    The rates of fair rows follow those of all rows, unless all rows with a verdict are known to be fair.
    """
    summaries = [run.summary for run in runs]
    of: dict[str, Sequence[Summary | None]] = {"": summaries, "fair rows: ": [summary.fair for summary in summaries]}
    if all(summary.fair is None or summary.fair.finished == summary.finished for summary in summaries):
        del of["fair rows: "]
    rows: dict[str, list[object]] = {}
    forms: dict[str, str] = {}
    for prefix, found in of.items():
        for name, (label, form) in RATES.items():
            row = prefix + label
            rows[row], forms[row] = [getattr(summary and summary.overall, name, None) for summary in found], form
            if name == "episodes":
                rows |= _pass_rows(prefix, found)
    for name, (label, form) in COSTS.items():
        rows[label], forms[label] = [getattr(summary.cost, name, None) for summary in summaries], form
    rows["machine faults"] = [summary.faults or None for summary in summaries]
    for cause in sorted({cause for summary in summaries for cause in summary.causes}):
        rows[f"failed: {cause}"] = [run.summary.causes.get(cause, 0) if run.results else None for run in runs]
    return [
        (label, ["–" if _unknown(value) else forms.get(label, "{}").format(value) for value in values])
        for label, values in rows.items()
        if not all(map(_unknown, values))
    ]


def _unknown(value: object) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _pass_rows(prefix: str, found: Sequence[Summary | None]) -> dict[str, list[object]]:
    passes = [summary.pass_at if summary is not None else {} for summary in found]
    ks = [k for k in sorted(set().union(*passes)) if k <= 5 or all(k >= max(rates, default=0) for rates in passes)]
    return {f"{prefix}pass@{k}": [rates.get(k) for rates in passes] for k in ks}


@dataclass(frozen=True)
class Flip:
    """A problem whose passing differs between the first run and another run."""

    problem_id: str
    first: tuple[int, int]
    """Episodes passed, and episodes with a verdict, of the first run; `other` likewise."""
    other: tuple[int, int]
    gained: bool
    """Whether the other run passes the problem."""


def compare_runs(first: Run, other: Run) -> dict[str, Any]:
    """The first run compared with another: the difference on the shared problems, and the flipped problems, which only
    one of them passes in at least half of its episodes; gained problems first.

    Problems of both whose recorded digests differ are left out.
    """
    mine, others = (
        {problem: (sum(passed), len(passed)) for problem, passed in verdicts(run.results).items()}
        for run in (first, other)
    )
    shared = mine.keys() & others.keys()
    changed = {name for name in shared if len(first.digests.get(name, set()) | other.digests.get(name, set())) > 1}
    for problem in changed:
        del mine[problem], others[problem]
    left_out = (
        f"Left out: {plural(len(changed), 'shared problem')}, whose texts, files or hidden tests differ between the "
        "runs"
    )
    flips = []
    for problem in sorted(shared - changed):
        before, after = (2 * passed >= played for passed, played in (mine[problem], others[problem]))
        if before != after:
            flips.append(Flip(problem, mine[problem], others[problem], gained=after))
    gained = sum(flip.gained for flip in flips)
    return {
        "first": first.name,
        "other": other.name,
        "flips": sorted(flips, key=lambda flip: not flip.gained),
        "gained": gained,
        "lost": len(flips) - gained,
        "paired": compare(mine, others),
        "left_out": left_out if changed else "",
    }


@dataclass(frozen=True)
class FailedEpisode:
    """An episode that did not pass, and why."""

    run: str
    result: EpisodeResult
    why: str
    transcript: Path | None


def telling_failures(run: Run, most: int = 8) -> list[FailedEpisode]:
    """The most informative failures: attempts against the grader, then near misses, then the others; each cause once
    per problem.

    In a training run later episodes come first, since they show the final policy.
    """
    failed = sorted((result for result in reversed(run.results) if not result.passed), key=_rank)
    found: list[FailedEpisode] = []
    seen: set[tuple[str, str]] = set()
    causes: Counter[str] = Counter()
    for result in failed:
        cause = str(result.cause)
        if (result.problem_id, cause) in seen or causes[cause] >= max(2, most // 2) or len(found) == most:
            continue
        seen.add((result.problem_id, cause))
        causes[cause] += 1
        path = run.folder / result.transcript if result.transcript else None
        recorded = path if path is not None and path.is_file() else None
        found.append(FailedEpisode(run.name, result, _why(result), recorded))
    return found


def _rank(result: EpisodeResult) -> tuple[float, ...]:
    score = result.score
    if score is None:
        return (3, 0)
    if score.violations:
        return (0, 0)
    if score.tests_passed and score.tests_total - score.tests_passed <= NEARLY:
        return (1, -score.tests_passed / score.tests_total)
    return (2, -score.reward)


def _why(result: EpisodeResult) -> str:
    score = result.score
    if score is None:
        return result.fault or "the machine failed"
    if score.violations:
        return f"violation: {score.violations[0]}"
    if result.cause == "tests" and score.tests_passed:
        return f"{score.tests_passed} of {score.tests_total} tests pass: {score.reason}"
    return f"{result.cause}: {score.reason}"


@dataclass(frozen=True)
class CostItem:
    """A part of a run's time, tokens or money."""

    name: str
    value: float
    unit: Literal["s", "$", ""] = ""
    share: float | None = None
    """Share of the run's time."""


def parts(run: Run) -> list[CostItem]:
    """The time and tokens that a run took."""
    return _training_parts(run) if run.kind == "training" else _evaluation_parts(run)


def _training_parts(run: Run) -> list[CostItem]:
    sums = {name: math.fsum(values) for name in TIMES if (values := run.curve(name)[1])}
    if "time/wait" in sums:
        sums.pop("time/sample", None)
    evaluating = {name: math.fsum(values) for name in EVALUATING if (values := run.curve(name)[1])}
    total = math.fsum(run.curve("time/total")[1]) + math.fsum(evaluating.values()) or math.fsum(sums.values())
    sums |= evaluating
    found = [
        CostItem((TIMES | EVALUATING)[name], value, "s", value / total if total else None)
        for name, value in sums.items()
    ]
    rest = total - math.fsum(sums.values())
    if total and rest > 0.005 * total:
        found.append(CostItem("the rest", rest, "s", rest / total))
    found.append(CostItem("all steps and evaluations" if evaluating else "all steps", total, "s"))
    counts = {
        "env/all/total_ac_tokens": "tokens sampled",
        "env/all/total_ob_tokens": "tokens read",
        "env/all/total_episodes": "episodes",
        "rollouts/faults": "machine faults",
    }
    return found + [CostItem(name, math.fsum(values)) for key, name in counts.items() if (values := run.curve(key)[1])]


def _evaluation_parts(run: Run) -> list[CostItem]:
    scored = [result for result in run.results if result.score is not None]
    total = math.fsum(result.seconds for result in scored)
    acting = math.fsum(result.acting_seconds for result in scored)
    graded = [score.seconds for result in scored if (score := result.score) is not None and not score.cached]
    grading = math.fsum(filter(_drawable, graded))
    grading = min(grading, max(0.0, total - acting))
    rows = (("waiting for the policy", acting), ("grading", grading), ("shell and sandbox", total - acting - grading))
    found = [CostItem(name, value, "s", value / total if total else None) for name, value in rows]
    found.append(CostItem("all episodes, one after the other", total, "s"))
    spent = run.summary.spent
    for name, count_of in (("tokens written", "output_tokens"), ("tokens read", "prompt_tokens")):
        counts = [getattr(result, count_of) for result in scored]
        if spent is not None:
            found.append(CostItem(f"{name}, lost attempts included", getattr(spent, count_of)))
        elif counts and None not in counts:
            found.append(CostItem(name, sum(counts)))
    if spent is not None:
        found.append(CostItem("tokens from a cache, of all read", spent.cached_tokens))
        if spent.cost is not None:
            found.append(CostItem("cost in US dollars, lost attempts included", spent.cost, "$"))
    found.append(CostItem("episodes", len(run.results)))
    if faults := len(run.results) - len(scored):
        found.append(CostItem("machine faults", faults))
    return found


def configuration(runs: Sequence[Run]) -> list[tuple[str, list[str], bool]]:
    """The options of runs side by side: name, each run's value, and whether the values differ."""
    rows = []
    for name in sorted({name for run in runs for name in run.config}):
        values = [_shown(run.config[name]) if name in run.config else "–" for run in runs]
        exact = {json.dumps(run.config[name], sort_keys=True) if name in run.config else None for run in runs}
        rows.append((name, values, len(exact) > 1))
    return rows


def _shown(value: object) -> str:
    if isinstance(value, dict) and len(value) > 6:
        return f"{len(value)} entries"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else text[:199] + "…"
