"""What a report says of a run, read from its folder: a training run's, an evaluation's, or a folder of transcripts."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from .. import strict_json
from ..errors import UsageError
from ..scoring.score import Score
from ..transcripts import Transcript
from .results import EpisodeResult, read_results
from .statistics import Paired, compare
from .summary import Summary, summarise
from .viewer.model import token_count
from .viewer.sources import each_readable, transcript_files

BEFORE = ("test_before/", "before/", "eval_before/")
AFTER = ("test/", "eval/", "after/")
"""What the metrics of evaluations within a training run begin with."""

TIMES = {
    "time/sample": "sampling episodes",
    "time/wait": "waiting for episodes",
    "time/teacher": "asking the teacher",
    "time/train": "training",
    "time/test": "evaluating",
    "time/test_before": "evaluating before",
}
"""Parts of a training run's time. Of the first two, the shorter one counts: a pipelined run samples while it trains."""

_GRADED_BEFORE = 8  # failed tests that still count as close to passing, at most


@dataclass
class Run:
    """One run, as far as its folder tells of it."""

    folder: Path
    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    results: list[EpisodeResult]
    summary: Summary
    unreadable: list[str] = field(default_factory=list)

    @property
    def kind(self) -> Literal["training", "evaluation"]:
        """A training run has metrics."""
        return "training" if self.metrics else "evaluation"

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """Steps and values of a metric, where it is there and finite."""
        points = [
            (float(row.get("step", at)), float(row[name]))
            for at, row in enumerate(self.metrics)
            if _drawable(row.get(name)) and _drawable(row.get("step", at))
        ]
        return [step for step, _ in points], [value for _, value in points]


def _drawable(value: object) -> bool:
    """Whether it is a number that can be averaged and drawn; a diverged run has others."""
    return isinstance(value, int | float) and -1e100 < value < 1e100


def read_run(folder: Path) -> Run:
    """Read a run. What a crash cut off is left out.

    Raises:
        UsageError: There is neither a metric nor a result nor a transcript.
        TranscriptError: The results cannot be read.
    """
    if folder.is_file():
        raise UsageError(f"{folder}: is a file; a report is made of the folders of runs")
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; a report is made of the folders of runs")
    metrics, unreadable = _json_lines(folder / "metrics.jsonl"), list[str]()
    results = _results(folder, unreadable)
    if not metrics and not results:
        raise UsageError(
            f"{folder}: holds no metrics.jsonl, no results.jsonl and no transcript of a finished episode, "
            "so there is no run"
        )
    return Run(folder, folder.resolve().name, _config(folder), metrics, results, summarise(results), unreadable)


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = strict_json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = strict_json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _results(folder: Path, unreadable: list[str]) -> list[EpisodeResult]:
    """The results of an evaluation; of other runs, what their transcripts say."""
    if (folder / "results.jsonl").exists():
        return read_results(folder)
    try:
        files = transcript_files(folder)
    except UsageError:
        return []
    seen: Counter[str] = Counter()
    found = []
    transcripts = sorted(each_readable(files, unreadable), key=lambda transcript: transcript.header.time)
    for transcript in transcripts:
        if transcript.end is None:
            continue  # still going on, or cut off
        sample = seen[transcript.header.problem_id]
        seen[transcript.header.problem_id] += 1
        found.append(_result_of(transcript, sample, folder))
    return found


def _result_of(transcript: Transcript, sample: int, folder: Path) -> EpisodeResult:
    header, end = transcript.header, transcript.end
    assert end is not None
    return EpisodeResult(
        problem_id=header.problem_id,
        sample=sample,
        category=header.category or 0,
        difficulty=header.difficulty or "unknown",
        seed=header.seed or 0,
        score=Score.model_validate(transcript.score.score) if transcript.score is not None else None,
        fault=end.error,
        stop_reason=end.stop_reason,
        turns=len(transcript.turns),
        malformed=sum(turn.action == "malformed" for turn in transcript.turns),
        output_tokens=token_count(transcript),
        seconds=end.seconds,
        transcript=str(transcript.path.relative_to(folder)),
    )


# ---- rates before and after


@dataclass(frozen=True)
class Change:
    """A figure at the beginning of a run and at its end."""

    name: str
    before: float
    after: float
    how: str
    """Over what both were taken."""
    percent: bool = True


SHARES = {
    "pass_rate": ("pass rate", True),
    "env/all/reward/total": ("reward", False),
    "env/all/format_valid": ("format", True),
    "env/all/syntax_valid": ("syntax", True),
    "env/all/interface": ("interface", True),
    "env/all/tests_share": ("share of tests", True),
    "env/all/ac_tokens_per_turn": ("tokens a turn", False),
    "env/all/turns_per_episode": ("turns", False),
    "teacher_kl": ("teacher KL, nats a token", False),
    "optim/entropy": ("entropy, nats a token", False),
}
"""The metrics whose beginning and end a report sets side by side: their names, and whether they are shares."""


def changes(run: Run) -> list[Change]:
    """What training did: its evaluations first, then its own episodes, a tenth of the steps at either end."""
    found = list(_evaluated(run))
    for metric, (name, percent) in SHARES.items():
        _, values = run.curve(metric)
        if len(values) < 2:
            continue
        size = -(-len(values) // 10)
        how = f"training episodes, first and last {size} of {len(values)} steps" if size > 1 else "first and last step"
        found.append(Change(name, fmean(values[:size]), fmean(values[-size:]), how, percent))
    return found


def _evaluated(run: Run) -> list[Change]:
    found = []
    for end, (name, percent) in {"pass_rate": ("pass rate", True), "reward": ("reward", False)}.items():
        before = [value for prefix in BEFORE for value in run.curve(prefix + end)[1]]
        after = [value for prefix in AFTER for value in run.curve(prefix + end)[1]]
        if before and after:
            found.append(Change(name, before[0], after[-1], "fresh episodes before training and after it", percent))
        elif len(after) > 1:
            found.append(Change(name, after[0], after[-1], "first and last evaluation", percent))
    return found


# ---- runs against each other


@dataclass(frozen=True)
class Flip:
    """A problem whose passing differs between the first run and another one."""

    problem_id: str
    run: str
    """The other run."""
    first: tuple[int, int]
    """Episodes passed, and episodes with a verdict, of the first run."""
    other: tuple[int, int]
    gained: bool
    """Whether the other run is the better one."""


def verdicts(run: Run) -> dict[str, tuple[int, int]]:
    """For each problem how many episodes passed, of how many with a verdict."""
    found: dict[str, list[bool]] = defaultdict(list)
    for result in run.results:
        if result.score is not None:
            found[result.problem_id].append(result.passed)
    return {problem: (sum(of), len(of)) for problem, of in found.items()}


def paired(first: Run, other: Run) -> Paired | None:
    """Whether the runs' pass rates differ on the problems that both have; None where they share none."""
    return compare(verdicts(first), verdicts(other))


def flips(first: Run, other: Run) -> list[Flip]:
    """The problems that one run passes at least half of the time and the other one does not; the gained first."""
    mine, others = verdicts(first), verdicts(other)
    found = [
        Flip(problem, other.name, mine[problem], others[problem], gained=_mostly(others[problem]))
        for problem in sorted(mine.keys() & others.keys())
        if _mostly(mine[problem]) != _mostly(others[problem])
    ]
    return sorted(found, key=lambda flip: not flip.gained)


def _mostly(verdict: tuple[int, int]) -> bool:
    return 2 * verdict[0] >= verdict[1]


# ---- failures worth a look


@dataclass(frozen=True)
class Failure:
    """An episode that did not pass, and why it is worth a look."""

    run: str
    result: EpisodeResult
    why: str
    transcript: Path | None


def telling_failures(run: Run, most: int = 8) -> list[Failure]:
    """Failed episodes that say most: tried forgeries, then near misses, then the others; each cause once a problem.

    Of a training run, later episodes go before earlier ones: they are of the policy that came out.
    """
    failed = [result for result in reversed(run.results) if not result.passed]
    ranked = sorted(failed, key=_rank)
    found: list[Failure] = []
    seen: set[tuple[str, str]] = set()
    causes: Counter[str] = Counter()
    for result in ranked:
        cause = str(result.cause)
        if (result.problem_id, cause) in seen or causes[cause] >= max(2, most // 2) or len(found) == most:
            continue
        seen.add((result.problem_id, cause))
        causes[cause] += 1
        path = run.folder / result.transcript if result.transcript else None
        found.append(Failure(run.name, result, _why(result), path if path is not None and path.is_file() else None))
    return found


def _rank(result: EpisodeResult) -> tuple[float, ...]:
    score = result.score
    if score is None:
        return (3, 0)
    if score.violations:
        return (0, 0)
    failed = score.tests_total - score.tests_passed
    if score.tests_passed and failed <= _GRADED_BEFORE:
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


# ---- cost and time


@dataclass(frozen=True)
class Part:
    """A part of what a run took."""

    name: str
    value: float
    unit: Literal["s", "tokens", "episodes"]
    share: float | None = None
    """Of the run's time."""


def parts(run: Run) -> list[Part]:
    """Where time and tokens went."""
    return _training_parts(run) if run.kind == "training" else _evaluation_parts(run)


def _training_parts(run: Run) -> list[Part]:
    sums = {name: math.fsum(run.curve(name)[1]) for name in TIMES if run.curve(name)[1]}
    if "time/wait" in sums:
        sums.pop("time/sample", None)
    total = math.fsum(run.curve("time/total")[1]) or math.fsum(sums.values())
    found = [Part(TIMES[name], value, "s", value / total if total else None) for name, value in sums.items()]
    rest = total - math.fsum(sums.values())
    if total and rest > 0.005 * total:
        found.append(Part("the rest", rest, "s", rest / total))
    found.append(Part("all steps", total, "s"))
    for metric, name in (("env/all/total_ac_tokens", "tokens sampled"), ("env/all/total_ob_tokens", "tokens read")):
        if values := run.curve(metric)[1]:
            found.append(Part(name, math.fsum(values), "tokens"))
    if values := run.curve("env/all/total_episodes")[1]:
        found.append(Part("episodes", math.fsum(values), "episodes"))
    if values := run.curve("rollouts/faults")[1]:
        found.append(Part("machine faults", math.fsum(values), "episodes"))
    return found


def _evaluation_parts(run: Run) -> list[Part]:
    scored = [result for result in run.results if result.score is not None]
    total = math.fsum(result.seconds for result in scored)
    acting = math.fsum(result.acting_seconds for result in scored)
    grading = math.fsum(
        result.score.seconds for result in scored if result.score is not None and not result.score.cached
    )
    grading = min(grading, max(0.0, total - acting))
    rows = (("waiting for the policy", acting), ("grading", grading), ("shell and sandbox", total - acting - grading))
    found = [Part(name, value, "s", value / total if total else None) for name, value in rows]
    found.append(Part("all episodes, one after the other", total, "s"))
    for name, values in (
        ("tokens written", [result.output_tokens for result in scored]),
        ("tokens read", [result.prompt_tokens for result in scored]),
    ):
        if any(value is not None for value in values):
            found.append(Part(name, math.fsum(value or 0 for value in values), "tokens"))
    found.append(Part("episodes", len(run.results), "episodes"))
    if faults := len(run.results) - len(scored):
        found.append(Part("machine faults", faults, "episodes"))
    return found


# ---- configuration


def configuration(runs: Sequence[Run]) -> list[tuple[str, list[str], bool]]:
    """The options of runs side by side: name, each run's value, and whether the values differ."""
    rows = []
    for name in sorted({name for run in runs for name in run.config}):
        values = [_shown(run.config[name]) if name in run.config else "–" for run in runs]
        rows.append((name, values, len(set(values)) > 1))
    return rows


def _shown(value: object) -> str:
    if isinstance(value, dict) and len(value) > 6:
        return f"{len(value)} entries"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else text[:199] + "…"
