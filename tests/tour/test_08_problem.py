"""A new problem: a prompt, targets, and a harness of your own. docs/howto/problems.md has one as a row of a file."""

from __future__ import annotations

import pytest

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.scoring import Scorer

COMPOSE = """\
services:
  direct:
    image: __OSS_SIM_IMAGE__
    volumes: ["./src/:/src/:ro"]
    working_dir: /code/rundir
    env_file: ./src/.env
    command: pytest -s -o cache_dir=/code/rundir/.cache /src/test_runner.py -v
"""
RUNNER = """\
from cocotb_tools.runner import get_runner

def test_inverter():
    runner = get_runner("icarus")
    runner.build(sources=["/code/rtl/inverter.sv"], hdl_toplevel="inverter", always=True, clean=True)
    runner.test(hdl_toplevel="inverter", test_module="test_inverter")
"""
TESTS = """\
import cocotb
from cocotb.triggers import Timer

@cocotb.test()
async def inverts(dut):
    for value in (0, 1):
        dut.a.value = value
        await Timer(1, "step")
        assert int(dut.y.value) == 1 - value
"""
ENV = """\
SIM = icarus
VERILOG_SOURCES = /code/rtl/inverter.sv
TOPLEVEL = inverter
MODULE = test_inverter
PYTHONPATH = /src
"""
INVERTER = Problem(
    id="mine_inverter_0001",
    category=3,
    difficulty="easy",
    prompt="Write the module `inverter` with the input `a` and the output `y`, its inverse, in `rtl/inverter.sv`.",
    targets=("rtl/inverter.sv",),
    harness={
        "docker-compose.yml": COMPOSE,
        "src/.env": ENV,
        "src/test_runner.py": RUNNER,
        "src/test_inverter.py": TESTS,
    },
)


@pytest.mark.docker
async def test_a_new_problem() -> None:
    async with Scorer() as scorer:
        right, wrong = [
            await scorer.score(INVERTER, {"rtl/inverter.sv": f"module inverter(input a, output y); {body} endmodule"})
            for body in ("assign y = ~a;", "assign y = a;")
        ]
    assert (right.passed, wrong.passed) == (True, False)
