"""What a grading's processes had of a processor, and who ended them, measured on real processes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.scoring.grader import measures
from rtl_agent_gym.scoring.grader.measures import ProcessorShare, Waits
from rtl_agent_gym.scoring.grader.supervisor import Supervisor

BUSY = "while :; do :; done"
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a shell's script in a session of its own, on one processor; returns its id."""
    running = []
    processor = min(os.sched_getaffinity(0))

    def start(script: str) -> int:
        process = subprocess.Popen(
            ["sh", "-c", script], start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, {processor})
        )
        running.append(process)
        return process.pid

    yield start
    for process in running:
        os.killpg(process.pid, 9)
        process.wait()


def watched(leader: int, seconds: float = 1.2) -> ProcessorShare:
    share = ProcessorShare(leader)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        share.look()
    share.measure()
    return share


@pytest.mark.parametrize(
    ("passed", "used", "between", "lost"),
    [(1.5, 0.0, False, 1.5), (1.5, 1.5, False, 0.0), (0.9, 0.0, False, 0.0), (1.5, 0.0, True, 0.0)],
    ids=["standstill", "work", "short", "between two services"],
)
def test_a_standstill_counts_wherever_it_falls_but_between_services_and_work_does_not(
    passed: float, used: float, between: bool, lost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(wall=0.0, processor=0.0)
    clock = SimpleNamespace(monotonic=lambda: now.wall, process_time=lambda: now.processor)
    monkeypatch.setattr(measures, "time", clock)
    waits = Waits()
    now.wall, now.processor = passed, used
    if between:
        waits.begin()
    waits.select(selectors.DefaultSelector(), 0)
    assert waits.lost == pytest.approx(lost)


def test_a_process_beside_busy_ones_waits_for_most_of_the_time(start: Start) -> None:
    for _ in range(4):
        start(BUSY)
    assert 0.7 < watched(start(BUSY)).waited < 1.3


def test_short_processes_one_after_another_wait_too(start: Start) -> None:
    for _ in range(4):
        start(BUSY)
    one = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    assert 0.5 < watched(start(f"while :; do sh -c '{one}'; done"), 2.0).waited < 2.1


def test_processes_that_sleep_wait_for_no_processor_however_busy_it_is(start: Start) -> None:
    for _ in range(2):
        start(BUSY)
    assert watched(start("sleep 9 & sleep 9")).waited < 0.2


def test_processes_that_take_the_processor_from_each_other_have_it(start: Start) -> None:
    busy = watched(start(f"{BUSY} & {BUSY} & {BUSY}"))
    assert busy.waited <= busy._looked - busy.begun - busy._used + 0.01  # no more than what was lacking of one


@pytest.mark.parametrize(("waited", "left"), [(0.0, 10.0), (4.0, 14.0), (10.0, 20.0), (50.0, 20.0)])
def test_time_for_which_services_waited_is_added_up_to_as_much_again(waited: float, left: float) -> None:
    here: Any = SimpleNamespace(deadline=time.monotonic() + 10.0, waited=99.0, most_added=10.0)
    service: Any = SimpleNamespace(waited=waited, service=True)
    assert Supervisor.left(here, service) == pytest.approx(left, abs=0.1)


def test_a_service_begins_with_all_of_its_time_and_without_what_another_named() -> None:
    service: Any = {"name": "b", "argv": [], "env": {}, "cwd": "/", "seed": 7}
    process = SimpleNamespace(waited=0.0, report=dict)
    here: Any = SimpleNamespace(request={"services": [service]}, seconds=100.0, deadline=0.0, most_added=0.0)
    here.start, here.wait = lambda *_, **__: process, lambda _: None
    here.named, here.messages = {"/src/a.hex": None}, []
    Supervisor.run_service(here, service)
    assert here.deadline - time.monotonic() == pytest.approx(100.0, abs=1.0)
    assert (here.seed, here.named) == (7, {})


def test_a_standstill_is_reported() -> None:
    here: Any = SimpleNamespace(request={"services": [], "lint": None}, faults=[], waits=SimpleNamespace(lost=7.0))
    assert Supervisor.run(here)["lost"] == 7.0


@pytest.mark.parametrize(("running", "stolen", "waited"), [(10.0, 10.0, 10.0), (10.0, 0.0, 0.0), (0.0, 10.0, 0.0)])
def test_what_the_host_of_a_virtual_machine_took_was_waited_for(
    running: float, stolen: float, waited: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processors one works for others, and the host takes half of both: 20 s of work, in 20 s of real time."""
    ticks = os.sysconf("SC_CLK_TCK")
    now = SimpleNamespace(time=0.0, used=0.0)
    monkeypatch.setattr(measures, "STAT", str(tmp_path / "stat"))
    monkeypatch.setattr(measures, "processes", lambda: [(7, "S", 1, 7, now.used)])
    monkeypatch.setattr(measures, "time", SimpleNamespace(monotonic=lambda: now.time))

    def write(worked: float, taken: float) -> None:
        user, steal = int(worked * ticks), int(taken * ticks)
        (tmp_path / "stat").write_text(f"cpu  {user} 0 0 5 6 0 0 {steal} 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")

    write(100.0, 30.0)
    share = ProcessorShare(7)
    for second in range(1, 21):
        now.time, now.used = float(second), running * second / 20
        write(100.0 + second, 30.0 + 2 * stolen * second / 20)
        share.measure()
    assert share.waited == pytest.approx(waited, abs=0.5)


def test_without_the_machines_times_nothing_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "STAT", "/nowhere")
    assert measures.machine_time() == (0.0, 0.0)


TRACE = """
import ctypes, json, os, select, subprocess, sys
sys.path.insert(0, sys.argv[1])
from grader.tracing import Tracer

tracer, libc = Tracer(), ctypes.CDLL(None)


def enter():
    os.setsid()
    tracer.enter(execs=True)


def ended(command, sent):
    tracer.begin()
    child = subprocess.Popen(command, preexec_fn=enter, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tracer.attach(child, service=True)
    for way, number in sent:
        while way == "threads" and len(os.listdir(f"/proc/{child.pid}/task")) < number:
            tracer.serve()
        if way == "threads":
            continue
        process, value = [child.pid] * (2 if way == "tgkill" else 1), [None] * (way == "sigqueue")
        getattr(libc, way)(*process, number, *value)
    tracer.reap(child)
    select.select([tracer.fd], [], [], 0.2 if "fork" in command[-1] else 0)
    tracer.serve()
    return child.returncode, [found["number"] for found in tracer.found]


print(json.dumps([ended(*case) for case in json.loads(sys.argv[2])] if tracer.active else None))
"""
"""Runs commands traced, and says how each ended and which signals came from outside."""


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def python(script: str) -> list[str]:
    return [sys.executable, "-ISc", f"import ctypes, os, signal, threading, time; libc = ctypes.CDLL(None); {script}"]


SLEEP = ["sleep", "9"]
CASES: dict[str, tuple[list[str], list[tuple[str, int]], tuple[int, list[int]]]] = {
    "an end": (shell("exit 7"), [], (7, [])),
    "SIGKILL to itself": (shell("kill -9 $$"), [], (-9, [])),
    "SIGTERM to itself": (shell("kill $$"), [], (-15, [])),
    "SIGTERM by a child": (shell("(sleep 0.1; kill $$) & sleep 9"), [], (-15, [])),
    "SIGKILL to a child": (shell("sleep 9 & kill -9 $!; wait; exit 3"), [], (3, [])),
    "SIGKILL to its group": (shell("kill -9 0"), [], (-9, [])),
    "SIGKILL to its group by number": (shell("kill -9 -$$"), [], (-9, [])),
    "SIGKILL to its thread": (python("signal.pthread_kill(threading.get_ident(), 9)"), [], (-9, [])),
    "SIGKILL by a descriptor": (python("signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 9)"), [], (-9, [])),
    "SIGKILL at its parent's end": (
        python("pid = os.fork(); pid or (libc.prctl(1, 9), time.sleep(9)); time.sleep(0.1); os._exit(0)"),
        [],
        (0, []),
    ),
    "a fault of its own": (python("os.abort()"), [], (-6, [])),
    "SIGTERM of a forged sender": (python("libc.sigqueue(os.getpid(), 15, None)"), [], (-15, [])),
    "SIGTERM from outside": (SLEEP, [("kill", 15)], (-15, [15])),
    "SIGTERM from outside, to a thread": (SLEEP, [("tgkill", 15)], (-15, [15])),
    "SIGTERM from outside, queued": (SLEEP, [("sigqueue", 15)], (-15, [15])),
    "SIGKILL from outside": (SLEEP, [("kill", 9)], (-9, [9])),
    "SIGKILL from outside to two threads": (
        python("threading.Thread(target=time.sleep, args=[9]).start()"),
        [("threads", 2), ("kill", 9)],
        (-9, [9]),
    ),
    "nothing that ends a process": (
        ["sleep", "0.1"],
        [("kill", number) for number in (signal.SIGWINCH, signal.SIGCHLD, signal.SIGCONT)],
        (0, []),
    ),
}
"""By who ends it: a command, what this process sends it, its exit status, and what counts as from outside."""


def test_a_signal_from_outside_is_told_from_those_of_the_service() -> None:
    given = json.dumps([(command, sent) for command, sent, _ in CASES.values()])
    folder = Path(measures.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-ISc", TRACE, str(folder), given], capture_output=True, text=True, timeout=60
    )
    found = json.loads(done.stdout or "0")
    if found is None:
        pytest.skip("no process can be traced here")
    assert found, done.stderr
    told = {name: (code, signals) for name, (code, signals) in zip(CASES, found, strict=True)}
    assert told == {name: expected for name, (_, _, expected) in CASES.items()}
