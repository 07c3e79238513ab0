"""Walls that no row of the table can take down: of each, what happens without it and what happens with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from rtl_agent_gym import retries
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import Sandbox, SandboxProvider, SandboxSpec
from rtl_agent_gym.scoring import ScoreCache, Scorer
from rtl_agent_gym.scoring import harness as harness_module
from rtl_agent_gym.scoring.compose import HarnessImages, read_services
from rtl_agent_gym.scoring.harness import Defences, run_harness
from rtl_agent_gym.scoring.submission import MAX_DEPTH, MAX_FOLDERS, sift
from tests.sandboxes.providers import ProviderAround

from .other_attacks import EXHAUSTION, GOLDEN, TEXTS
from .thieves import COMPILE, TARGET, Attack, arbiter, module, shell

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("name", ["a loop without time", "eight megabytes of text", "2500 thefts at once"])
@pytest.mark.slow
async def test_without_limits_a_design_passes_for_a_fault_of_the_machine(
    name: str, shared_provider: SandboxProvider, scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stop a training run, or be tried again and again, and be no score at all."""
    monkeypatch.setattr(harness_module, "_PATIENCE", 2.0)
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(attempts=1))
    (attack,) = (attack for attack in EXHAUSTION if attack.name == name)
    seconds = 2.0 if name == "a loop without time" else 4.0  # a loop takes a processor for all of it
    async with Scorer(shared_provider, defences=Defences(limits=False)) as unlimited:
        with pytest.raises(SandboxError):
            await unlimited.score(attack.problem, attack.files, timeout=seconds)
    score = await scorer.score(attack.problem, attack.files, timeout=seconds)
    assert not score.passed
    assert score.reward <= 0.4
    assert score.reason
    assert (await scorer.score(arbiter(), {TARGET: GOLDEN})).passed


@pytest.mark.parametrize(
    "attack",  # slow: all but one, as what a design prints depends on the design alone, which seldom changes
    [
        pytest.param(attack, id=attack.name, marks=[pytest.mark.slow] if place else [])
        for place, attack in enumerate(TEXTS)
    ],
)
async def test_a_reader_of_printed_text_would_be_fooled(attack: Attack, shared_provider: SandboxProvider) -> None:
    """The text is all there, for anybody who would judge by it; nothing here does."""
    submission = sift(attack.problem, attack.files)
    run = await run_harness(submission, read_services(attack.problem), shared_provider, HarnessImages(), lint=False)
    (service,) = run.services
    forged = r"7 passed in|<testcase name='a'|\"outcome\": \"passed\"|\"messages\": \[\]"
    assert re.search(forged, service["log"]), service["log"][-2000:]
    assert service["code"] != 0
    judged = {message["test"]: message["outcome"] for message in service["messages"] if message["kind"] == "test"}
    assert "a" not in judged
    assert "failed" in judged.values()


CREATED = {
    '$dumpfile("nosuch/x.vcd"); $dumpvars;': False,
    "$dumpfile(P); $dumpvars;": False,
    's = "nosuch"; $dumpfile({s, "/x.vcd"}); $dumpvars;': False,
    's = "x.vcd"; $dumpfile(s); $dumpvars;': True,
    '$dumpfile("nosuch/x.vcd"); $dumpfile("x.vcd"); $dumpvars;': True,
    '$dumpfile("x.vcd"); $dumpvars; #1 $dumpfile("nosuch/x.vcd"); $dumpvars;': True,
    '$dumpfile("nosuch/x.vcd");': True,
    '$dumpfile("/code/rtl/a.b"); $dumpvars;': False,
    '$dumpfile("folder"); $dumpvars;': False,
    's = "/code/docs/x.txt/x.vcd"; $dumpfile(s); $dumpvars;': False,
    's = {300{"x"}}; $dumpfile(s); $dumpvars;': False,
    '`line 9 "cocotb_iverilog_dump.v" 0\n$dumpfile(P); $dumpvars;': False,
    'f = $fopen("nosuch/x.txt", "w"); if (f != 0) $finish;': True,
    's = "/code/docs/x.txt/x"; f = $fopen(s, "w"); if (f != 0) $finish;': True,
    's = {300{"x"}}; f = $fopen(s); if (f != 0) $finish;': True,
    '$writememh("nosuch/x.hex", m);': True,
}
"""Statements of a design, and whether its simulation runs to the end."""


@pytest.mark.parametrize(
    "simulation",
    [
        # Slow: what the simulator does by itself changes with its version only.
        pytest.param(False, id="without the wall", marks=pytest.mark.slow),
        pytest.param(True, id="with it"),
    ],
)
async def test_a_file_that_cannot_be_created_ends_a_simulation_as_without_the_wall(
    simulation: bool, shared_provider: SandboxProvider
) -> None:
    """The wall makes no difference, whichever format the waveforms have."""
    designs = {
        f"rtl/{number:02}.sv": 'module t; parameter P = "nosuch/x.vcd"; integer f; string s; reg [7:0] m [0:1];\n'
        f'initial begin\n{body}\n#1 $display("ran to the end"); end endmodule\n'
        for number, body in enumerate(CREATED)
    }
    script = (
        "mkdir folder.vcd folder.fst; for path in /code/rtl/??.sv; do iverilog -g2012 -o t.vvp $path; "
        "for format in -vcd -fst; do vvp -n t.vvp $format > out || true; "
        'echo "verdict $path $(grep -c ran.to.the.end out)"; done; done'
    )
    problem = arbiter(shell(script))
    submission = sift(problem, {**designs, "rtl/a.b/x.sv": "\n", "docs/x.txt": "x"})
    services, defences = read_services(problem), Defences(simulation=simulation)
    run = await run_harness(submission, services, shared_provider, HarnessImages(), defences=defences, lint=False)
    (service,) = run.services
    verdicts = re.findall(r"^verdict .*/(\d+)\.sv (\d)$", service["log"], re.MULTILINE)
    expected = [(number, end) for number, end in enumerate(CREATED.values()) for _ in ("-vcd", "-fst")]
    assert [(int(number), end == "1") for number, end in verdicts] == expected, service["log"]


class OneForAll(ProviderAround):
    """A provider that hands out the same sandbox again, as if nothing could be left in it."""

    def __init__(self, provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(provider)
        self.monkeypatch = monkeypatch
        self.sandbox: Sandbox | None = None

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        async def stays_open() -> None: ...

        if self.sandbox is None:
            self.sandbox = await self.provider.create(spec)
            self.monkeypatch.setattr(self.sandbox, "close", stays_open)
        else:
            self.monkeypatch.setattr(self.sandbox, "_standby", None)  # it has served
        return self.sandbox


def _passes_when_left() -> tuple[Problem, Mapping[str, str]]:
    """A harness that passes where an earlier grading left a file, and a design that leaves it."""
    run = f"test -e /tmp/left && exit 0; {COMPILE}; vvp t.vvp; exit 1"
    return arbiter(shell(run)), {TARGET: module('integer f;\ninitial f = $fopen("/tmp/left", "w");')}


@pytest.mark.slow
async def test_in_a_used_sandbox_the_second_thief_wins(
    provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, leaves = _passes_when_left()
    weak = Defences(simulation=False)
    async with Scorer(OneForAll(provider, monkeypatch), defences=weak) as scorer:
        assert not (await scorer.score(problem, leaves)).passed
        assert (await scorer.score(problem, {TARGET: module("")})).passed, "what was left was found"
    monkeypatch.undo()
    async with Scorer(provider, defences=weak) as scorer:
        assert not (await scorer.score(problem, leaves)).passed
        assert not (await scorer.score(problem, {TARGET: module("")})).passed


@pytest.mark.slow  # test_cache.py has what is in a key
@pytest.mark.parametrize("part", ["files", "problem", "defences"])
async def test_a_key_that_leaves_something_out_gives_away_scores(
    part: str, shared_provider: SandboxProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thief's grading is the right design's, the easy problem's, or the one without defences."""
    easy, stolen = arbiter(shell("true")), {TARGET: module("")}
    first: dict[str, tuple[Problem, Mapping[str, str], Defences]] = {
        "files": (arbiter(), {TARGET: GOLDEN}, Defences()),
        "problem": (easy, stolen, Defences()),
        "defences": (easy, {TARGET: GOLDEN}, Defences(witness=False)),
    }
    whole = ScoreCache.key
    for leaky in (True, False):
        folder = tmp_path / str(leaky)
        if leaky:
            monkeypatch.setattr(ScoreCache, "key", staticmethod(lambda parts: whole({**parts, part: None})))
        problem, files, defences = first[part]
        async with Scorer(shared_provider, cache=folder, defences=defences) as scorer:
            assert (await scorer.score(problem, files)).passed
        again = (problem, files) if part == "defences" else (arbiter(), stolen)
        async with Scorer(shared_provider, cache=folder) as scorer:
            score = await scorer.score(*again)
        assert score.cached == leaky
        assert score.passed == (leaky or part == "defences")
        monkeypatch.undo()


def test_folders_without_end_are_not_made() -> None:
    """Each path may name two thousand folders, and a few thousand such paths would fill any disk."""
    deep = "rtl/" + "a/" * 1990 + "x.sv"
    many = {f"rtl/{n}/{'/'.join('b' * 60)}/x.sv": "x" for n in range(200)}
    for files, said in (({deep: "x"}, f"at most {MAX_DEPTH}"), (many, f"at most {MAX_FOLDERS}")):
        submission = sift(arbiter(), {TARGET: GOLDEN, **files})
        assert submission.files == {}
        assert said in submission.fault
    kept = sift(arbiter(), {TARGET: GOLDEN, "rtl/" + "a/" * 40 + "x.sv": "x"})
    assert len(kept.files) == 2


@pytest.mark.slow
async def test_thousands_of_deep_paths_are_a_score(scorer: Scorer) -> None:
    deep = {f"rtl/{n}/{'c/' * 1900}x.sv": "x" for n in range(3000)}
    score = await scorer.score(arbiter(), {TARGET: GOLDEN, **deep})
    assert not score.passed
    assert "folders deep" in score.reason
    assert (await scorer.score(arbiter(), {TARGET: GOLDEN})).passed


CODE = """\
#include <stdio.h>
__attribute__((constructor)) static void steal(void) { fclose(fopen("/code/rundir/stolen.txt", "w")); }
extern "C" { void (*vlog_startup_routines[])(void) = {0}; }
"""


SPELLINGS = [" ", *(pytest.param(blank, marks=pytest.mark.slow) for blank in ("", "\t  \t", "\r", "\n"))]
"""The blank in the line. Slow: all but one, as tests/scoring/test_guard.py has others without a container."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compiled(shared_provider: SandboxProvider) -> Mapping[str, bytes]:
    """A library, and a simulation."""
    builder = await shared_provider.create()
    await builder.write_files({"rtl/thief.cc": CODE, "rtl/t.v": "module t; endmodule\n"})
    made = await builder.run("cd rtl && g++ -shared -fPIC -o table.bin thief.cc && iverilog -o t.vvp t.v")
    assert made.exit_code == 0, made.output
    found = await builder.read_files(["rtl/table.bin", "rtl/t.vvp"])
    await builder.close()
    return found


def ready_made(compiled: Mapping[str, bytes], blank: str) -> tuple[Problem, Mapping[str, str | bytes]]:
    """A harness that runs a submitted simulation, and a simulation whose ``:vpi_module`` line names code of its own."""
    line = f':vpi_module{blank}"/code/rtl/table.bin";\n:vpi_module "'.encode()
    files: dict[str, str | bytes] = {
        TARGET: module(""),
        "rtl/table.bin": compiled["rtl/table.bin"],
        "rtl/ready.sim": compiled["rtl/t.vvp"].replace(b':vpi_module "', line, 1),
    }
    return arbiter(shell("vvp /code/rtl/ready.sim; test -e stolen.txt")), files


@pytest.mark.parametrize("blank", SPELLINGS, ids=ascii)
async def test_a_ready_made_simulation_loads_code_only_without_the_wall(
    compiled: Mapping[str, bytes], shared_provider: SandboxProvider, scorer: Scorer, blank: str
) -> None:
    """However the line is spelled, and whatever the file with the code is called."""
    async with Scorer(shared_provider, defences=Defences(simulation=False)) as undefended:
        assert (await undefended.score(*ready_made(compiled, blank))).passed
    score = await scorer.score(*ready_made(compiled, blank))
    assert not score.passed
    assert re.match(r"/code/rtl/ready.sim: (loads '/code/rtl/table.bin'|.*:vpi_module)", score.violations[0])
