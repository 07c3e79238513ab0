"""Results in the file formats of the official CVDP runner, for its reporter.

With one sample per problem, ``raw_result.json`` and ``report.json`` are in the folder itself. With several, each of
``sample_1/``, ``sample_2/``, … has these two files, and ``composite_report.json`` is beside them.

A problem's ``tests`` has one entry, the verdict of its harness: ``result`` 0 for passed, 1 for failed, like exit codes.
Episodes without a verdict are left out, since a machine fault is not a failed test.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..problems import DIFFICULTIES
from ..problems.model import COMPARED
from .config import EvaluationRecord
from .outcome import EpisodeResult

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
    counted: dict[str, dict[str, list[int]]] = defaultdict(lambda: {level: [0, 0] for level in DIFFICULTIES})
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
    """Write the files into a run's folder. Returns the reports; the last one is for the official reporter."""
    timestamp = time.strftime("%Y-%m-%d %H:%M:%S")
    played = 1 + max((one.sample for one in results), default=0)  # of a folder's samples, some may not be there yet
    several = config.samples > 1
    names = [f"sample_{number + 1}" for number in range(played)]
    written: dict[Path, dict[str, Any]] = {}
    for sample, name in enumerate(names):
        place = folder / name if several else folder
        written[place / "raw_result.json"] = raw = raw_result([one for one in results if one.sample == sample])
        written[place / "report.json"] = report(raw, config, timestamp=timestamp)
    if several:
        extra = {"composite": True, "n_samples": played, "k_threshold": 1, "sample_prefixes": names}
        samples = [written[folder / name / "report.json"] | {"sample_index": at} for at, name in enumerate(names)]
        composite = {"metadata": _metadata(config, timestamp) | extra, "samples": samples}
        written[folder / "composite_report.json"] = composite
    for path, content in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return [path for path in written if path.name != "raw_result.json"]
