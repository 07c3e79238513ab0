from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import docker
import pytest

from rtl_agent_gym import retries
from rtl_agent_gym.errors import DaemonError, ProblemError, SandboxError, SandboxLost
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox, SandboxProvider, SandboxSpec
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.scoring import RewardWeights, Scorer, score_files
from tests.counters import counted
from tests.sandboxes.providers import ProviderAround, act_beside, kill

from .conftest import COMPOSE, EMPTY, GOLDEN, HEADER, TARGET, make_problem

pytestmark = pytest.mark.docker


def shell_service(script: str, name: str = "a", more: str = "") -> str:
    command = json.dumps(["/bin/sh", "-ec", script.replace("$", "$$")])
    return f"  {name}:\n    image: __OSS_SIM_IMAGE__\n    command: {command}\n{more}"


async def test_a_right_design_passes_and_its_tests_are_named(scorer: Scorer, adder: Problem) -> None:
    score = await scorer.score(adder, {TARGET: GOLDEN})
    assert score.passed
    assert (score.format, score.syntax, score.interface, score.compile) == (1.0, 1.0, 1.0, 1.0)
    assert score.reward == pytest.approx(1.4)
    assert (score.tests_passed, score.tests_total) == (3, 3)
    assert [test.name for test in score.tests] == [
        f"test_runner.py::test_adder/test_adder.{name}" for name in ("test_small", "test_carry", "test_random")
    ]
    assert score.reason == "all 3 tests passed"
    assert score.violations == []


@pytest.mark.slow
async def test_two_runs_say_the_same(scorer: Scorer, adder: Problem) -> None:
    wrong = GOLDEN.replace("a + b", "(a == 8'd77) ? 9'd0 : a + b")  # only some random draws find it
    for text in (GOLDEN, wrong):
        first, second = await asyncio.gather(*(scorer.score(adder, {TARGET: text}) for _ in range(2)))
        assert first.same_as(second)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("text", "said", "parts"),
    [
        (None, "missing: rtl/adder.sv", (0.0, 0.0, 0.0)),
        ("", "not submitted, or empty: rtl/adder.sv", (0.0, 0.0, 0.0)),
        (GOLDEN.replace("endmodule", "endmodul"), "does not compile: rtl/adder.sv:", (1.0, 0.0, 0.0)),
        (f'`line 1 "{4200 * " "}" 0\nmodule', "does not compile: its compiler gives no reason", (1.0, 0.0, 0.0)),
        (EMPTY, "3 of 3 tests failed, first test_runner.py::test_adder/test_adder.test_small", (1.0, 1.0, 1.0)),
        (GOLDEN.replace("a + b", "8'(a + b)"), "2 of 3 tests failed", (1.0, 1.0, 1.0)),
        (GOLDEN.replace("adder", "add"), "module adder is missing (modules found: add)", (1.0, 1.0, 0.0)),
        (GOLDEN.replace("endmodule", "initial $finish;\nendmodule"), "3 of 3 tests failed", (1.0, 1.0, 1.0)),
        (GOLDEN.replace("endmodule", "initial $fatal;\nendmodule"), "of 3 tests failed", (1.0, 1.0, 1.0)),
        (GOLDEN.replace("a + b", "missing(a)"), "does not compile: rtl/adder.sv:2", (1.0, 1.0, 0.0)),
        (GOLDEN.replace("endmodule", "initial $foo(1);\nendmodule"), "the simulator refuses it", (1.0, 1.0, 1.0)),
    ],
)
async def test_wrong_designs_get_a_score_with_a_reason(
    scorer: Scorer, adder: Problem, text: str | None, said: str, parts: tuple[float, float, float]
) -> None:
    score = await scorer.score(adder, {} if text is None else {TARGET: text})
    assert not score.passed
    assert said in score.reason
    assert (score.format, score.syntax, score.compile) == parts
    assert score.reward == pytest.approx(0.1 * parts[0] + 0.3 * parts[1])
    assert score.violations == []


@pytest.mark.parametrize(
    "body",
    [
        "reg x; initial forever x = ~x;",
        # Slow: the same clock ends them, and each takes a processor for all of its time.
        pytest.param('initial forever $display("5 passed");', marks=pytest.mark.slow),
        pytest.param("int n; always_comb begin n = a; while (1) n = n + 1; end", marks=pytest.mark.slow),
    ],
)
async def test_an_endless_simulation_ends_with_its_time(scorer: Scorer, adder: Problem, body: str) -> None:
    before = counted("grading_timeouts")
    score = await asyncio.wait_for(scorer.score(adder, {TARGET: f"{HEADER}{body}\nendmodule\n"}, timeout=4.0), 60)
    assert counted("grading_timeouts") == before + 1
    assert not score.passed
    assert "did not end in time" in score.reason
    assert score.retries == 0
    assert score.reward == pytest.approx(0.4)
    assert score.tests_total == 3


async def test_partial_tests_and_the_other_presets(
    shared_provider: SandboxProvider, adder: Problem, tmp_path: Path
) -> None:
    wrong = GOLDEN.replace("a + b", "8'(a + b)").replace("[8:0] sum", "[7:0] sum")
    rewards = {}
    for name in ("default", "staged", "dense", "compile"):
        async with Scorer(shared_provider, weights=RewardWeights.preset(name), cache=tmp_path) as scorer:
            score = await scorer.score(adder, {TARGET: wrong})
            rewards[name] = score.reward
    assert (score.tests_passed, score.tests_total) == (1, 3)
    assert score.interface == 0.75
    assert "sum has 8 bits, expected 9" in score.reason
    assert rewards == pytest.approx({"default": 0.4, "staged": 0.45, "dense": 0.4 + 1 / 3, "compile": 0.9})


async def test_the_proxy_preset_needs_no_machine(adder: Problem) -> None:
    class Nothing:
        async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
            raise DaemonError("no daemon here")

        async def close(self) -> None: ...

    async with Scorer(Nothing(), weights=RewardWeights.preset("proxy")) as scorer:  # type: ignore[arg-type]
        score = await scorer.score(adder, {TARGET: GOLDEN})
    assert score.reward == pytest.approx(0.6)
    assert not score.passed
    assert "not run" in score.reason


async def test_what_services_see(scorer: Scorer) -> None:
    """Folders, rights and variables, whatever working folder the row names."""
    script = """
        cannot() { if "$@" 2>/dev/null; then echo "could: $*"; exit 1; fi; }
        test $(pwd) = /code/rundir; test $HOME = /code/rundir; test $TOPLEVEL = adder; test $(id -un) = agent
        test -d /code/docs; test -d /code/verif; test -w /code/rtl/adder.sv
        cmp /src/test_adder.py /code/src/test_adder.py; test ! -e /src/docker-compose.yml; test -z "$(cat)"
        for folder in /src /code/src /venv /usr /opt/rtl-agent-gym; do cannot touch $folder/x; done
        cannot rm -f /src/test_adder.py; cannot mv /src/test_adder.py /src/y; cannot mv /code/src /code/other
        cannot sh -c 'echo x >> /src/test_adder.py'; cannot chmod 777 /src; cannot kill -9 1
        """
    text = "services:\n" + shell_service(script, more="    working_dir: /code/rundir/deep\n    env_file: ./src/.env\n")
    score = await scorer.score(make_problem(harness={"docker-compose.yml": text}), {TARGET: GOLDEN})
    assert score.passed, score.reason
    assert score.reason == "the hidden test passed"


async def test_all_services_must_exit_0_and_share_the_work_folder(scorer: Scorer) -> None:
    first = shell_service("echo 1 > /code/rundir/left; echo 1 > /tmp/left; sleep 600 &", "first")
    second = shell_service("test -e /code/rundir/left; test ! -e /tmp/left; ! ps -e | grep sleep", "second")
    good = "services:\n" + first + second
    score = await scorer.score(make_problem(harness={"docker-compose.yml": good}), {TARGET: GOLDEN})
    assert score.passed, score.reason
    assert [(test.name, test.outcome) for test in score.tests] == [
        ("first: first", "passed"),
        ("second: second", "passed"),
    ]
    bad = "services:\n" + shell_service("exit 3", "first") + shell_service("exit 0", "second")
    score = await scorer.score(make_problem(harness={"docker-compose.yml": bad}), {TARGET: GOLDEN})
    assert not score.passed
    assert (score.tests_passed, score.tests_total) == (1, 2)


@pytest.mark.slow
async def test_each_service_has_the_whole_time(scorer: Scorer) -> None:
    """As in the official runner, which starts them one by one, each with its own limit."""
    services = shell_service("sleep 2", "first") + shell_service("sleep 2", "second") + shell_service("true", "third")
    problem = make_problem(harness={"docker-compose.yml": "services:\n" + services})
    score = await scorer.score(problem, {TARGET: GOLDEN}, timeout=3.0)
    assert score.passed, score.reason
    problem = make_problem(harness={"docker-compose.yml": "services:\n" + services.replace("sleep 2", "sleep 60", 1)})
    score = await scorer.score(problem, {TARGET: GOLDEN}, timeout=3.0)
    assert [test.outcome for test in score.tests] == ["error", "passed", "passed"]


@pytest.mark.slow  # test_warm.py has pytest through a shell, and the test of shared folders two services
async def test_several_simulations_through_a_shell(scorer: Scorer) -> None:
    text = COMPOSE.replace(
        "pytest -s -o cache_dir=/code/rundir/.cache /src/test_runner.py -v",
        '/bin/sh -c "pytest -s -o cache_dir=/rundir/harness/.cache /src/test_runner.py -s"',
    )
    double = text + text.partition("\n")[2].replace("direct", "again")
    score = await scorer.score(make_problem(harness={"docker-compose.yml": double}), {TARGET: GOLDEN})
    assert score.passed
    assert score.tests_total == 6
    assert score.tests[0].name.startswith("direct: test_runner.py::")


LOOP = """\
from cocotb_tools.runner import get_runner

def test_all():
    for name in ("A", "B", "C"):
        runner = get_runner("icarus")
        runner.build(sources=["/code/rtl/adder.sv"], hdl_toplevel="adder", defines={name: 1},
                     always=True, clean=True, timescale=("1ns", "1ns"))
        runner.test(hdl_toplevel="adder", test_module="test_adder")
"""
SACRIFICE = (
    HEADER
    + """\
always_ff @(posedge clk)
`ifdef A
    sum <= (a == 255 && b == 255) ? 9'd0 : a + b;
`else
    sum <= 9'd0;
`endif
endmodule
"""
)


SIMULATE = """
import os, pytest
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pool
from cocotb_tools.runner import get_results, get_runner

def build(folder="sim_build"):
    runner = get_runner(os.getenv("SIM"))
    sources, top = os.getenv("VERILOG_SOURCES").split(), os.getenv("TOPLEVEL")
    runner.build(sources=sources, hdl_toplevel=top, build_dir=folder, timescale=("1ns", "1ns"))
    return runner

def simulate(number, module="test_adder"):
    folder, results, top = f"b{number}", f"/code/rundir/{number}.xml", os.getenv("TOPLEVEL")
    try:
        return build(folder).test(hdl_toplevel=top, test_module=module, results_xml=results, test_dir=folder)
    except SystemExit as error:  # a pool of processes would wait for ever
        raise RuntimeError(str(error)) from None

@pytest.fixture(scope="session")
def results():
    return simulate(0)
"""
WAYS = {
    "another test reads": "def test_a(results): pass\ndef test_b(results): assert get_results(results) == (3, 0)",
    "by keyword": "def test(results): assert get_results(results_xml_file=results) == (3, 0)",
    "threads": "def test():\n    with ThreadPoolExecutor(4) as pool: list(pool.map(simulate, range(4)))",
    "processes": "def test():\n    with Pool(4) as pool: assert len(pool.map(simulate, range(4))) == 4",
    "many readers": "def test(results):\n"
    "    with Pool(4) as pool: assert set(pool.map(get_results, [results] * 200)) == {(3, 0)}\n"
    "    with ThreadPoolExecutor(4) as pool: assert set(pool.map(get_results, [results] * 200)) == {(3, 0)}",
    "a control that must fail": "def test():\n    good = simulate(0)\n"
    "    with pytest.raises(RuntimeError): simulate(1, 'test_false')\n    assert get_results(good) == (3, 0)",
    "properties of any type": "def test(results, record_property):\n"
    "    record_property('coverage', {1: '87 %'}); record_property('area', object()); record_property('why', [1])",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", WAYS.values(), ids=WAYS)
async def test_simulations_and_their_results_in_any_order(scorer: Scorer, source: str) -> None:
    false = "import cocotb\n@cocotb.test()\nasync def test_false(dut): assert False\n"
    problem = make_problem(harness={"src/test_runner.py": SIMULATE + source, "src/test_false.py": false})
    score = await scorer.score(problem, {TARGET: GOLDEN})
    assert (score.passed, score.violations) == (True, []), score.reason
    assert not (await scorer.score(problem, {TARGET: EMPTY})).passed


SEEDED = """
import cocotb, random
DRAWN = (cocotb.RANDOM_SEED, random.random())

@cocotb.test()
async def test(dut):
    with open("/code/rundir/drawn", "a") as stream:
        print(*DRAWN, random.random(), file=stream)
"""
SEEDS = """
def draw(**options):
    runner = build()
    runner.test(hdl_toplevel=os.getenv("TOPLEVEL"), test_module="test_seeded", **options)

def drawn():
    return [tuple(map(float, line.split())) for line in open("/code/rundir/drawn")]

def test_each_simulation_has_its_own():
    for _ in range(3):
        draw()
    first = int(os.environ["RTL_GYM_SEED"])
    seeds, imported, in_test = zip(*drawn())
    assert seeds == (first, first + 1, first + 2)
    assert len(set(imported)) == len(set(in_test)) == 3

def test_a_harness_may_set_it(monkeypatch):
    assert "COCOTB_RANDOM_SEED" not in os.environ
    draw(seed=5)
    draw(plusargs=["+seed=6"])
    draw(plusargs=["+ntb_random_seed=7"])
    monkeypatch.setenv("RANDOM_SEED", "8")
    draw()
    monkeypatch.setenv("COCOTB_RANDOM_SEED", "9")
    draw()
    assert [int(row[0]) for row in drawn()[3:]] == [5, 6, 7, 8, 9]
"""


async def test_services_have_their_own_random_stimuli(scorer: Scorer) -> None:
    kept = "/code/rundir/kept"
    write = f"from os import environ; print(environ['RTL_GYM_SEED'], file=open({kept!r}, 'a'))"
    check = f"seeds = open({kept!r}).read().split(); assert int(seeds[1]) - int(seeds[0]) == 65536, seeds"
    services = [(write, "a"), (write, "b"), (check, "c")]
    text = "services:\n" + "".join(shell_service(f'python3 -c "{code}"', name) for code, name in services)
    score = await scorer.score(make_problem(harness={"docker-compose.yml": text}), {TARGET: GOLDEN})
    assert score.passed, score.reason


async def test_the_random_stimuli_of_simulations(scorer: Scorer) -> None:
    problem = make_problem(harness={"src/test_runner.py": SIMULATE + SEEDS, "src/test_seeded.py": SEEDED})
    score = await scorer.score(problem, {TARGET: GOLDEN})
    assert score.passed, score.reason


ROM = """
module adder #(parameter FILE = "") (input clk, input [7:0] a, output reg [7:0] q);
  reg [7:0] words [0:255];
  initial $readmemh(FILE, words);
  always @(posedge clk) q <= words[a];
endmodule
"""
READ_ROM = """
import cocotb
from cocotb.triggers import Timer

@cocotb.test()
async def test(dut):
    for address in range(16):
        dut.a.value, dut.clk.value = address, 0
        await Timer(5, "ns")
        dut.clk.value = 1
        await Timer(5, "ns")
        assert int(dut.q.value) == address ^ 0x5A
"""
WITH_FILE = """
import shutil
from cocotb_tools.runner import get_runner

def simulate(file):
    runner = get_runner("icarus")
    runner.build(sources=["/code/rtl/adder.sv"], hdl_toplevel="adder", parameters={"FILE": f'"{file}"'},
                 always=True, timescale=("1ns", "1ns"))
    runner.test(hdl_toplevel="adder", test_module="test_rom")

def test_hidden():
    simulate("/src/data/words.hex")

def test_made(tmp_path):
    simulate(shutil.copy("/src/data/words.hex", tmp_path))
"""


WORDS = "".join(f"{number ^ 0x5A:02x}\n" for number in range(256))
SLOW_VERILATOR = pytest.param("verilator", marks=pytest.mark.slow)  # its compiler takes long


@pytest.mark.parametrize("simulator", ["icarus", SLOW_VERILATOR])
@pytest.mark.parametrize(
    "read", ["FILE", '"/src/data/other.hex"', pytest.param('"/src/test_rom.py"', marks=pytest.mark.slow)]
)
async def test_a_design_reads_the_file_that_the_harness_names(scorer: Scorer, read: str, simulator: str) -> None:
    files = {"src/test_runner.py": WITH_FILE.replace("icarus", simulator), "src/test_rom.py": READ_ROM}
    files |= {"src/data/words.hex": WORDS, "src/data/other.hex": WORDS}
    score = await scorer.score(make_problem(harness=files), {TARGET: ROM.replace("(FILE", f"({read}")})
    assert score.passed == (read == "FILE"), score.reason
    assert bool(score.violations) == (read != "FILE")


async def test_a_design_does_not_read_what_the_harness_names_to_its_own_modules(scorer: Scorer) -> None:
    build = """
    import subprocess
    words = ["iverilog", "-g2012", "-o", "model", "-Pmodel.FILE=\\"/src/data/words.hex\\"", "/src/model.sv"]
    subprocess.run(words, check=True)
"""
    runner = WITH_FILE.partition("def test_hidden")[0] + f"def test():{build}    simulate('none')\n"
    model = 'module model #(parameter FILE = "");\nendmodule\n'
    files = {"src/test_runner.py": runner, "src/test_rom.py": READ_ROM, "src/model.sv": model}
    design = ROM.replace("(FILE", '("/src/data/words.hex"')
    problem = make_problem(harness=files | {"src/data/words.hex": WORDS})
    score = await scorer.score(problem, {TARGET: design})
    assert not score.passed
    assert "$readmemh reads '/src/data/words.hex'" in str(score.violations)


@pytest.mark.slow
async def test_partial_credit_is_not_earned_by_hiding_a_configuration(shared_provider: SandboxProvider) -> None:
    """A runner that loops stops at the first configuration that fails: neither the last nor the first may pay."""
    problem = make_problem(harness={"src/test_runner.py": LOOP})
    broken = GOLDEN.replace("endmodule", "`ifdef C\n  initial missing(1);\n`endif\nendmodule")
    async with Scorer(shared_provider, weights=RewardWeights.preset("dense")) as scorer:
        right, hidden, sacrificed = [
            await scorer.score(problem, {TARGET: text}) for text in (GOLDEN, broken, SACRIFICE)
        ]
    assert (right.reward, right.tests_passed) == (pytest.approx(1.4), 9)
    assert (hidden.reward, hidden.tests_passed, hidden.tests_total) == (pytest.approx(0.4), 6, 7)
    assert (sacrificed.reward, sacrificed.tests_passed, sacrificed.tests_total) == (pytest.approx(0.4), 2, 3)


async def test_a_command_that_does_not_exist_is_the_problems_fault(shared_provider: SandboxProvider) -> None:
    flaky = Failing(shared_provider, 0)
    text = "services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: {}\n"
    async with Scorer(flaky) as scorer:
        with pytest.raises(ProblemError, match="service 'a': cannot run 'pytst' in /code/rundir: No such file"):
            await scorer.score(make_problem(harness={"docker-compose.yml": text.format("pytst -v")}), {TARGET: GOLDEN})
        assert flaky.made == 1
        own = make_problem(harness={"docker-compose.yml": text.format("/code/rtl/run.sh")})
        score = await scorer.score(own, {TARGET: GOLDEN})  # a submission could have had it
    assert (score.passed, score.retries, score.tests_total) == (False, 0, 1)


@pytest.mark.slow
@pytest.mark.daemon
async def test_a_dockerfile_is_built_once(provider: DockerSandboxes) -> None:
    text = COMPOSE.replace("image: __OSS_SIM_IMAGE__", "build: .")
    plain = {"docker-compose.yml": text, "Dockerfile": "FROM __OSS_SIM_IMAGE__\nRUN pip3 install cocotb_bus\n"}
    made = {
        "docker-compose.yml": "services:\n  a:\n    build: .\n    command: cmp /opt/made /src/.env\n",
        "Dockerfile": "FROM __OSS_SIM_IMAGE__\nUSER root\nCOPY src/.env /opt/made\n",
    }
    client = docker.from_env()
    try:
        before = {image.id for image in client.images.list("rtl-agent-gym/harness")}
        async with Scorer(provider) as scorer:
            for harness in (plain, made, made):
                score = await scorer.score(make_problem(harness=harness), {TARGET: GOLDEN})
                assert score.passed, score.reason
        new = {image.id for image in client.images.list("rtl-agent-gym/harness")} - before
        assert len(new) <= 1
    finally:
        for image in client.images.list("rtl-agent-gym/harness"):
            with contextlib.suppress(docker.errors.APIError):
                client.images.remove(str(image.id), force=True)
        client.close()


async def test_a_dockerfile_that_fails_is_the_machines_fault(
    shared_provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(attempts=1))
    harness = {
        "docker-compose.yml": "services:\n  a:\n    build: .\n    command: 'true'\n",
        "Dockerfile": "FROM __OSS_SIM_IMAGE__\nRUN echo it went wrong; exit 9\n",
    }
    async with Scorer(shared_provider) as scorer:
        with pytest.raises(SandboxError, match="it went wrong"):
            await scorer.score(make_problem(harness=harness), {TARGET: GOLDEN})


class Failing(ProviderAround):
    """A provider whose sandboxes are killed from outside a number of times, while they grade."""

    def __init__(self, provider: SandboxProvider, times: int) -> None:
        super().__init__(provider)
        self.left, self.made = times, 0

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        self.made += 1
        sandbox = await super().create(spec)
        if self.left > 0:
            self.left -= 1

            async def fail() -> None:
                await asyncio.sleep(0.1)
                kill(sandbox)

            act_beside(sandbox, fail)
        return sandbox


async def test_a_container_killed_from_outside_is_graded_again(
    shared_provider: SandboxProvider, adder: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(longest=0.1))
    flaky = Failing(shared_provider, 1)
    before = counted("machine_faults", where="grading", error="SandboxLost")
    async with Scorer(flaky) as scorer:
        score = await scorer.score(adder, {TARGET: GOLDEN})
    assert (score.passed, score.retries, flaky.made) == (True, 1, 2)
    assert counted("machine_faults", where="grading", error="SandboxLost") == before + 1


async def test_a_machine_that_stays_broken_is_an_error_and_no_score(
    shared_provider: SandboxProvider, adder: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(attempts=3, longest=0.1))
    async with Scorer(Failing(shared_provider, 99)) as scorer:
        with pytest.raises(SandboxLost) as caught:
            await scorer.score(adder, {TARGET: GOLDEN})
    assert caught.value.retries == 2


async def test_cancelling_leaves_no_container(provider: DockerSandboxes, adder: Problem) -> None:
    async with Scorer(provider) as scorer:
        task = asyncio.ensure_future(scorer.score(adder, {TARGET: GOLDEN}))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not provider._sandboxes


async def test_gradings_are_kept_and_found_again(
    shared_provider: SandboxProvider, adder: Problem, tmp_path: Path
) -> None:
    async with Scorer(shared_provider, cache=tmp_path) as scorer:
        first = await scorer.score(adder, {TARGET: GOLDEN})
        again = await scorer.score(adder, {TARGET: GOLDEN, "notes.txt": "ignored"})
        other = await scorer.score(adder, {TARGET: EMPTY})
    async with Scorer(shared_provider, cache=tmp_path, weights=RewardWeights.preset("compile")) as scorer:
        heavier = await scorer.score(adder, {TARGET: GOLDEN})
    assert (first.cached, again.cached, other.cached, heavier.cached) == (False, True, False, True)
    assert again.same_as(first)
    assert heavier.reward == pytest.approx(1.9)
    assert not other.passed


def test_score_files_is_the_same_for_scripts(adder: Problem) -> None:
    assert score_files(adder, {TARGET: GOLDEN}).passed


async def test_score_files_can_be_called_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is called by a loop that runs, and nest_asyncio replaces `asyncio.run`."""
    monkeypatch.setattr(asyncio, "run", lambda work: asyncio.get_event_loop().run_until_complete(work))
    with pytest.raises(ProblemError, match="it cannot be scored: no tool for it"):
        score_files(make_problem(unscorable="no tool for it"), {})


async def test_score_files_in_a_notebook_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()

    async def score(*_: object) -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(Scorer, "score", score)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(InterruptedError):
            score_files(make_problem(), {})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(20)


async def test_the_benchmarks_own_row_with_its_solution(scorer: Scorer, cvdp_data: Path) -> None:
    source = cvdp_data / "cvdp_v1.1.0_example_agentic_code_generation_no_commercial_with_solutions.jsonl"
    (problem,) = load_problems(source)
    assert problem.golden is not None
    score = await scorer.score(problem, problem.golden)
    assert score.passed, score.reason
    assert score.reward == pytest.approx(1.4)


async def test_sandboxes_wait_before_the_first_grading_where_they_were_asked_for(adder: Problem) -> None:
    async with make_provider() as provider:
        async with Scorer(provider, waiting=2) as scorer:
            await scorer.prepare(adder)
            waiting = {sandbox.id for sandbox in provider._sandboxes}
            assert len(waiting) == 2
            scores = await asyncio.gather(
                scorer.score(adder, {TARGET: GOLDEN}), scorer.score(adder, {TARGET: GOLDEN + "// again\n"})
            )
            assert all(score.passed and score.retries == 0 for score in scores)
        assert not provider._sandboxes
        async with Scorer(provider) as scorer:
            await scorer.prepare(adder)
            assert not provider._sandboxes
