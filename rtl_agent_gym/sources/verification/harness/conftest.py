"""A bench passes if it kills enough of the mutants; the others still count as failed tests."""

import json
from pathlib import Path

THRESHOLD = json.loads(Path("/src/judge.json").read_text(encoding="utf-8"))["threshold"]
ended = {}


def pytest_runtest_logreport(report):
    ended[report.nodeid] = ended.get(report.nodeid, True) and report.passed


def pytest_sessionfinish(session, exitstatus):
    enough = bool(ended) and sum(ended.values()) >= THRESHOLD * len(ended)
    if exitstatus == 1 and enough and len(ended) == session.testscollected:
        session.exitstatus = 0
