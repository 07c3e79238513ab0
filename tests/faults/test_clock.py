"""The clock is set back: no time limit uses it."""

from __future__ import annotations

import ast
import os
import subprocess
import time
from pathlib import Path

import pytest

import rtl_agent_gym
from rtl_agent_gym.evaluation import read_results
from tests.arbiter import ARBITER
from tests.parsing import parsed

from .moments import Moment
from .processes import EVAL, lines, started, transcripts, wait_for

PACKAGE = Path(rtl_agent_gym.__file__).parent
WALL = {("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
WALL |= {("time", name) for name in ("time", "time_ns", "clock_gettime", "clock_gettime_ns")}
ALLOWED = {
    "transcripts.py",  # when an event was recorded
    "policies/chat_answers.py",  # a service's Retry-After may be a date; the wait has an upper bound
}
LIBRARY = os.environ.get("RTL_GYM_FAKETIME") or next(map(str, Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), "")
"""Debian's libfaketime; the variable names another place."""


def test_nothing_but_records_reads_the_wall_clock() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                if (owner, node.attr) in WALL:
                    found[str(path.relative_to(PACKAGE))] = node.lineno
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert not {name.name for name in node.names} & {"time", "time_ns"}, path
    assert set(found) == ALLOWED, found


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not LIBRARY, reason="needs Debian's libfaketime")
@pytest.mark.parametrize("shift", ["-1d", "+40d"])
def test_an_evaluation_whose_clock_is_set_ends_as_any_other(tmp_path: Path, moment: Moment, shift: str) -> None:
    script = tmp_path / "turns.yaml"
    script.write_text("- {run: sleep 3}\n- {run: sleep 60}\n- {run: sleep 3}\n")
    clock = tmp_path / "clock"
    clock.write_text("+0")
    names = {
        "LD_PRELOAD": LIBRARY,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    shown = subprocess.run(["date", "+%s"], env=os.environ | names, capture_output=True, text=True, check=True).stdout
    assert abs(int(shown) - time.time()) < 60
    folder, log = tmp_path / "run", tmp_path / "log"
    options = ["--problem", ARBITER, "--policy", f"scripted {script}"]
    options += ["--weights", "proxy", "-n", "2", "--command-timeout", "6", "--concurrency", "2"]
    pause = moment.within(0, 8)
    with started([*EVAL, "--out", str(folder), *options], log, **names) as process:
        wait_for(lambda: any(lines(path) for path in folder.glob("transcripts/*")), process=process)
        time.sleep(pause)
        clock.write_text(shift)
        begun = time.monotonic()
        assert process.wait(120) == 0, log.read_text()
        assert time.monotonic() - begun < 90
    found = read_results(folder)
    assert [(one.turns, one.fault, one.retries) for one in found] == [(4, None, 0)] * 2
    assert all(10 < one.seconds < 100 for one in found), [one.seconds for one in found]
    stamps = set()
    for path in transcripts(folder):
        events = rtl_agent_gym.transcripts.read_transcript(path)
        commands = [turn.commands[0] for turn in events.turns[:3]]
        assert [command.timed_out for command in commands] == [False, True, False]
        assert all(2.5 < command.seconds < 20 for command in commands)
        stamps |= {event.time for event in (events.header, *events.turns) if event.time}
    assert max(stamps) - min(stamps) > 3600, "the clock was not set while the episodes were played"
