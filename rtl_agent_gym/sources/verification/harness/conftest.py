"""A bench passes if it kills enough of the mutants; the others still count as failed tests."""

import json
from pathlib import Path

SETTINGS = json.loads(Path("/src/judge.json").read_text(encoding="utf-8"))
killed, failed = {}, set()


def pytest_runtest_logreport(report):
    if "::test_rejects" in report.nodeid:
        killed[report.nodeid] = killed.get(report.nodeid, True) and report.passed
    elif report.failed:
        failed.add(report.nodeid)


def pytest_sessionfinish(session, exitstatus):
    enough = bool(killed) and sum(killed.values()) >= SETTINGS["threshold"] * len(killed)
    if exitstatus == 1 and enough and not failed and len(killed) == len(SETTINGS["mutants"]):
        session.exitstatus = 0
