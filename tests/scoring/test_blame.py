"""Whose fault a bad end was: what the machine did is never the design's, and no design can pass for the machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from rtl_agent_gym import retries
from rtl_agent_gym.errors import HarnessError, ProblemError, SandboxError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox, SandboxSpec, admission, warden_sandbox
from rtl_agent_gym.scoring import Scorer, blame
from rtl_agent_gym.scoring import scorer as scorer_module
from rtl_agent_gym.scoring.blame import MemoryUse, check_report, machine_fault, memory_use, start_fault
from rtl_agent_gym.scoring.grader import supervisor
from rtl_agent_gym.scoring.grader.measures import memory
from rtl_agent_gym.scoring.grader.messages import Memory, Message, Report, StartFault
from rtl_agent_gym.scoring.harness import scoring_limits
from rtl_agent_gym.scoring.submission import sift
from tests.counters import counted
from tests.sandboxes.providers import ProviderAround, act_beside

from .conftest import COMPOSE, GOLDEN, HEADER, RUNNER, TARGET, make_problem

LIMIT = 2 << 30
V1 = {
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "memory/memory.failcnt": "0\n",
    "memory/memory.memsw.failcnt": "0\n",
    "memory/memory.limit_in_bytes": f"{LIMIT}\n",
    "memory/memory.max_usage_in_bytes": f"{LIMIT}\n",
}
"""As a container with cgroup 1 and Linux 6.18 showed it when it had met its own limit."""
EVENTS = "low 0\nhigh 0\nmax {max}\noom {oom}\noom_kill {kills}\noom_group_kill 0\n"
"""As Linux documents it for cgroup 2."""
PEAK = 100 << 20


def v2(name: str = "memory.events.local", **counts: int) -> dict[str, str]:
    return {name: EVENTS.format(**{"max": 0, "oom": 0, "kills": 0, **counts}), "memory.max": f"{LIMIT}\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (V1, MemoryUse(True, LIMIT)),
        (V1 | {"memory/memory.max_usage_in_bytes": "60248064\n"}, None),
        (V1 | {"memory/memory.max_usage_in_bytes": f"{LIMIT - 4096}\n"}, MemoryUse(True, LIMIT)),
        (V1 | {"memory/memory.max_usage_in_bytes": "0\n", "memory/memory.failcnt": "7\n"}, MemoryUse(True, LIMIT)),
        (V1 | {"memory/memory.oom_control": "under_oom 0\noom_kill 0\n"}, MemoryUse(False, LIMIT)),
        (v2(max=40, oom=1, kills=1), MemoryUse(True, LIMIT)),
        (v2(kills=1), None),
        (v2(max=40), MemoryUse(False, LIMIT)),
        (v2() | v2("memory.events", oom=1, kills=1), MemoryUse(False, LIMIT)),
        (v2("memory.events", kills=2), None),
        (v2(kills=1) | {"memory.max": "max\n"}, None),
        ({}, MemoryUse()),
    ],
)
def test_whose_limit_it_was(files: dict[str, str], expected: MemoryUse | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = memory(str(tmp_path))
    found["peak"] = PEAK
    assert memory_use(found) == expected


def test_a_process_that_had_most_of_the_memory_is_to_blame_whoever_ran_out_of_it(tmp_path: Path) -> None:
    host: Memory = {"kills": 1, "own": 0, "pressed": 0, "limit": LIMIT, "peak": LIMIT // 2}
    assert memory_use(host) == MemoryUse(True, LIMIT, own=False)
    host["peak"] -= 1
    assert memory_use(host) is None


def test_without_a_control_group_the_limit_is_that_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a signal to a process that had most of it is the design's fault there, too."""
    monkeypatch.setattr(resource, "getrlimit", lambda number: (LIMIT, LIMIT))
    assert memory(str(tmp_path))["limit"] == LIMIT
    monkeypatch.setattr(resource, "getrlimit", lambda number: (resource.RLIM_INFINITY,) * 2)
    assert memory(str(tmp_path))["limit"] == 0


KILL, TERM = ({"number": number, "program": "vvp"} for number in (signal.SIGKILL, signal.SIGTERM))


def report(**changes: Any) -> Report:
    """As much of a report as says whose fault it was."""
    service = {"name": "a", "code": 1, "stopped": False, "waited": 0.0, "seconds": 10.0, "added": 0.0, "signals": []}
    service |= changes.pop("service", {})
    use = {"kills": 0, "own": 0, "pressed": 0, "limit": LIMIT, "peak": 1 << 20, **changes.pop("memory", {})}
    found: Any = {"services": [service], "memory": use, "lost": 0.0, **changes}
    return found


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (report(), ""),
        (report(lost=30.0), "did not run for 30 s"),
        (report(lost=5.0), "did not run for 5 s"),
        (report(lost=4.9), ""),
        (report(lost=30.0, memory={"pressed": 9}), ""),  # it stood still for its own hunger
        (report(lost=30.0, memory={"peak": LIMIT}), ""),
        (report(service={"code": None, "stopped": True}), "stopped by a signal"),
        (report(service={"code": None, "waited": 15.0, "seconds": 20.0, "added": 10.0}), "had no processor"),
        (report(service={"code": None, "waited": 11.5, "seconds": 20.0, "added": 10.0}), "had no processor"),
        (report(service={"code": None, "waited": 10.5, "seconds": 20.0, "added": 10.0}), ""),
        (report(service={"code": None, "waited": 9.0, "seconds": 19.0, "added": 9.0}), ""),  # it had all of its time
        (report(service={"code": 1, "waited": 15.0, "seconds": 20.0, "added": 10.0}), ""),
        (report(service={"code": None, "waited": 0.0}), ""),
        (report(service={"code": None, "waited": 0.4, "seconds": 2.0, "added": 0.0}), ""),
        (report(memory={"kills": 1}), "ran out of it"),
        (report(service={"signals": [TERM]}), "'vvp' got SIGTERM from outside"),
        (report(service={"signals": [KILL]}), "'vvp' got SIGKILL from outside"),
        (report(service={"signals": [KILL]}, memory={"kills": 1, "own": 1}), ""),  # the kernel killed it for memory
        (report(service={"signals": [KILL, TERM]}, memory={"kills": 1, "own": 1}), "SIGTERM"),
        (report(service={"signals": [TERM]}, memory={"peak": LIMIT // 2}), ""),  # it made the host do that
        (report(service={"signals": [{"number": 33, "program": "vvp"}]}), "'vvp' got a signal"),
        (report(service={"signals": [{"number": 40, "program": "vvp"}]}), "'vvp' got a signal"),
    ],
)
def test_what_a_design_cannot_bring_about(found: Report, said: str) -> None:
    fault = machine_fault(found)
    assert said in fault
    assert bool(said) == bool(fault)


FORGED = {"kind": "results", "item": "t", "file": "results.xml", "total": 1, "failed": 0}
"""What a service leaves whose simulation was killed before a witness could confirm its results."""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kills": 1, "own": 0}, None),  # the host killed it
        ({"kills": 1, "own": 1}, MemoryUse(True, LIMIT)),
        ({"kills": 1, "own": 0, "peak": LIMIT // 2}, MemoryUse(True, LIMIT, own=False)),
        ({}, None),
        ({"peak": LIMIT // 2}, MemoryUse(True, LIMIT, own=False)),
    ],
)
def test_results_that_a_killed_simulation_left_are_no_forgery_of_the_machines(
    changes: dict[str, int], expected: MemoryUse | None
) -> None:
    found = report(
        service={"code": 0, "fault": None, "messages": [FORGED], "signals": [KILL]}, memory=changes, faults=[]
    )
    if expected is None:
        with pytest.raises(HarnessError):
            check_report(found, make_problem())
    else:
        assert check_report(found, make_problem()) == expected


def test_failures_that_an_exit_status_cannot_tell_are_the_machines_if_it_caused_them() -> None:
    plan = {"kind": "plan", "item": "", "process": 1, "file": "x.xml", "tests": [f"t{at}" for at in range(256)]}
    service = {"code": 0, "fault": None, "messages": [plan]}
    with pytest.raises(HarnessError):
        check_report(report(service={**service, "signals": [KILL]}, faults=[]), make_problem())
    assert not check_report(report(service=service, faults=[]), make_problem()).out


def test_messages_that_were_lost_are_the_machines_fault_however_the_services_ended() -> None:
    found = report(service={"code": 0, "fault": None, "messages": []}, faults=["a witness lost its connection"])
    with pytest.raises(HarnessError, match="a witness lost its connection"):
        check_report(found, make_problem())


def test_the_supervisor_reports_messages_that_are_lost_or_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MOST_MESSAGES", 3)
    here: Any = SimpleNamespace(message_count=0, seed=0, faults=[], messages=[], limited=False)
    judged: Message = {"kind": "test", "item": "t", "process": 1, "test": "a", "outcome": "passed"}
    heard: list[Message] = [{"kind": "fault", "text": "a witness lost its connection"}, judged, judged, judged]
    for message in heard:
        supervisor.Supervisor.record(here, message)
    assert here.faults == ["a witness lost its connection", "the harness reports more than 3 events"]
    assert here.messages == [judged, judged]


def test_a_service_that_ended_well_is_no_fault_of_the_host() -> None:
    found = report(service={"code": 0, "fault": None, "messages": []}, memory={"kills": 1}, faults=[])
    assert check_report(found, make_problem()) == MemoryUse()
    signalled = {"code": 0, "fault": None, "messages": [], "signals": [TERM]}
    assert check_report(report(service=signalled, memory={"peak": LIMIT}, faults=[]), make_problem()).out is False


def test_a_service_that_reads_what_another_one_simulated_is_not_denied_by_the_host() -> None:
    simulated = [
        {"kind": "plan", "item": "t", "process": 1, "file": "results.xml", "tests": ["a"]},
        {"kind": "test", "item": "t", "process": 1, "test": "a", "outcome": "passed"},
    ]
    found = report(service={"code": 0, "fault": None, "messages": simulated}, memory={"kills": 1}, faults=[])
    [reading] = report(service={"name": "b", "code": 0, "fault": None, "messages": [FORGED]})["services"]
    found["services"].append(reading)  # which is no forgery here
    assert check_report(found, make_problem()) == MemoryUse()
    found["services"].reverse()
    with pytest.raises(HarnessError):
        check_report(found, make_problem())


@pytest.mark.parametrize(
    ("program", "cwd", "number", "expected"),
    [
        ("nowhere", "/code/rundir", errno.ENOENT, ProblemError),
        ("/src/run.sh", "/code/rundir", errno.EACCES, ProblemError),
        ("pytest", "/root", errno.EACCES, ProblemError),
        ("pytest", "/code/rundir", errno.ENOMEM, HarnessError),
        ("/code/rtl/run.sh", "/code/rundir", errno.ENOENT, None),
        ("../rtl/run.sh", "/code/rundir", errno.ENOENT, None),
        ("/code/rtl/adder.sv/run.sh", "/code/rundir", errno.ENOTDIR, None),
        ("/code/rtl/run.sh", "/code/rundir", errno.ENOEXEC, None),
        ("pytest", "/code/rtl/adder.sv", errno.EEXIST, None),
        ("pytest", "/code/rtl", errno.EEXIST, None),
    ],
)
def test_a_program_that_is_not_there(program: str, cwd: str, number: int, expected: type[Exception] | None) -> None:
    fault: StartFault = {"program": program, "cwd": cwd, "errno": number, "text": os.strerror(number)}
    if expected is None:  # a submission can leave a file in the way of that, or leave it out
        start_fault("a", fault, make_problem())
    else:
        with pytest.raises(expected, match=r"service 'a': cannot run"):
            start_fault("a", fault, make_problem())


# What follows runs in containers.

Act = Callable[[DockerSandboxes, Sandbox], Awaitable[None]]


class Meddling(ProviderAround):
    """A provider; something happens to each of its first sandboxes while the harness runs in it."""

    def __init__(self, provider: DockerSandboxes, act: Act, times: int = 1, **changes: Any) -> None:
        super().__init__(provider)
        self.act, self.left, self.changes = act, times, changes

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        assert spec is not None
        sandbox = await self.provider.create(SandboxSpec(**{**vars(spec), **self.changes}))
        if self.left > 0:
            self.left -= 1
            act_beside(sandbox, lambda: self.act(self.provider, sandbox))
        return sandbox


def after(script: str) -> Problem:
    """The adder's problem, whose pytest is run after a shell's script."""
    pytest_call = "pytest -s -o cache_dir=/code/rundir/.cache /src/test_runner.py -v"
    assert pytest_call in COMPOSE
    return make_problem(
        harness={"docker-compose.yml": COMPOSE.replace(pytest_call, f'sh -c "{script}; {pytest_call}"')}
    )


def alone(script: str) -> Problem:
    """The adder's problem with a shell's script as its only test."""
    text = f"services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: ['sh', '-c', {script!r}]\n"
    return make_problem(harness={"docker-compose.yml": text})


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(longest=0.1))


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The memory controller's folder of a control group that new containers come below."""
    controller = Path("/sys/fs/cgroup/memory")
    if os.geteuid() != 0 or not controller.is_dir():
        pytest.skip("to make a control group takes root and, in this test, cgroup 1")
    name = f"rtl-gym-test-{uuid.uuid4().hex[:8]}"
    (controller / name).mkdir()
    plain = docker.APIClient.create_host_config

    def below(self: docker.APIClient, **options: Any) -> Any:
        return plain(self, **options | {"cgroup_parent": f"/{name}"})

    monkeypatch.setattr(docker.APIClient, "create_host_config", below)
    # This process sees that its own groups are not used, and gives them up.
    monkeypatch.setattr(admission, "_budgets", {})
    yield controller / name
    for folder in Path("/sys/fs/cgroup").glob(f"*/{name}"):
        folder.rmdir()


@pytest.mark.docker
@pytest.mark.daemon
@pytest.mark.slow
async def test_a_parent_group_that_runs_out_of_memory_is_the_machines_fault(
    provider: DockerSandboxes, parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(attempts=2))
    # Far more than the group may have: where a little is missing, the kernel may reclaim for minutes before it kills.
    problem = make_problem(harness={"src/test_runner.py": "hungry = bytearray(600 << 20)\n" + RUNNER})
    async with Scorer(provider, cache=tmp_path) as scorer:
        (parent / "memory.limit_in_bytes").write_text(str(200 << 20))
        with pytest.raises(SandboxError) as caught:
            await scorer.score(problem, {TARGET: GOLDEN})
        assert caught.value.retries == 1
        assert not list(tmp_path.rglob("*.json"))
        (parent / "memory.limit_in_bytes").write_text("-1")
        score = await scorer.score(problem, {TARGET: GOLDEN})
    assert score.passed
    assert not score.cached
    await provider.close()


async def nothing(provider: DockerSandboxes, sandbox: Sandbox) -> None: ...


HUNGRY = GOLDEN.replace("endmodule", "reg [31:0] m [0:(1 << 28)]; initial m[1] = 2;\nendmodule")


@pytest.mark.docker
@pytest.mark.daemon
async def test_a_hungry_design_is_to_blame_below_a_parent_group_too(
    provider: DockerSandboxes, adder: Problem, parent: Path, tmp_path: Path
) -> None:
    (parent / "memory.limit_in_bytes").write_text(str(200 << 20))
    async with Scorer(Meddling(provider, nothing, memory=256 << 20, standby=()), cache=tmp_path) as scorer:
        score = await scorer.score(adder, {TARGET: HUNGRY}, timeout=60)
    assert (score.passed, score.retries, score.violations) == (False, 0, [])
    assert "needed more memory than the machine has" in score.reason
    assert not list(tmp_path.rglob("*.json")), "another machine may have more"
    await provider.close()


@pytest.mark.docker
@pytest.mark.daemon  # without a control group, the design's own message is the reason
async def test_a_hungry_design_is_kept_for_the_limit_that_all_gradings_have_and_for_no_other(
    provider: DockerSandboxes, adder: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, before = {"memory": 256 << 20}, counted("grading_ooms")
    async with Scorer(Meddling(provider, nothing, standby=(), **small), cache=tmp_path) as scorer:
        score = await scorer.score(adder, {TARGET: HUNGRY}, timeout=60)
        assert "more memory than a grading has (256 MiB)" in score.reason
        assert (score.retries, counted("grading_ooms")) == (0, before + 1)
        assert not list(tmp_path.rglob("*.json"))
        assert (await scorer.score(adder, {TARGET: GOLDEN})).passed
        spec = scoring_limits()
        monkeypatch.setattr("rtl_agent_gym.scoring.grading.scoring_limits", lambda: spec | small)
        monkeypatch.setattr(scorer_module, "scoring_limits", lambda: spec | small)
        assert not (await scorer.score(adder, {TARGET: HUNGRY}, timeout=60)).cached
        assert (await scorer.score(adder, {TARGET: HUNGRY}, timeout=60)).cached
        monkeypatch.setattr(scorer_module, "scoring_limits", lambda: spec)
        assert scorer._cache is not None
        key = await scorer._key(sift(adder, {TARGET: HUNGRY}), 60, None, retries.Retries())
        assert scorer._cache.get(key) is None


async def begun(provider: DockerSandboxes, sandbox: Sandbox) -> dict[str, int]:
    """The processes of a container, {command: number outside of it}, once its harness runs a `sleep`."""
    while True:
        listed = await asyncio.to_thread(provider._client.docker().api.top, sandbox.id, "-eo pid,args")
        found = {words[1]: int(words[0]) for words in listed["Processes"]}
        if any(words.startswith("sleep") for words in found):
            return found
        await asyncio.sleep(0.05)


def frozen_for(seconds: float) -> Act:
    async def freeze(provider: DockerSandboxes, sandbox: Sandbox) -> None:
        await begun(provider, sandbox)
        await asyncio.to_thread(provider._client.docker().api.pause, sandbox.id)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(provider._client.docker().api.unpause, sandbox.id)

    return freeze


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.daemon
async def test_a_container_that_was_frozen_for_longer_than_its_time_costs_nobody_a_verdict(
    provider: DockerSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blame, "LOST", 2.0)

    async def graded(code: int) -> Any:
        async with Scorer(Meddling(provider, frozen_for(4.0))) as scorer:
            return await scorer.score(alone(f"sleep 1; exit {code}"), {TARGET: GOLDEN}, timeout=3.0)

    right, wrong = await asyncio.gather(graded(0), graded(1))
    assert (right.passed, right.violations) == (True, [])
    assert (wrong.passed, wrong.violations, wrong.retries) == (False, [], 1)
    assert "did not end in time" not in wrong.reason


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.daemon
async def test_a_supervisor_that_answers_late_makes_nobody_a_forger(provider: DockerSandboxes) -> None:
    if os.geteuid() != 0:
        pytest.skip("to stop a container's process from outside takes root")

    async def stop(provider: DockerSandboxes, sandbox: Sandbox) -> None:
        (pid,) = [
            pid for words, pid in (await begun(provider, sandbox)).items() if words.startswith("/venv/bin/python3")
        ]
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(34)
        os.kill(pid, signal.SIGCONT)

    async with Scorer(Meddling(provider, stop)) as scorer:
        score = await scorer.score(after("sleep 1"), {TARGET: GOLDEN}, timeout=100.0)
    assert score.violations == []
    assert score.passed, score.reason


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.daemon
async def test_a_container_that_gets_no_processor_is_the_machines_fault(
    provider: DockerSandboxes, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(attempts=1))

    async def starve(provider: DockerSandboxes, sandbox: Sandbox) -> None:
        await begun(provider, sandbox)
        (group,) = Path("/sys/fs/cgroup/cpu", parent.name).glob("*/cpu.cfs_quota_us")
        group.write_text("2000")  # two hundredths of a processor

    async with Scorer(Meddling(provider, starve)) as scorer:
        with pytest.raises(SandboxError):
            await scorer.score(alone("sleep 0.5; while :; do :; done"), {TARGET: GOLDEN}, timeout=12.0)
    await provider.close()


class Hog:
    """Processes that keep every processor busy, with far more weight than the daemon's containers, for 12 s at most."""

    def __init__(self) -> None:
        self.group = Path("/sys/fs/cgroup/cpu", f"rtl-gym-hog-{uuid.uuid4().hex[:8]}")
        if os.geteuid() != 0 or not (self.group.parent / "cpu.shares").exists():
            pytest.skip("to make a control group takes root and, in this test, cgroup 1")
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, weight: int = 1 << 18) -> None:
        self.group.mkdir()
        (self.group / "cpu.shares").write_text(str(weight))
        busy = f"echo $$ > {self.group}/cgroup.procs; exec timeout 12 sh -c 'while :; do :; done'"
        self.running = [subprocess.Popen(["sh", "-c", busy]) for _ in range(os.cpu_count() or 1)]

    def stop(self) -> None:
        for process in self.running:
            process.terminate()
            process.wait()
        self.running.clear()
        while self.group.exists():
            for pid in (self.group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.group.rmdir()


@pytest.fixture
def hog() -> Iterator[Hog]:
    made = Hog()
    yield made
    made.stop()


def weigh(parent: Path, weight: int) -> None:
    """Give the containers below a group more weight than whatever else is running."""
    group = Path("/sys/fs/cgroup/cpu", parent.name)
    group.mkdir()
    (group / "cpu.shares").write_text(str(weight))


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_grading_that_a_busy_host_let_run_out_of_time_is_done_again(
    provider: DockerSandboxes, parent: Path, hog: Hog
) -> None:
    weigh(parent, 1 << 13)
    busy = alone("i=0; while [ $$i -lt 1500000 ]; do i=$$((i+1)); done")  # about a second of a processor

    class Busy(ProviderAround):
        """The host is busy during the first grading."""

        gradings = 0

        async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
            self.gradings += 1
            if self.gradings == 2:
                hog.stop()
            made: Sandbox = await self.provider.create(spec)
            if self.gradings == 1:
                hog.start()
            return made

    around = Busy(provider)
    async with Scorer(around) as scorer:
        score = await scorer.score(busy, {TARGET: GOLDEN}, timeout=4.0)
    assert score.passed, score.reason
    assert score.retries == around.gradings - 1 >= 1
    await provider.close()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("script", ["while :; do :; done", "sleep 60", "sleep 60 & while sleep 0.01; do :; done"])
async def test_a_design_that_never_ends_gets_its_verdict_on_a_busy_host_too(
    provider: DockerSandboxes, parent: Path, hog: Hog, script: str
) -> None:
    weigh(parent, 1 << 18)

    async def start_hog(provider: DockerSandboxes, sandbox: Sandbox) -> None:
        hog.start(1 << 17)
        await asyncio.sleep(2.5)
        hog.stop()

    async with Scorer(Meddling(provider, start_hog)) as scorer:
        score = await scorer.score(alone(script), {TARGET: GOLDEN}, timeout=3.0)
    assert (score.passed, score.retries) == (False, 0)
    assert "did not end in time" in score.reason
    await provider.close()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.daemon
async def test_a_container_that_stays_frozen_is_an_error(
    provider: DockerSandboxes, adder: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(attempts=1))
    monkeypatch.setattr(warden_sandbox, "GRACE", 2.0)
    monkeypatch.setattr("rtl_agent_gym.scoring.harness._PATIENCE", 1.0)

    async def freeze(provider: DockerSandboxes, sandbox: Sandbox) -> None:
        await asyncio.sleep(0.3)
        await asyncio.to_thread(provider._client.docker().api.pause, sandbox.id)

    async with Scorer(Meddling(provider, freeze)) as scorer:
        with pytest.raises(SandboxError):
            await scorer.score(after("sleep 1.5"), {TARGET: GOLDEN}, timeout=2.0)


@pytest.mark.docker
async def test_a_process_that_a_signal_holds_is_the_machines_fault(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(attempts=1))
    with pytest.raises(HarnessError, match="stopped by a signal"):
        await scorer.score(alone("sleep 30 & kill -STOP $$!; wait"), {TARGET: GOLDEN}, timeout=2.0)


@pytest.mark.docker
async def test_a_design_that_waits_for_ever_on_a_full_pipe_is_late_by_its_own_fault(scorer: Scorer) -> None:
    endless = f'{HEADER}initial forever $display("0123456789");\nendmodule\n'
    problem = alone("iverilog -g2012 -o t.vvp /code/rtl/adder.sv && vvp t.vvp | sleep 60")
    score = await scorer.score(problem, {TARGET: endless}, timeout=3.0)
    assert (score.passed, score.retries) == (False, 0)
    assert "did not end in time" in score.reason
