"""What the attacks are made of: a problem to rob, variants of its harness, and the form of an attack.

The thief's module computes nothing, so whatever reward for tests an attack gets was stolen, except for `WIDTHS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.scoring.harness import Defences

TARGET = "rtl/fixed_priority_arbiter.sv"
HEADER = """\
module fixed_priority_arbiter #(parameter STEAL = 0) (
    input logic clk, reset, input logic [7:0] req, priority_override,
    output logic [7:0] grant, output logic valid, output logic [2:0] grant_index
);
"""
WIDTHS = 1 / 7
"""Partial credit of the thief's module: it passes the one of the problem's tests that only counts bits of ports."""
RESULTS = "/code/rundir/sim_build/test_fixed_priority_arbiter.result.xml"
FORGED = "<testsuites><testsuite name='all' package='all'><testcase name='a' classname='b'/></testsuite></testsuites>"
THEFT = "/*theft*/"
"""Marks the line that a violation must name."""


def arbiter(*changes: Mapping[str, str]) -> Problem:
    """The bundled problem that is robbed, with files that replace or extend its harness."""
    (problem,) = load_problems("bundled", ids=["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"])
    harness = dict(problem.harness)
    for files in changes:
        harness |= files
    return problem.model_copy(update={"harness": harness})


def module(body: str, before: str = "", after: str = "") -> str:
    """The thief's module with something in it, and around it."""
    return f"{before}{HEADER}{body}\nendmodule\n{after}"


def shell(script: str) -> dict[str, str]:
    """A harness of one service that runs a script; `$` in it is the shell's."""
    command = json.dumps(["/bin/sh", "-ec", script.replace("$", "$$")])
    return {"docker-compose.yml": f"services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: {command}\n"}


COMPILE = f"iverilog -g2012 -s fixed_priority_arbiter -o t.vvp /code/{TARGET}"
LEFT = shell(f"{COMPILE}; vvp t.vvp; test -e stolen.txt")
"""A harness that passes when the design has left a file behind."""
SECRET = "c0ffee"
TOLD = shell(f"{COMPILE}; vvp t.vvp > said; grep -q {SECRET} said") | {
    "src/answer.hex": f"{SECRET}\n",
    "src/answer.txt": f"{SECRET}\n",
}
"""A harness that passes when the design has told what stands in a hidden file."""


@dataclass(frozen=True)
class Attack:
    """One attempt to get a reward for tests that was not earned."""

    name: str
    threat: int
    """Its class: 1 file I/O, 2 files left for the checker, 3 escapes from the simulator, 4 forged text, 5 state carried
    over, 6 exhaustion."""
    files: Mapping[str, str | bytes]
    said: str | None
    """What a violation says, as a regular expression; None where it is harmless and honest designs do it too."""
    walls: tuple[str, ...] = ()
    """The defences in its way: with them down it must succeed. Empty for attacks that never worked."""
    harness: Mapping[str, str] = field(default_factory=dict)
    """Files that replace or extend the problem's harness."""
    seconds: float = 60.0
    """The time limit of the grading."""
    slow: bool = False
    quick: bool = False
    """Whether it is graded by default, whatever its number in its class."""

    @property
    def problem(self) -> Problem:
        """The problem with this attack's harness."""
        return arbiter(self.harness)

    @property
    def undefended(self) -> Defences:
        """All defences but those in its way."""
        return Defences(**dict.fromkeys(self.walls, False))

    @property
    def place(self) -> str | None:
        """``file:line`` of the mark, where there is one."""
        for path, content in self.files.items():
            text = content if isinstance(content, str) else content.decode("latin-1")
            for number, line in enumerate(text.split("\n"), 1):
                if THEFT in line:
                    return f"{path}:{number}"
        return None

    def named_in(self, violations: list[str]) -> bool:
        """Whether a violation says what was tried and where."""
        assert self.said is not None
        place = self.place
        return any(re.search(self.said, text) and (not place or text.startswith(f"{place}: ")) for text in violations)
