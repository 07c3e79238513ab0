"""Other benchmarks' folders as problems: what is read, what is refused, and that the references pass."""

# ruff: noqa: E501 — a case a line
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import pytest

import rtl_agent_gym  # noqa: F401
from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, load_problems, scan_problems, validate_problem
from rtl_agent_gym.problems.writing import problem_row
from rtl_agent_gym.scoring.scorable import why_unscorable
from tests.cli.in_process import call

from .designs import ADDER, COUNTER, MAJORITY, RTLLM, SAMPLES, STEPS, TABLE, VERILOG_EVAL, sample


def test_verilog_eval_is_read_from_its_folder() -> None:
    problems = load_problems(VERILOG_EVAL)
    assert [problem.id for problem in problems] == [MAJORITY, COUNTER]
    for problem in problems:
        assert problem.targets == ("rtl/TopModule.sv",)
        assert problem.context == {}
        golden = (problem.golden or {})["rtl/TopModule.sv"]
        assert "module TopModule" in golden
        assert "RefModule" not in golden
    assert "at least two of the three inputs" in problems[0].prompt
    assert "`rtl/TopModule.sv`" in problems[0].prompt


def test_rtllm_is_read_at_any_depth_and_without_the_models_designs() -> None:
    problems = {problem.id: problem for problem in load_problems(RTLLM)}
    assert list(problems) == [ADDER, STEPS, TABLE]
    assert problems[ADDER].targets == ("rtl/adder_clamp.v",)
    golden = (problems[ADDER].golden or {})["rtl/adder_clamp.v"]
    assert "module adder_clamp(" in golden
    assert "module half_sum(" in golden
    assert "module step_counter(" in (problems[STEPS].golden or {})["rtl/step_counter.v"]
    judge = json.loads(problems[TABLE].harness["src/judge.json"])
    assert judge["data"] == ["order.txt", "squares.dat"]
    assert judge["top"] == "square_table_tb"


@pytest.mark.parametrize("problem_id", [MAJORITY, COUNTER, ADDER, STEPS, TABLE])
def test_the_problems_are_valid_and_tell_nothing_hidden(problem_id: str) -> None:
    problem = sample(problem_id)
    assert validate_problem(problem) == []
    assert why_unscorable(problem) is None
    assert problem_row(problem)["harness"] == problem.harness
    hidden = problem.harness["src/testbench.sv"]
    assert not any(line in problem.prompt for line in hidden.splitlines() if len(line) > 20)


def copy_of(folder: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLES / folder, tmp_path / "suite"))


def _swap(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no testbench": ("verilog_eval", lambda at: (at / f"{COUNTER}_test.sv").unlink(), "_test.sv.*cannot be read"),
    "no reference": ("verilog_eval", lambda at: (at / f"{COUNTER}_ref.sv").unlink(), "_ref.sv.*cannot be read"),
    "another reference": ("verilog_eval", lambda at: _swap(at / f"{COUNTER}_ref.sv", "RefModule", "Other"), "expected a module RefModule, got Other"),
    "a silent testbench": ("verilog_eval", lambda at: _swap(at / f"{COUNTER}_test.sv", "$display", "// $display"), "prints nothing"),
    "an odd name": ("verilog_eval", lambda at: (at / f"{COUNTER}_prompt.txt").rename(at / "a b_prompt.txt"), "cannot be read"),
    "no testbench in a folder": ("rtllm", lambda at: (at / "Control/Counter/step_counter/testbench.v").unlink(), "testbench.v.*cannot be read"),
    "two designs": ("rtllm", lambda at: _swap(at / "Control/Counter/step_counter/testbench.v", "initial begin", "other more(clk);\n\tinitial begin"), "expected one module from outside, the design, got step_counter, other"),
    "two testbenches": ("rtllm", lambda at: _swap(at / "Control/Counter/step_counter/testbench.v", "endmodule", "endmodule\nmodule tb2;\nendmodule\n"), "got testbench, tb2"),
    "two references": ("rtllm", lambda at: _swap(at / "Control/Counter/step_counter/verified_step_counter.v", "endmodule", "endmodule\nmodule b;\nendmodule\n"), "expected the module step_counter, or one that no other uses, got verified_counter, b"),
}  # fmt: skip
"""A sample's folder, what is done to it, and what the error says."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_problem_is_one_clear_error(name: str, tmp_path: Path) -> None:
    folder, spoil, said = FAULTS[name]
    path = copy_of(folder, tmp_path)
    spoil(path)
    prefix = "rtllm" if folder == "rtllm" else "verilog-eval"
    found = list(scan_problems(f"{prefix}:{path}"))
    errors = [item for item in found if isinstance(item, ProblemError)]
    assert len(errors) == 1
    assert len(found) > 1, "the other problems are still read"
    with pytest.raises(ProblemError, match=said):
        raise errors[0]
    assert str(path) in str(errors[0])


@pytest.mark.parametrize("prefix", ["verilog-eval", "rtllm"])
def test_a_folder_without_problems_is_an_error(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder '/nowhere'; give .*FOLDER"):
        load_problems(f"{prefix}:/nowhere")
    with pytest.raises(UsageError, match="holds none of the benchmark's problems; expected"):
        load_problems(f"{prefix}:{tmp_path}")


def test_a_folder_twice_is_an_error(tmp_path: Path) -> None:
    path = copy_of("rtllm", tmp_path)
    shutil.copytree(path / "Control", path / "More")
    with pytest.raises(ProblemError, match="the id is repeated"):
        load_problems(f"rtllm:{path}")


def test_a_reference_is_not_needed_in_rtllm(tmp_path: Path) -> None:
    path = copy_of("rtllm", tmp_path) / "Memory"
    (path / "Table/square_table/verified_square_table.v").unlink()
    (problem,) = load_problems(f"rtllm:{path}")
    assert problem.golden is None
    assert validate_problem(problem) == []


@pytest.mark.docker
def test_the_references_pass_in_a_shell(tmp_path: Path) -> None:
    options = ["--problems", VERILOG_EVAL, "--problem", COUNTER, "--out", str(tmp_path / "out"), "--json"]
    done = call("eval", "--policy", "golden", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["episodes"], found["passed"], found["faults"]) == (1, 1, 0)


def _answer(problem: Problem) -> str:
    return "\n".join(f"```systemverilog {path}\n{text}```\n" for path, text in (problem.golden or {}).items())


@pytest.mark.docker
@pytest.mark.parametrize(
    "problem_id",
    # The others show the same for other testbenches.
    [TABLE, *(pytest.param(name, marks=pytest.mark.slow) for name in (MAJORITY, COUNTER, ADDER, STEPS))],
)
def test_the_references_pass_in_one_turn(problem_id: str) -> None:
    env = gym.make("CVDPSingleTurn-v0", problems=[sample(problem_id)])
    prompt, _ = env.reset(seed=0)
    assert sample(problem_id).prompt.strip() in prompt
    _, reward, terminated, _, info = env.step(_answer(sample(problem_id)))
    env.close()
    assert terminated
    assert info["score"]["passed"], info["score"]["reason"]
    assert reward == pytest.approx(1.4)
