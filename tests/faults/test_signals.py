"""Signals that end a process of a grading: those from outside are the machine's fault, all others are verdicts.

The cells of the table of signals in docs/scoring.md have their tests here, or in tests/scoring/test_blame.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandbox, Sandbox, SandboxProvider
from rtl_agent_gym.scoring import Score, Scorer, harness
from tests.sandboxes.providers import processes_of
from tests.scoring.conftest import ENV, GOLDEN, HEADER, RUNNER, TARGET, TESTS, make_problem
from tests.scoring.test_blame import Meddling, alone, short_waits

__all__ = ["short_waits"]

pytestmark = pytest.mark.docker

FOR_EVER = 'initial forever #1 $display("x");\nendmodule\n'
"""The end of a design that never stops."""
SIMULATE = "iverilog -g2012 -o t.vvp /code/rtl/adder.sv && "


def waiting(problem_or_env: str = ENV) -> Problem:
    """The adder's problem with a slow simulation: a right design needs time in its first test."""
    slow = TESTS.replace("async def test_small(dut):", "async def test_small(dut):\n    import time; time.sleep(5)")
    return make_problem(harness={"src/test_adder.py": slow, "src/.env": problem_or_env})


def processes(sandbox: Sandbox, provider: DockerSandboxes) -> dict[int, tuple[int, str]]:
    """The processes of a sandbox: number on the host, {number: (parent's, program)}."""
    if isinstance(sandbox, NamespaceSandbox):
        return processes_of(sandbox)
    listed = provider._client.docker().api.top(sandbox.id, "-eo pid,ppid,comm")
    return {int(row[0]): (int(row[1]), row[2]) for row in listed["Processes"]}


async def find(provider: DockerSandboxes, sandbox: Sandbox, program: str, ancestor: int = 0) -> int:
    """The host's number of a container's process, once it runs, or of its ancestor."""
    while True:
        running = await asyncio.to_thread(processes, sandbox, provider)
        for pid, (_, name) in running.items():
            if name == program:
                for _ in range(ancestor):
                    pid = running[pid][0]
                return pid
        await asyncio.sleep(0.02)


class Kills(Meddling):
    """A provider in whose first containers a process is sent signals by the host, while the harness runs."""

    def __init__(
        self, provider: DockerSandboxes, program: str, *numbers: int, ancestor: int = 0, times: int = 99, **changes: Any
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("to send signals to a container's processes from outside takes root")

        async def act(provider: DockerSandboxes, sandbox: Sandbox) -> None:
            pid = await find(provider, sandbox, program, ancestor)
            for number in numbers:
                os.kill(pid, number)
            self.sent += 1

        self.sent = 0
        super().__init__(provider, act, times, **changes)


async def no_verdict(around: Kills, problem: Problem, cache: Path, timeout: float = 60.0) -> str:
    """Grade the right design once, which must be a machine fault; why."""
    async with Scorer(around, cache=cache, attempts=1) as scorer:
        with pytest.raises(SandboxError) as caught:
            await scorer.score(problem, {TARGET: GOLDEN}, timeout=timeout)
    assert around.sent == 1
    assert not list(cache.rglob("*.json"))
    return str(caught.value)


async def verdict(provider: SandboxProvider, problem: Problem, text: str, cache: Path) -> Score:
    """Grade a design, which must be a verdict at once that is kept."""
    async with Scorer(provider, cache=cache) as scorer:
        score = await scorer.score(problem, {TARGET: text}, timeout=60.0)
    assert score.retries == 0
    assert list(cache.rglob("*.json"))
    return score


SIMULATOR, SERVICE, SUPERVISOR, WARDEN, KEEPER = range(5)
"""vvp and its ancestors: pytest, and the programs that run it."""
DEADLY = (signal.SIGKILL, signal.SIGTERM)


# Sent by the host.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", DEADLY)
@pytest.mark.parametrize("ancestor", [SIMULATOR, SERVICE])
async def test_a_right_design_that_is_killed_from_outside_is_graded_again(
    provider: DockerSandboxes, tmp_path: Path, ancestor: int, number: int
) -> None:
    around = Kills(provider, "vvp", number, ancestor=ancestor, times=1)
    async with Scorer(around, cache=tmp_path) as scorer:
        score = await scorer.score(waiting(), {TARGET: GOLDEN})
        assert around.sent == 1
        assert (score.passed, score.retries, score.violations) == (True, 1, [])
        assert (await scorer.score(waiting(), {TARGET: GOLDEN})).cached


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", DEADLY)
@pytest.mark.parametrize("ancestor", [SIMULATOR, SERVICE])
async def test_one_that_is_killed_each_time_has_no_score(
    provider: DockerSandboxes, tmp_path: Path, ancestor: int, number: int
) -> None:
    around = Kills(provider, "vvp", number, ancestor=ancestor)
    async with Scorer(around, cache=tmp_path, attempts=2) as scorer:
        with pytest.raises(SandboxError, match=f"got {signal.Signals(number).name} from outside") as caught:
            await scorer.score(waiting(), {TARGET: GOLDEN})
    assert (caught.value.retries, around.sent) == (1, 2)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGSEGV, signal.SIGABRT, signal.SIGXCPU])
@pytest.mark.parametrize("ancestor", [SIMULATOR, SERVICE])
async def test_so_is_any_other_signal_of_the_hosts(
    provider: DockerSandboxes, tmp_path: Path, ancestor: int, number: int
) -> None:
    around = Kills(provider, "vvp", number, ancestor=ancestor)
    why = await no_verdict(around, waiting(), tmp_path)
    assert f"got {signal.Signals(number).name} from outside" in why


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", DEADLY)
@pytest.mark.parametrize("program", ["ivlpp", "ivl", "iverilog"])
async def test_a_killed_compiler(provider: DockerSandboxes, tmp_path: Path, program: str, number: int) -> None:
    """It reads a source that comes late: a pipe. Without `ivl`, the others wait until the time is up."""
    late = "mkfifo late.v; (sleep 3; echo > late.v) & iverilog -o t.vvp late.v /code/rtl/adder.sv && wait"
    why = await no_verdict(Kills(provider, program, number), alone(late), tmp_path, timeout=12.0)
    assert f"{program!r} got {signal.Signals(number).name} from outside" in why


@pytest.mark.slow  # Verilator builds the design with g++ first
@pytest.mark.parametrize("number", DEADLY)
@pytest.mark.parametrize("program", ["cc1plus", "adder"])
async def test_a_killed_build_of_verilator_and_its_program(
    provider: DockerSandboxes, tmp_path: Path, program: str, number: int
) -> None:
    problem = waiting(ENV.replace("icarus", "verilator"))
    why = await no_verdict(Kills(provider, program, number), problem, tmp_path)
    assert f"{program!r} got {signal.Signals(number).name} from outside" in why


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", DEADLY)
async def test_a_killed_program_that_no_guard_started(provider: DockerSandboxes, tmp_path: Path, number: int) -> None:
    """As Yosys, or what a Makefile runs: its parent is a shell, and the service ends with a status of its own."""
    late = alone("mkfifo late.v; (sleep 3; echo > late.v) & yosys -q -p 'read_verilog late.v' || exit 1")
    why = await no_verdict(Kills(provider, "yosys", number), late, tmp_path)
    assert f"'yosys' got {signal.Signals(number).name} from outside" in why


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("ancestor", "number"),
    [(SUPERVISOR, signal.SIGKILL), (SUPERVISOR, signal.SIGTERM), (WARDEN, signal.SIGKILL), (KEEPER, signal.SIGKILL)],
)
async def test_killed_programs_around_the_harness(
    provider: DockerSandboxes, tmp_path: Path, ancestor: int, number: int
) -> None:
    await no_verdict(Kills(provider, "vvp", number, ancestor=ancestor), waiting(), tmp_path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ancestor", [WARDEN, KEEPER])
async def test_wardens_are_not_terminated(provider: DockerSandboxes, tmp_path: Path, ancestor: int) -> None:
    around = Kills(provider, "vvp", signal.SIGTERM, ancestor=ancestor)
    assert (await verdict(around, waiting(), GOLDEN, tmp_path)).passed
    assert around.sent == 1


@pytest.mark.daemon
async def test_a_command_in_the_container_that_is_none_of_the_harness(
    provider: DockerSandboxes, tmp_path: Path
) -> None:
    """Such as an operator's `docker exec`."""

    class Executed(Kills):
        def __init__(self) -> None:
            super().__init__(provider, "vvp")

            async def act(provider: DockerSandboxes, sandbox: Sandbox) -> None:
                pid = await find(provider, sandbox, "vvp")
                status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                number, user = status["NSpid"].split()[-1], status["Uid"].split()[0]
                api = provider._client.docker().api
                made = await asyncio.to_thread(api.exec_create, sandbox.id, ["kill", "-TERM", number], user=user)
                await asyncio.to_thread(api.exec_start, made["Id"])
                self.sent += 1

            self.act = act

    assert "'vvp' got SIGTERM from outside" in await no_verdict(Executed(), waiting(), tmp_path)


async def test_a_run_that_passes_all_the_same_is_accepted(provider: DockerSandboxes, tmp_path: Path) -> None:
    around = Kills(provider, "sleep", signal.SIGKILL)
    assert (await verdict(around, alone("sleep 60 & wait; true"), GOLDEN, tmp_path)).passed
    assert around.sent == 1


async def test_what_uses_most_of_the_memory_is_killed_by_its_own_fault(
    provider: DockerSandboxes, tmp_path: Path
) -> None:
    """Else a design could make a host whose memory is not enough kill it."""
    around = Kills(provider, "sleep", signal.SIGTERM, ancestor=2, memory=512 << 20, standby=())
    program = "import os; taken = bytearray(b'x') * (300 << 20); os.system('sleep 60; exit 1')"
    hungry = make_problem(harness={"src/hungry.py": program, **alone("python3 /src/hungry.py").harness})
    async with Scorer(around, cache=tmp_path) as scorer:
        score = await scorer.score(hungry, {TARGET: GOLDEN}, timeout=60.0)
    assert around.sent == 1
    assert (score.passed, score.retries) == (False, 0)
    assert "needed more memory than the machine has" in score.reason
    assert not list(tmp_path.rglob("*.json")), "another machine may have more"


def change_tracer(monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes) -> None:
    """Replace a part of the program that traces the services."""
    path = f"{harness.GRADER}/rtl_gym_grader/tracing.py"
    files = harness.grader_files()
    text = files[path].replace(old, new)
    assert text != files[path]
    monkeypatch.setattr(harness, "grader_files", lambda: {**files, path: text})


async def test_where_nothing_can_be_traced_the_end_of_the_service_still_counts(
    provider: DockerSandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_tracer(monkeypatch, b"self.active = _works()", b"self.active = False")
    assert (await verdict(provider, make_problem(), GOLDEN, tmp_path / "right")).passed
    crash = await verdict(provider, alone("ulimit -c 0; kill -SEGV $$$$"), GOLDEN, tmp_path / "crash")
    assert not crash.passed
    around = Kills(provider, "vvp", signal.SIGKILL, ancestor=SERVICE)
    why = await no_verdict(around, waiting(), tmp_path / "killed")
    assert "got SIGKILL from outside" in why


async def test_a_service_that_is_killed_as_it_starts(
    provider: DockerSandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the supervisor can trace it. Nothing of the design has run by then."""
    change_tracer(monkeypatch, b"        if not execs:\n", b"        os.kill(os.getpid(), 9)\n        if not execs:\n")
    async with Scorer(provider, cache=tmp_path, attempts=1) as scorer:
        with pytest.raises(SandboxError, match="got SIGKILL from outside"):
            await scorer.score(make_problem(), {TARGET: GOLDEN})
    assert not list(tmp_path.rglob("*.json"))


# Caused by a design or its harness.


DESIGNS = {
    "calls $fatal": "initial $fatal(1);\nendmodule\n",
    "crashes by endless recursion": (
        "function automatic integer f(input integer x); f = f(x + 1) + 1; endfunction\n"
        "initial $display(f(0));\nendmodule\n"
    ),
    "wants more memory than there is": "reg [31:0] m [0:(1 << 30)]; initial m[1] = 2;\nendmodule\n",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DESIGNS)
async def test_a_design_that_ends_its_simulator(provider: DockerSandboxes, tmp_path: Path, name: str) -> None:
    limit = "ulimit -v 1000000; "
    score = await verdict(provider, alone(f"{SIMULATE}{limit}vvp t.vvp"), HEADER + DESIGNS[name], tmp_path)
    assert not score.passed
    assert score.tests_total == 1


LIMITS = {
    "processor time": "ulimit -t 1; vvp t.vvp > /dev/null",
    "processor time, the first limit": "ulimit -S -t 1; vvp t.vvp > /dev/null",
    "processor time, the second limit": "ulimit -t 2; ulimit -S -t 1; trap '' XCPU; vvp t.vvp > /dev/null",
    "the size of a file": "ulimit -f 10; cat /dev/zero > out",  # vvp ignores this signal, and the next
    "a pipe that nobody reads": "cat /dev/zero | head -c 1; exit 1",
    "timeout of the shell": "timeout 1 vvp t.vvp > /dev/null",
    "timeout of the shell with SIGKILL": "timeout -s KILL 1 vvp t.vvp > /dev/null",
    "timeout of the shell with SIGKILL in the end": "trap '' TERM; timeout -k 1 1 vvp t.vvp > /dev/null",
    "kill of the shell": "vvp t.vvp > /dev/null & sleep 0.5; kill -9 $$!; wait $$!",
    "kill of a group": "setsid vvp t.vvp > /dev/null & sleep 0.5; kill -9 -$$!; wait $$!",
    "kill of all": "vvp t.vvp > /dev/null & sleep 0.5; kill -9 0",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LIMITS)
async def test_an_endless_design_that_meets_a_limit_of_its_harness(
    provider: DockerSandboxes, tmp_path: Path, name: str
) -> None:
    score = await verdict(provider, alone(SIMULATE + LIMITS[name]), HEADER + FOR_EVER, tmp_path)
    assert not score.passed
    assert "in time" not in score.reason


async def test_a_time_out_of_pytest(provider: DockerSandboxes, tmp_path: Path) -> None:
    call = "runner.test(hdl_toplevel"
    assert call in RUNNER
    runner = RUNNER.replace(
        call, "import subprocess; subprocess.run(['vvp', 'sim_build/sim.vvp'], timeout=1, stdout=-3)\n    " + call
    )
    score = await verdict(provider, make_problem(harness={"src/test_runner.py": runner}), HEADER + FOR_EVER, tmp_path)
    assert not score.passed
    assert "in time" not in score.reason


async def test_a_time_out_of_the_supervisor(provider: DockerSandboxes) -> None:
    async with Scorer(provider) as scorer:
        score = await scorer.score(alone(SIMULATE + "vvp t.vvp > /dev/null"), {TARGET: HEADER + FOR_EVER}, timeout=2.0)
    assert (score.passed, score.retries) == (False, 0)
    assert "did not end in time" in score.reason


SENDS = {
    "by a descriptor": "signal.pidfd_send_signal(os.pidfd_open(pid), 9)",
    "to a thread": "libc.syscall(NUMBERS[0], pid, pid, 9)",
    "with a sender that it makes up": "libc.syscall(NUMBERS[1], pid, 15, info)",
    "with a sender that it makes up, SIGKILL": "libc.syscall(NUMBERS[1], pid, 9, info)",
    "by its end": "pid = dying()",
}
SEND = """\
import ctypes, os, signal, struct, subprocess, sys
libc = ctypes.CDLL(None)
NUMBERS = {"x86_64": (234, 129), "aarch64": (131, 138)}[os.uname().machine]
info = struct.pack("=iii4xii", 15, 0, -1, 0, 0).ljust(128, bytes(1))

def dying():
    read, write = os.pipe()
    if not (parent := os.fork()):
        if not (child := os.fork()):
            libc.prctl(1, 9, 0, 0, 0)
            os.write(write, b"x")
            signal.pause()
        os.read(read, 1)
        os._exit(0)
    os.waitpid(parent, 0)

pid = os.fork()
if not pid:
    signal.pause()
%s
if pid:
    print(os.waitpid(pid, 0))
sys.exit(1)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SENDS)
async def test_a_signal_that_a_program_of_the_harness_sends(
    provider: DockerSandboxes, tmp_path: Path, name: str
) -> None:
    files = {"src/send.py": SEND % SENDS[name], **alone("python3 /src/send.py").harness}
    score = await verdict(provider, make_problem(harness=files), GOLDEN, tmp_path)
    assert not score.passed
    assert "in time" not in score.reason
