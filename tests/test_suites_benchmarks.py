"""``benchmarks/suites.py`` and ``benchmarks/thieves.py``: designs without a sandbox, notes, and exit codes."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyslang
import pytest

from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.notes import TESTBENCH, Note, read_notes, write_notes
from rtl_agent_gym.scoring import Score
from tests.arbiter import ARBITER
from tests.sources.suites.designs import ADDER, MAJORITY, sample


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    return import_module("suites")


@pytest.fixture(scope="module")
def thieves() -> ModuleType:
    return import_module("thieves")


@pytest.mark.parametrize(
    ("passing", "options", "code"),
    [({"force"}, [], 1), ({"nothing", "force"}, [], 0), ({"force"}, ["--undefended"], 0), (set(), [], 0)],
)
def test_a_stolen_score_is_a_failure(
    passing: set[str], options: list[str], code: int, thieves: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that an honest constant earns too, nor one without the defence."""

    async def score(scorer: object, problem: object, found: object, kind: str) -> SimpleNamespace:
        return SimpleNamespace(passed=kind in passing, reason="wrong")

    without = {"make_provider": contextlib.nullcontext, "Scorer": lambda *_, **__: contextlib.nullcontext()}
    problems = load_problems("bundled", ids=[ARBITER])
    for name, value in {**without, "score": score, "load_problems": lambda _: problems}.items():
        monkeypatch.setattr(thieves, name, value)
    monkeypatch.setattr(sys, "argv", ["thieves.py", "verilog-eval:some", "--kinds", "force", *options])
    assert thieves.main() == code


@pytest.mark.parametrize("name", ["thieves", "suites"])
def test_nothing_that_can_be_graded_is_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = import_module(name)
    problems = [problem.model_copy(update={"golden": None}) for problem in load_problems("bundled", ids=[ARBITER])]
    monkeypatch.setattr(benchmark, "load_problems", lambda _: problems)
    monkeypatch.setattr(benchmark, "Scorer", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "verilog-eval:some"])
    assert benchmark.main() == 2
    assert capsys.readouterr().err.startswith("error: verilog-eval:some: no problem has a reference")


def test_notes_of_problems_that_were_not_run_are_kept(
    suites: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = [
        Note(id=id_, digest=id_, release=release, right="unknown", how="nothing was run")
        for id_, release in (("a", "rtllm"), ("a", "verilog-eval"), ("b", "rtllm"))
    ]
    now = notes[0].model_copy(update={"right": "passes", "how": "the reference passes"})

    async def run(sources: list[str]) -> list[Note]:
        return [now]

    monkeypatch.setattr(suites, "run", run)
    monkeypatch.setattr(suites, "SUITE_NOTES", tmp_path / "notes.json")
    write_notes(tmp_path / "notes.json", notes)
    monkeypatch.setattr(sys, "argv", ["suites.py", "rtllm:some", "--write"])
    assert suites.main() == 0
    assert read_notes(tmp_path / "notes.json") == [now, *notes[1:]]


class Lenient:
    """A scorer that passes the reference, and constant outputs of which all bits are one of these."""

    def __init__(self, bits: str, constants_compile: bool = True) -> None:
        self.bits, self.constants_compile = bits, constants_compile

    async def score(self, problem: Problem, files: Mapping[str, str]) -> Score:
        if files == problem.golden:
            return Score(passed=True, compile=1.0)
        if not self.constants_compile:
            return Score(passed=False, reason="a parameter is missing")
        [text] = files.values()
        return Score(passed=set(re.findall(r"assign \w+ = '(\w);", text)) <= set(self.bits), compile=1.0)


@pytest.mark.parametrize(
    ("id_", "bits", "rating", "told"),
    [
        (MAJORITY, "", "sound", []),
        (MAJORITY, "1", "weak", ["outputs of which all bits are always 1"]),
        (MAJORITY, "01x", "weak", ["outputs of which all bits are always 0 or always 1 or always X"]),
        ("Prob001_zero", "0", "sound", []),
        ("Prob002_m2014_q4i", "0", "sound", []),
        ("Prob003_step_one", "1", "sound", []),
        ("Prob003_step_one", "01x", "weak", ["outputs of which all bits are always 0 or always X"]),
    ],
)
async def test_a_testbench_is_weak_if_a_constant_passes_that_the_task_does_not_ask_for(
    id_: str, bits: str, rating: str, told: list[str], suites: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = sample(MAJORITY).model_copy(update={"id": id_})
    note = await suites.measure(problem, "verilog-eval", Lenient(bits))
    assert (note.rating, [statement.text for statement in note.statements]) == (rating, told)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("plain", [True, False])
async def test_a_constant_that_cannot_be_tried_is_told(
    plain: bool, suites: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not plain:
        monkeypatch.setattr(suites, "ports_of", lambda _: ())
    note = await suites.measure(sample(MAJORITY), "verilog-eval", Lenient("01x", constants_compile=False))
    why = "a parameter is missing" if plain else "the reference has no plain ports"
    assert capsys.readouterr().err == f"{MAJORITY}: constant outputs were not measured: {why}\n"
    assert note.rating == "sound"


@pytest.mark.parametrize(
    "instance",
    ["#(.WIDTH(8), .STEPS($clog2(16))) uut (", "#(\n  .WIDTH(W),\n  .STEPS(W)  // )\n  )\n  uut ("],
    ids=["one line", "several lines"],
)
@pytest.mark.parametrize("kind", ["nothing", "force"])
def test_a_thief_has_the_parameters_that_the_testbench_sets(instance: str, kind: str, thieves: ModuleType) -> None:
    adder = sample(ADDER)
    testbench = adder.harness[TESTBENCH].replace("adder_clamp uut (", f"parameter W = 8;\n  adder_clamp {instance}")
    problem = adder.model_copy(update={"harness": {**adder.harness, TESTBENCH: testbench}})
    design = thieves.thief(problem, thieves.ports_of(problem), kind, output="0")
    compilation = pyslang.ast.Compilation()
    compilation.addSyntaxTree(pyslang.syntax.SyntaxTree.fromText(f"{testbench}\n{design}"))
    assert testbench != adder.harness[TESTBENCH]
    found = [(str(diagnostic.code), diagnostic.isError()) for diagnostic in compilation.getAllDiagnostics()]
    # A parameter that a module lacks is an error in Icarus, and a warning here.
    assert [code for code, is_error in found if is_error or "ParameterDoesNotExist" in code] == []
