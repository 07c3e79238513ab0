"""VerilogEval v2: a folder with ``NAME_prompt.txt``, ``NAME_ref.sv`` and ``NAME_test.sv`` for each problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.registry import Located
from rtl_agent_gym.sources.suites.common import (
    module_names,
    open_folder,
    read_each,
    read_task,
    read_text,
    rename,
    testbench_problem,
)

PREFIX = "verilog-eval:"
"""What such a source begins with."""
TOP, REFERENCE = "TopModule", "RefModule"
TARGET = f"rtl/{TOP}.sv"
_HOLDS = "a folder of VerilogEval v2 with files such as Prob001_zero_prompt.txt (dataset_spec-to-rtl)"
_PROMPT = "_prompt.txt"


def read_source(source: str) -> Iterator[Located]:
    """The problems of ``verilog-eval:FOLDER``, sorted by name.

    Raises:
        UsageError: There is no such folder, or it holds no problem.
    """
    path = open_folder(source, PREFIX, _HOLDS)
    yield from read_each(sorted(path.glob(f"*{_PROMPT}")), _read, source, path, _HOLDS)


def _read(prompt: Path) -> Problem:
    name = prompt.name.removesuffix(_PROMPT)
    testbench = read_text(prompt.with_name(f"{name}_test.sv"), name)
    reference = read_text(prompt.with_name(f"{name}_ref.sv"), name)
    for kind, text, expected in (("_test.sv", testbench, "tb"), ("_ref.sv", reference, REFERENCE)):
        if expected not in module_names(text):
            raise ProblemError(
                f"expected a module {expected}, got {', '.join(module_names(text)) or 'none'}",
                source=str(prompt.with_name(name + kind)),
                problem_id=name,
            )
    interface = prompt.with_name(f"{name}_ifc.txt")
    task = read_task(prompt, name)
    if interface.is_file() and f"module {TOP}" not in task:
        task = f"{task.strip()}\n\n{read_text(interface, name).strip()}"
    return testbench_problem(
        name,
        prompt=task,
        top=TOP,
        target=TARGET,
        testbench=testbench,
        testbench_top="tb",
        verdict="mismatches",
        hidden={"reference.sv": reference},
        golden=rename(reference, REFERENCE, TOP),
        data={},
    )
