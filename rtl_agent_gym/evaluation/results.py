"""The results of an evaluation in its folder: one line for each finished episode.

The folder contains ``config.json``, ``results.jsonl`` and ``transcripts/``, and after the last episode ``summary.json``
and the official runner's files. If a crash cut off the last line of ``results.jsonl``, that line is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..episodes import recording
from ..errors import SandboxError, TranscriptError, UsageError, cannot_write, writing
from ..files import replace_file
from ..policies.protocol import Priced
from ..problems.model import COMPARED
from .config import EvaluationRecord
from .outcome import EpisodeResult
from .spending import STOPPED, Spent

logger = logging.getLogger(__name__)


def read_results(folder: Path) -> list[EpisodeResult]:
    """The results of a run, one for each episode: its first with a verdict, or else its last.

    An episode that a limit on money or tokens stopped has no result.

    Raises:
        TranscriptError: The file cannot be read, or a complete line is not a result.
    """
    found: dict[tuple[str, int], EpisodeResult] = {}
    for line in _lines(folder):
        known = found.get(line.key)
        if line.stop_reason != STOPPED and (known is None or known.score is None):
            found[line.key] = line
    return list(found.values())


def read_spending(folder: Path, prices: Priced | None = None) -> Spent:
    """What a run has spent: the sum over all lines, since a repeated episode was paid for more than once.

    Args:
        prices: Applied to lines whose cost is unknown, since the run had no prices when they were written.

    Raises:
        TranscriptError: As `read_results`.
    """
    return sum((line.spent.priced(prices) for line in _lines(folder) if line.spent is not None), Spent())


def _lines(folder: Path) -> list[EpisodeResult]:
    path = folder / "results.jsonl"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TranscriptError(f"{path}: cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            found.append(EpisodeResult.model_validate_json(line))
        except ValidationError as error:
            reason = " ".join(str(error).split())
            raise TranscriptError(f"{path}:{number}: not a result of an evaluation: {reason[:200]}") from error
    return found


def read_config(folder: Path) -> EvaluationRecord:
    """The configuration of a run.

    Raises:
        TranscriptError: It is missing, or was written by another version.
    """
    path = folder / "config.json"
    try:
        return EvaluationRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise TranscriptError(
            f"{path}: cannot be read: {error.strerror}; is this the folder of an evaluation?"
        ) from error
    except ValidationError as error:
        raise TranscriptError(f"{path}: not the configuration of an evaluation of this version") from error


class ResultsFile(contextlib.AbstractContextManager["ResultsFile"]):
    """Appends results, each flushed before the call returns. Closed by `close` or at the end of a ``with`` block.

    Owns ``results.jsonl`` and a lock on it, which the system releases when the process ends. A folder that contains
    something else is not changed.

    Args:
        folder: The evaluation's folder.
        record: The evaluation; saved as ``config.json``.
        resume: Whether the folder may already contain results.

    Raises:
        UsageError: The folder has another evaluation or another kind of run, another process uses it, or it cannot be
            written to.
        SandboxError: The disk is full.
    """

    def __init__(self, folder: Path, record: EvaluationRecord, *, resume: bool = True) -> None:
        self.folder = folder
        self._check(record)
        with writing("--out", folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / "results.jsonl", "a+b", buffering=0)  # noqa: SIM115 - closed by `close`
        try:
            self._lock()
            self.record = self._save(record)
            """The evaluation, with the highest number of samples that was ever requested."""
            self._drop_cut_line()
            self.done = {result.key: result for result in read_results(folder)}
            """Results so far, by `EpisodeResult.key`."""
            if self.done and not resume:
                raise UsageError(f"{folder} already contains results; resume, or choose another folder")
        except BaseException:
            self._file.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{self.folder}: another process is running this evaluation; wait, or choose another --out"
            ) from error
        except OSError as error:  # such as on Lustre mounted without flock
            raise UsageError(
                f"{self.folder}: its file system cannot lock files ({error.strerror}); choose another --out"
            ) from error

    def _check(self, record: EvaluationRecord) -> EvaluationRecord | None:
        """The folder's record, or None. Raises `UsageError` if it is another evaluation's, or if only results exist."""
        with writing("--out", self.folder):
            if not (self.folder / "config.json").exists():
                results = self.folder / "results.jsonl"
                if results.exists() and results.stat().st_size:
                    raise UsageError(f"{self.folder} has results without their config.json; choose another --out")
                return None
        try:
            known = read_config(self.folder)
        except TranscriptError as error:
            raise UsageError(
                f"{self.folder} contains no evaluation of this version ({error}); choose another --out"
            ) from error
        if changed := record.differences(known):
            raise UsageError(
                f"{self.folder} contains results of another evaluation, which differs in {', '.join(changed)}; "
                "choose another --out"
            )
        return known

    def _save(self, record: EvaluationRecord) -> EvaluationRecord:
        """Write ``config.json`` unless the existing one has as many samples. Returns the record in the folder."""
        known = self._check(record)
        if known is not None and known.samples >= record.samples:
            return known
        path = self.folder / "config.json"
        kept = record if known is None else known.model_copy(update={"samples": record.samples})
        with writing("--out", path):
            replace_file(path, kept.model_dump_json(indent=2) + "\n", durable=True)
        return kept

    def _drop_cut_line(self) -> None:
        """Drop a last line without a line end: the process was killed while it wrote that line."""
        self._file.seek(0)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            self._file.truncate(end)

    def _check_present(self) -> None:
        """Raise `UsageError` if the file was removed or moved: results in it would be lost, or apart from the rest."""
        path = self.folder / "results.jsonl"
        with writing("--out", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.fstat(self._file.fileno()), path.stat()):
                return
        raise UsageError(
            f"--out: {self.folder} was removed or moved during the evaluation; if it was moved, continue it with its "
            "new --out"
        )

    def append(self, result: EpisodeResult) -> EpisodeResult:
        """Write a result, unless its episode has a verdict already; returns the result that counts.

        Raises:
            SandboxError: The disk is full; the file is unchanged.
            UsageError: The file was removed or moved.
        """
        known = self.done.get(result.key)
        if known is not None and known.score is not None:
            return known
        self._check_present()
        line = memoryview(result.model_dump_json().encode() + b"\n")
        before = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(before)
            raise cannot_write("--out", self.folder / "results.jsonl", error) from error
        if result.stop_reason != STOPPED:
            self.done[result.key] = result
        return result

    async def append_when_there_is_room(self, result: EpisodeResult) -> EpisodeResult:
        """As `append`, but waits while the disk is full."""
        waited = False
        while True:
            try:
                return self.append(result)
            except SandboxError as error:
                if getattr(error.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not waited:
                    logger.warning("%s; results will be written when there is space", error)
                waited = True
                await asyncio.sleep(recording.DISK_PAUSE)

    def close(self) -> None:
        """Close the file, which releases the lock. Idempotent."""
        with contextlib.suppress(OSError):  # `append` has raised for results that could not be written
            self._file.close()


# ---- the file formats of the official CVDP runner, for its reporter

# With one sample per problem, ``raw_result.json`` and ``report.json`` are in the folder itself. With several, each of
# ``sample_1/``, ``sample_2/``, … has these two files, and ``composite_report.json`` is beside them. A problem's
# ``tests`` has one entry, the verdict of its harness: ``result`` 0 for passed, 1 for failed, like exit codes. Episodes
# without a verdict are left out, since a machine fault is not a failed test.

_REPORTED = ("hard", "medium", "easy")


def raw_result(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    """The content of ``raw_result.json``: ``{id: {category, difficulty, tests, errors}}``.

    Args:
        results: At most one for each problem.
    """
    raw: dict[str, Any] = {}
    for result in sorted(results, key=lambda result: result.key):
        if result.score is None:
            continue
        test: dict[str, Any] = {
            "result": 0 if result.passed else 1,
            "log": result.transcript,
            "error_msg": None if result.passed else result.score.reason or None,
            "execution": result.score.seconds,
        }
        if result.score.judge:
            test["llm_score"] = result.score.rating
        elif result.category in COMPARED and result.score.tests:
            test["bleu_score"] = result.score.bleu
        raw[result.problem_id] = {
            "category": f"cid{result.category:03d}",
            "difficulty": result.difficulty,
            "tests": [test],
            "errors": int(not result.passed),
        }
    return raw


def report(raw: Mapping[str, Any], config: EvaluationRecord, *, timestamp: str) -> dict[str, Any]:
    """The content of ``report.json``, from that of ``raw_result.json``."""
    counted: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    logs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    details: dict[str, list[dict[str, Any]]] = {"failing_tests": [], "passing_tests": []}
    for problem_id, entry in raw.items():
        category, difficulty = entry["category"], entry["difficulty"]
        for number, test in enumerate(entry["tests"]):
            failed = test["result"] != 0
            counted[category][difficulty][failed] += 1
            logs[category].append({"id": problem_id, "log": test["log"]})
            shown = {"test_id": problem_id, "category": category, "difficulty": difficulty, "test_index": number}
            if failed:
                shown |= {"error_msg": test["error_msg"], "agent_error": None}
            details["failing_tests" if failed else "passing_tests"].append(shown | {"log": test["log"]})
    content: dict[str, Any] = {
        category: {level: _counts(*levels[level]) for level in _REPORTED} | {"logs": logs[category]}
        for category, levels in counted.items()
    }
    return content | {"metadata": _metadata(config, timestamp), "test_details": details}


def _counts(passed: int, failed: int) -> dict[str, float]:
    """Each problem has one test, so the counts of tests and problems are equal."""
    total = passed + failed
    share = 100 * passed / total if total else 0
    return {
        f"{state} {unit}": value
        for unit in ("Tests", "Problems")
        for state, value in (("Passed", passed), ("Failed", failed), ("Total", total))
    } | {"Passed Tests (%)": share, "Passed Problems (%)": share}


def _metadata(config: EvaluationRecord, timestamp: str) -> dict[str, Any]:
    return {
        "dataset_path": config.problems,
        "timestamp": timestamp,
        "golden_mode": config.policy == "golden",
        "disable_patch": False,
        "model_agent": config.policy,
        "force_agentic": False,
        "force_agentic_include_golden": False,
        "force_agentic_include_harness": False,
        "force_copilot": False,
        "copilot_refine": None,
    }


def write_official(folder: Path, results: Sequence[EpisodeResult], config: EvaluationRecord) -> list[Path]:
    """Write the official runner's files into a folder. Returns the reports; the last is for the official reporter."""
    timestamp = time.strftime("%Y-%m-%d %H:%M:%S")
    played = 1 + max((result.sample for result in results), default=0)  # some samples may still be missing
    several = config.samples > 1
    names = [f"sample_{number + 1}" for number in range(played)]
    written: dict[Path, dict[str, Any]] = {}
    for sample, name in enumerate(names):
        place = folder / name if several else folder
        written[place / "raw_result.json"] = raw = raw_result([result for result in results if result.sample == sample])
        written[place / "report.json"] = report(raw, config, timestamp=timestamp)
    if several:
        extra = {"composite": True, "n_samples": played, "k_threshold": 1, "sample_prefixes": names}
        samples = [written[folder / name / "report.json"] | {"sample_index": at} for at, name in enumerate(names)]
        composite = {"metadata": _metadata(config, timestamp) | extra, "samples": samples}
        written[folder / "composite_report.json"] = composite
        for name in ("raw_result.json", "report.json"):  # from when the run had one sample
            (folder / name).unlink(missing_ok=True)
    for path, content in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return [path for path in written if path.name != "raw_result.json"]
