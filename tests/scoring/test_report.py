"""The report of a grading stays short, and no verdict is lost for that."""

from __future__ import annotations

import json

import pytest

from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring import supervisor as supervisor_module
from rtl_agent_gym.scoring.outcomes import account
from rtl_agent_gym.scoring.report import LOGS, MORE, TEXTS, Complaints, decode, encode, encoded_size, fit_logs, shorten

from .conftest import GOLDEN, TARGET, make_problem

WIDE = "\N{GRINNING FACE}"
"""Four bytes of UTF-8, twelve in a report."""


def test_complaints_of_a_hundred_simulations_have_room_and_none_is_forgotten() -> None:
    complaints = Complaints()
    kept = [
        complaints.fit({"tool": "vvp", "violations": [f"{simulation}:{n} {WIDE * 390}" for n in range(20)]})
        for simulation in range(100)
    ]
    assert len(json.dumps(kept)) < TEXTS + 100_000
    assert len(kept[0]["violations"]) == 20
    assert sum(message["violations"].count(MORE) for message in kept) == 1
    found = account(kept)
    assert found.simulated == 100
    assert found.violations[-1] == MORE


def test_a_first_complaint_without_room_is_still_a_complaint() -> None:
    complaints = Complaints()
    complaints.fit({"tool": "iverilog", "code": 1, "said": "x" * (TEXTS - 10)})
    assert complaints.fit({"tool": "vvp", "violations": ["a long complaint"], "unknown": []})["violations"] == [MORE]


def test_how_tests_ended_is_never_cut() -> None:
    complaints = Complaints()
    complaints.left = 0
    message = {"source": "cocotb", "test": WIDE * 500, "outcome": "passed"}
    assert complaints.fit(message) == message


def test_logs_share_their_room() -> None:
    parts = [{"log": "\0" * 64_000} for _ in range(40)]
    fit_logs(parts)
    assert sum(encoded_size(part["log"]) for part in parts) <= LOGS
    assert all("left out" in part["log"] for part in parts)
    short = [{"log": "as it was"}]
    fit_logs(short)
    assert short == [{"log": "as it was"}]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("\udcf0\udc9f\udc98\udc80", "😀"), ("a\udcff", "a\ufffd"), ("a\ud83d\udcff", "a??")],
)
def test_bytes_in_complaints_become_characters(text: str, shown: str) -> None:
    assert Complaints().fit({"notes": [text]}) == {"notes": [shown]}


@pytest.mark.parametrize("text", ["", "a" * 1000, WIDE * 1000, "a" * 500 + WIDE * 500])
def test_what_is_shortened_fits(text: str) -> None:
    for room in (100, 1000, 100_000):
        assert encoded_size(shorten(text, room)) <= room
    assert shorten(text, 100_000) == text


def test_a_long_report_travels_compressed() -> None:
    long = {"messages": [{"source": "cocotb", "test": f"test_{n}", "outcome": "passed"} for n in range(150_000)]}
    for report in ({"messages": []}, long):
        text = encode(report)
        assert len(text) < 4_000_000
        assert decode(text) == report
    for wrong in ("", "no report", "{", "[]", "AAAA"):
        with pytest.raises(ValueError):
            decode(wrong)


def test_more_events_than_can_be_are_a_fault_and_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "MOST_MESSAGES", 3)
    monkeypatch.setattr(supervisor_module, "SOCKET", "\0rtl-gym-test-report")
    supervisor = supervisor_module.Supervisor({"settings": {}, "seconds": 1})
    for _ in range(5):
        supervisor.note({"source": "cocotb"})
    supervisor.note({"fault": "a witness lost its line"})
    supervisor.listener.close()
    supervisor.selector.close()
    assert len(supervisor.messages) == 3
    assert supervisor.faults == [*["the harness reports more than 3 events"] * 2, "a witness lost its line"]


@pytest.mark.docker
async def test_many_simulations_with_long_complaints_are_a_score(scorer: Scorer) -> None:
    path = "rtl/" + "/".join([WIDE * 60] * 6) + "/thief.sv"
    lines = "\n".join('initial $fopen("/src/x", "w");' for _ in range(25))
    run = f"iverilog -g2012 -o t.vvp /code/{path}; for n in $$(seq 60); do vvp t.vvp; done; exit 1"
    text = f"services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: ['sh', '-c', {run!r}]\n"
    thief = f"module thief;\n{lines}\nendmodule\n"
    problem = make_problem(harness={"docker-compose.yml": text})
    score = await scorer.score(problem, {TARGET: GOLDEN, path: thief}, timeout=120)
    assert (score.passed, score.retries) == (False, 0)
    assert len(score.violations) >= 20
    assert WIDE in score.violations[0]
