"""Other benchmarks' folders as problems: what is read, what is refused, and that the references pass."""

# ruff: noqa: E501 — a case a line
from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import pytest

import rtl_agent_gym  # noqa: F401
from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, load_problems, scan_problems, validate_problem
from rtl_agent_gym.problems.rows import problem_row
from rtl_agent_gym.scoring.scorer import why_unscorable
from rtl_agent_gym.sources.suites.testbenches import LARGEST_FILE
from tests.cli.in_process import call

from .designs import ADDER, COUNTER, MAJORITY, ONES, RTLLM, SAMPLES, STEPS, TABLE, VERILOG_EVAL, sample


def test_verilog_eval_is_read_from_its_folder() -> None:
    problems = load_problems(VERILOG_EVAL)
    assert [problem.id for problem in problems] == [MAJORITY, COUNTER, ONES]
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


@pytest.mark.parametrize("problem_id", [MAJORITY, COUNTER, ONES, ADDER, STEPS, TABLE])
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


def _link(path: Path, to: Path) -> None:
    path.unlink()
    path.symlink_to(to)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no testbench": ("verilog_eval", lambda at: (at / f"{COUNTER}_test.sv").unlink(), "_test.sv.*cannot be read"),
    "no reference": ("verilog_eval", lambda at: (at / f"{COUNTER}_ref.sv").unlink(), "_ref.sv.*cannot be read"),
    "another reference": ("verilog_eval", lambda at: _swap(at / f"{COUNTER}_ref.sv", "RefModule", "Other"), "expected a module RefModule, got Other"),
    "a silent testbench": ("verilog_eval", lambda at: _swap(at / f"{COUNTER}_test.sv", "$display", "// $display"), "prints nothing"),
    "an odd name": ("verilog_eval", lambda at: (at / f"{COUNTER}_prompt.txt").rename(at / "a b_prompt.txt"), "cannot be read"),
    "no testbench in a folder": ("rtllm", lambda at: (at / "Control/Counter/step_counter/testbench.v").unlink(), "testbench.v.*cannot be read"),
    "an empty task": ("verilog_eval", lambda at: (at / f"{COUNTER}_prompt.txt").write_text(" \n"), "_prompt.txt.*is empty; expected the task's text"),
    "a testbench in UTF-16": ("verilog_eval", lambda at: (at / f"{COUNTER}_test.sv").write_text("module tb; endmodule\n", encoding="utf-16"), "_test.sv.*contains a zero byte, as binary data and UTF-16 do"),
    "a huge reference": ("verilog_eval", lambda at: os.truncate(at / f"{COUNTER}_ref.sv", LARGEST_FILE + 1), "_ref.sv.*more than 4 MiB"),
    "a link to nothing": ("verilog_eval", lambda at: _link(at / f"{COUNTER}_ref.sv", at / "nowhere"), "_ref.sv.*cannot be read: No such file"),
    "a link to itself": ("verilog_eval", lambda at: _link(at / f"{COUNTER}_ref.sv", at / f"{COUNTER}_ref.sv"), "_ref.sv.*cannot be read"),
    "a pipe": ("rtllm", lambda at: _pipe(at / "Control/Counter/step_counter/testbench.v"), "testbench.v.*expected a regular file"),
    "a folder for a file": ("rtllm", lambda at: _folder(at / "Control/Counter/step_counter/testbench.v"), "testbench.v.*expected a regular file"),
    "an empty description": ("rtllm", lambda at: os.truncate(at / "Control/Counter/step_counter/design_description.txt", 0), "design_description.txt.*is empty"),
    "an empty testbench": ("rtllm", lambda at: os.truncate(at / "Control/Counter/step_counter/testbench.v", 0), "expected one module that no other uses, got none"),
    "a folder's name that is no text": ("rtllm", lambda at: (at / "Control/Counter/step_counter").rename(at / os.fsdecode(b"Control/Counter/\xff")), "is not an id"),
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


def test_a_name_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    path = copy_of("rtllm", tmp_path)
    (path / "Control/Counter/step_counter").rename(path / os.fsdecode(b"Control/Counter/\xff"))
    done = call("problems", "validate", f"--problems=rtllm:{path}")
    assert done.returncode == 1, done.stderr
    assert "is not an id" in done.stdout


def test_line_ends_and_byte_order_marks_of_windows_change_nothing(tmp_path: Path) -> None:
    for folder, prefix, source in (("verilog_eval", "verilog-eval", VERILOG_EVAL), ("rtllm", "rtllm", RTLLM)):
        path = Path(shutil.copytree(SAMPLES / folder, tmp_path / folder))
        for file in path.rglob("*.*"):
            if file.is_file():
                file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
        found, plain = load_problems(f"{prefix}:{path}"), load_problems(source)
        assert [(one.id, one.targets, sorted(one.harness)) for one in found] == [
            (one.id, one.targets, sorted(one.harness)) for one in plain
        ]
        for one, other in zip(found, plain, strict=True):
            assert one.harness["src/judge.json"] == other.harness["src/judge.json"]
            assert one.golden is not None
            assert {name: text.replace("\r\n", "\n") for name, text in one.golden.items()} == other.golden


def test_other_encodings_are_read(tmp_path: Path) -> None:
    path = copy_of("verilog_eval", tmp_path)
    prompt = path / f"{COUNTER}_prompt.txt"
    prompt.write_bytes("Der Zähler zählt.\n".encode("latin-1"))
    assert "Der Zähler zählt." in load_problems(f"verilog-eval:{path}", ids=COUNTER)[0].prompt


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    """A subset of the benchmark may be a folder of links; one may lead to a folder above it."""
    subset = tmp_path / "subset"
    subset.mkdir()
    counter = SAMPLES / "rtllm/Control/Counter/step_counter"
    (subset / "counter").symlink_to(counter)
    (subset / "again").symlink_to(counter)
    (subset / "above").symlink_to(tmp_path)
    assert [problem.id for problem in load_problems(f"rtllm:{subset}")] == [STEPS]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any folder")
def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = copy_of("rtllm", tmp_path)
    (path / "Control").chmod(0)
    try:
        with pytest.raises(UsageError, match=r"/Control: .*Permission denied"):
            load_problems(f"rtllm:{path}")
    finally:
        (path / "Control").chmod(0o755)


def test_waveforms_of_an_earlier_simulation_are_left_out(tmp_path: Path) -> None:
    path = copy_of("rtllm", tmp_path)
    folder = path / "Memory/Table/square_table"
    _swap(folder / "testbench.v", "initial begin", 'initial $dumpfile("wave.fst");\n\tinitial begin')
    (folder / "wave.fst").write_bytes(bytes(LARGEST_FILE + 1))
    [problem] = load_problems(f"rtllm:{path}", ids=TABLE)
    assert json.loads(problem.harness["src/judge.json"])["data"] == ["order.txt", "squares.dat"]


@pytest.mark.parametrize("prefix", ["verilog-eval", "rtllm"])
def test_a_folder_without_problems_is_an_error(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        load_problems(f"{prefix}:{'x' * 5000}")
    with pytest.raises(UsageError, match=r"there is no folder '/nowhere'; give .*FOLDER"):
        load_problems(f"{prefix}:/nowhere")
    with pytest.raises(UsageError, match="contains no problem of the benchmark; expected"):
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
