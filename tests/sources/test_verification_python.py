"""Benches in Python see a design's outputs and nothing else of it, whatever they do."""

# ruff: noqa: E501 (texts of benches, one a line)

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rtl_agent_gym.errors import HarnessError
from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox, SandboxSpec
from rtl_agent_gym.sandboxes.warden_sandbox import WardenSandbox
from rtl_agent_gym.scoring import RewardWeights, Score, Scorer
from rtl_agent_gym.sources.verification.derived import MOST_STEPS

from .verification_attacks import RIGHT, TWINS, WRONG, Control, problem_of

pytestmark = pytest.mark.docker
SLOW = pytest.mark.slow  # some ten seconds each, and of one kind


def bench(check: str = "pass", before: str = "", end: str = "pass") -> str:
    """A bench that counts to ten, and does what an attack does."""
    return f"""
import json, os, random, signal, socket, subprocess, sys, time, zlib, base64
import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer
{before}
@cocotb.test()
async def test(dut):
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
    dut.rst.value, dut.en.value = 1, 0
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value, dut.en.value = 0, 1
    for number in range(1, 11):
        await FallingEdge(dut.clk)
        {check}
    {end}
"""


HONEST = bench("assert dut.q.value == number")
TO_FIVE = """while int(dut.q.value) < 15:
        await FallingEdge(dut.clk)
    dut.en.value = 0
    for _ in range(3):
        await FallingEdge(dut.clk)
    assert dut.q.value == 15"""
"""Inputs that depend on outputs: a counter by two comes to 16, which is 0, and never to 15."""
UNTIL_FIVE = bench(end=TO_FIVE).replace("range(1, 11)", "range(1, 3)").replace("15", "5")
"""The same up to 5, which a counter by two passes."""
TOLD = "print(json.dumps({'verdict': 'rejected', 'steps': steps}), flush=True); os.killpg(0, signal.SIGKILL)"
RANDOM_BIT = "int.from_bytes(os.urandom(2), 'big')"

ATTACKS = {
    "a name inside": bench("assert not hasattr(dut, 'only_here') and not hasattr(dut, 'state')"),
    "a name below": bench("assert not any(hasattr(part, 'only_here') for part in dut if hasattr(part, '_name'))"),
    "hidden files": bench("assert 'only_here' not in subprocess.run(['grep', '-rlsE', 'only_here|judge', '/src', '/code', '/tmp', '/var'], capture_output=True, text=True).stdout.replace('bench.py', '')"),
    "the given design is not there": bench("assert os.path.exists('/code/rtl/design.sv')"),
    "the size of the answers": bench("assert os.path.getsize('/tmp/trial/answers') % 2 if os.path.exists('/tmp/trial/answers') else True"),
    "a count of the runs": bench(before="""
for folder in ("/tmp", "/code", "/dev/shm", "/var/tmp", os.path.expanduser("~")):
    try:
        path = f"{folder}/count"
        COUNT = int(open(path).read()) + 1 if os.path.exists(path) else 1
        open(path, "w").write(str(COUNT))
        break
    except OSError:
        COUNT = 1
""", check="assert COUNT < 2"),
    "chance": bench(f"assert number < 10 or {RANDOM_BIT} % 12"),
    "the clock": bench("assert number < 10 or time.time_ns() // 10**6 % 9"),
    "the time that a step takes": bench("last = time.perf_counter_ns(); await RisingEdge(dut.clk); assert time.perf_counter_ns() - last < 10**6"),
    "the id of the process": bench("assert os.getpid() % 7"),
    "another order of drawing": bench("assert random.Random().random() < 0.9"),
    "its verdict in the output": bench(end="steps = base64.b64encode(zlib.compress(open('/tmp/trial/steps', 'rb').read())).decode(); " + TOLD),
    "a false record": bench(end="steps = base64.b64encode(zlib.compress(b'101\\n' * 20)).decode(); " + TOLD),
    "a record of something else": bench(end="os.unlink('/tmp/trial/steps'); os.symlink('/etc/passwd', '/tmp/trial/steps')"),
    "a record that unpacks to a gigabyte": bench(end="steps = base64.b64encode(zlib.compress(bytes(1 << 30), 9)).decode(); " + TOLD),
    "a record that is too deep": bench(end="print('[' * 1000000, flush=True); os.killpg(0, signal.SIGKILL)"),
    "a long record": bench(end="steps = base64.b64encode(zlib.compress(b'1\\n' * 10**7)).decode(); " + TOLD),
    "much output": bench(end="print('x' * 10**8, flush=True)"),
    "much output that is longer in JSON": bench(end="if os.path.exists('/tmp/trial/answers'): print('\\x01' * 3900000, flush=True); os.killpg(0, signal.SIGKILL)"),
    "no record": bench(end="print('{}', flush=True); os.killpg(0, signal.SIGKILL)"),
    "its own results": bench(end="open('/tmp/trial/results.xml', 'w').write('<testsuites><testcase><failure/></testcase></testsuites>'); os._exit(0)"),
    "rejecting all": bench("assert False"),
    "an end without results": bench(end="os._exit(0)"),
    "a stopped parent": bench(end="os.kill(os.getppid(), signal.SIGSTOP)"),
    "all processes killed": bench(end="os.kill(-1, signal.SIGKILL)"),
    "much memory": bench(end="x = [bytes(1 << 28) for _ in range(100)]"),
    "many processes": bench(end="[subprocess.Popen(['sleep', '100']) for _ in range(5000)]"),
    "a process that stays": bench(end="subprocess.Popen(['sh', '-c', 'sleep 1; kill -9 -1'], start_new_session=True)", check="assert number < 10 or len(os.listdir('/proc')) < 100"),
    "endless": bench(end="while True: await FallingEdge(dut.clk)"),
    "no test": "import cocotb\n",
    "not Python": "module testbench; endmodule\n",
    "a connection": bench("assert socket.socket().connect_ex(('127.0.0.1', 2375))"),
}  # fmt: skip
"""On designs that behave alike, or for those without any check."""
QUICK = ("a name inside", "hidden files")
ASLEEP = bench(end="time.sleep(1000)")
SIGHTED = Control(
    (
        (
            "src/trials.py",
            "runs[name] = played(steps, found)",
            'runs[name] = common(recorder() + (HERE / "designs" / name.partition("#")[0]).read_text().replace(HIDDEN, GIVEN))',
        ),
        ("src/trials.py", '"early" if verdict == "rejected" and not seen else verdict', "verdict"),
    )
)  # fmt: skip
"""The hidden designs are there while a bench runs, and it need not have seen a difference."""


async def scored(provider: DockerSandboxes, text: str, mutants: Iterable[str], control: Control | None = None) -> Score:
    async with Scorer(provider, weights=RewardWeights.preset("dense")) as scorer:
        return await scorer.score(problem_of(mutants, control, kind="cocotb"), {"verif/bench.py": text})


async def test_an_honest_bench_rejects_what_it_sees_and_no_twin_however_busy_the_machine_is(
    provider: DockerSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the runs themselves count: their sandboxes may have to wait for memory for longer than that."""
    create, clock, waited = provider.create, time.monotonic, 0.0

    async def waits(spec: SandboxSpec | None = None) -> Sandbox:
        nonlocal waited
        waited += 600.0
        return await create(spec)

    monkeypatch.setattr(provider, "create", waits)
    monkeypatch.setattr("rtl_agent_gym.scoring.trials.time", SimpleNamespace(monotonic=lambda: clock() + waited))
    score = await scored(provider, HONEST, [WRONG, *TWINS.values()])
    assert [test.outcome for test in score.tests] == ["passed", *["failed"] * len(TWINS)]
    assert score.reward == pytest.approx(0.4 + 1 / (1 + len(TWINS)))
    assert (score.syntax, score.interface, score.violations) == (1.0, 1.0, [])


async def test_a_module_beside_the_bench_is_left_out_as_the_task_says(provider: DockerSandboxes) -> None:
    """An honest bench that imports a module of its own never starts, so the task has to say it."""
    problem = problem_of([WRONG], kind="cocotb")
    files = {"verif/bench.py": HONEST.replace("import json", "import model, json", 1), "verif/model.py": ""}
    async with Scorer(provider) as scorer:
        score = await scorer.score(problem, files)
    assert (score.passed, len(score.left_out)) == (False, 1)
    assert "other Python files of yours are left out" in problem.prompt
    assert f"change inputs {MOST_STEPS:,} times" in problem.prompt
    assert f"MOST_STEPS = {MOST_STEPS:_}" in problem.harness["src/trials.py"]


@SLOW
async def test_inputs_may_depend_on_outputs(provider: DockerSandboxes) -> None:
    score = await scored(provider, UNTIL_FIVE, [WRONG, *TWINS.values()])
    assert [test.outcome for test in score.tests] == ["passed", *["failed"] * len(TWINS)]


WAITING = bench(
    "assert dut.q.value == number",
    end="""for waited in range(10**9):
        if dut.q.value == 15:
            break
        await FallingEdge(dut.clk)
    assert waited < 1000""",
)
"""A bench that waits for an output as long as it takes, then says whether that was too long."""
NEVER = RIGHT.replace("state + 1", "state + (state != 12)")
LATER = RIGHT.replace("reg [3:0] state;", "reg [3:0] state;\n    reg [12:0] held = 0;").replace(
    "state <= state + 1;", "begin held <= held + (state == 12); state <= state + (state != 12 || &held); end"
)
"""Designs that reach 15 never, and thousands of steps too late."""


@SLOW
async def test_a_mutant_that_a_bench_waits_for_is_not_rejected_and_costs_no_other(provider: DockerSandboxes) -> None:
    problem = problem_of([NEVER, LATER, WRONG], kind="cocotb")
    settings = json.loads(problem.harness["src/judge.json"]) | {"seconds": 10}
    harness = {**problem.harness, "src/judge.json": json.dumps(settings)}
    async with Scorer(provider) as scorer:
        score = await scorer.score(problem.model_copy(update={"harness": harness}), {"verif/bench.py": WAITING})
    assert [test.outcome for test in score.tests] == ["failed", "passed", "passed"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else SLOW) for name in ATTACKS])
async def test_an_attack_earns_nothing(name: str, provider: DockerSandboxes) -> None:
    score = await scored(provider, ATTACKS[name], [*TWINS.values(), RIGHT])
    assert (score.passed, score.tests_passed, score.credit, score.retries) == (False, 0, 0.0, 0)


LONG = """if True:
        random.seed(1)
        os.unlink('/tmp/trial/steps')
        with open('/tmp/trial/steps', 'w') as file:
            file.writelines(f"{random.getrandbits(130):0130b}\\n" for _ in range(95_000))"""
"""A record of many changes of wide inputs."""


@pytest.mark.slow  # fills the record of every run
async def test_a_record_that_is_too_long_for_all_runs_is_the_benchs_fault(provider: DockerSandboxes) -> None:
    problem = problem_of([*TWINS.values()] * 3, kind="cocotb")
    harness = {path: text.replace("input wire en", "input wire [127:0] en") for path, text in problem.harness.items()}
    settings = json.loads(harness["src/judge.json"])
    settings["ports"] = [[name, way, 128 if name == "en" else width] for name, way, width in settings["ports"]]
    wide = problem.model_copy(update={"harness": {**harness, "src/judge.json": json.dumps(settings)}})
    async with Scorer(provider) as scorer:
        score = await scorer.score(wide, {"verif/bench.py": bench(end=LONG)})
    assert (score.passed, score.tests_passed, score.retries) == (False, 0, 0)
    assert "the record of its inputs is too long" in score.tests[0].name


@SLOW
async def test_who_sleeps_loses_the_rest_and_the_clock_decides_for_no_cache(
    provider: DockerSandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtl_agent_gym.scoring.trials.SECONDS", 5.0)
    async with Scorer(provider, cache=tmp_path) as scorer:
        for _ in range(2):
            score = await scorer.score(problem_of([WRONG], kind="cocotb"), {"verif/bench.py": ASLEEP})
            assert (score.passed, score.tests_passed, score.retries, score.cached) == (False, 0, 0, False)
            assert "does not end" in score.tests[0].name


@pytest.mark.slow  # depends on the attack alone, which seldom changes
async def test_beside_the_hidden_design_an_attack_succeeds(provider: DockerSandboxes) -> None:
    """The control: the attack that looks for names inside of the design is one."""
    text, twin = bench("assert not hasattr(dut.trial_given, 'only_here')"), [TWINS["inverted"]]
    assert (await scored(provider, text, twin)).tests_passed == 0
    assert (await scored(provider, text, twin, SIGHTED)).tests_passed == 1


async def test_a_fault_of_the_hidden_program_is_no_score(provider: DockerSandboxes) -> None:
    problem = problem_of([WRONG], Control((("src/trials.py", "def main():", "def main():\n    1 / 0"),)), kind="cocotb")
    async with Scorer(provider, attempts=1) as scorer:
        with pytest.raises(HarnessError, match="ZeroDivisionError"):
            await scorer.score(problem, {"verif/bench.py": HONEST})


async def test_a_simulation_of_a_hidden_design_that_is_killed_is_no_score(provider: DockerSandboxes) -> None:
    """The end of its processor time, which a bench can bring about, is."""

    async def score(signal: str) -> Score:
        killed = ("src/trials.py", '["vvp", "-n", "sim.vvp"]', f'["sh", "-c", "kill -{signal} $$"]')
        async with Scorer(provider, attempts=1) as scorer:
            problem = problem_of([WRONG], Control((killed,)), kind="cocotb")
            return await scorer.score(problem, {"verif/bench.py": HONEST})

    with pytest.raises(HarnessError, match="was killed"):
        await score("KILL")
    late = await score("XCPU")
    assert (late.tests_passed, "does not end with the inputs" in late.tests[0].name) == (0, True)


@pytest.mark.parametrize(("place", "named"), [(0, "the trials"), (1, "a trial")])
async def test_a_run_that_lacked_memory_is_the_machines_fault(
    place: int, named: str, provider: DockerSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the harness's program, and then one of the bench."""
    asked = itertools.count()

    async def lacked_memory(self: WardenSandbox) -> bool:
        return next(asked) == place

    monkeypatch.setattr(WardenSandbox, "lacked_memory", lacked_memory)
    async with Scorer(provider, attempts=1) as scorer:
        with pytest.raises(HarnessError, match=f"too little memory for {named} of"):
            await scorer.score(problem_of([WRONG], kind="cocotb"), {"verif/bench.py": HONEST})


async def test_its_sandboxes_count_as_those_of_gradings(provider: DockerSandboxes) -> None:
    """Else a submission that every agent waits for could need the room of those agents."""
    budget = await provider.budget()

    def used() -> tuple[float, float]:
        return budget.permits["agent"].usage().used, budget.permits["scoring"].usage().used

    before = used()
    sandbox = await provider.create(SandboxSpec(for_grading=True))
    during = used()
    await sandbox.close()
    assert (during[0], during[1] > before[1]) == (before[0], True)
    assert used() == before
