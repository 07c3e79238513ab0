"""A small problem of these tests' own, and scorers."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider, resolved_kind
from rtl_agent_gym.scoring import RewardWeights, Scorer

ROWS = "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
EXAMPLES = "cvdp_v1.1.0_example_nonagentic_code_generation_no_commercial.jsonl"

TARGET = "rtl/adder.sv"

GOLDEN = """\
module adder (input logic clk, input logic [7:0] a, input logic [7:0] b, output logic [8:0] sum);
    always_ff @(posedge clk) sum <= a + b;
endmodule
"""

HEADER = "module adder (input logic clk, input logic [7:0] a, input logic [7:0] b, output logic [8:0] sum);\n"
"""The golden's header; attacks and wrong designs go on from here."""

EMPTY = HEADER + "endmodule\n"

ENV = """\
SIM             = icarus
TOPLEVEL_LANG   = verilog
VERILOG_SOURCES = /code/rtl/adder.sv
TOPLEVEL        = adder
MODULE          = test_adder
PYTHONPATH      = /src
"""

VERILATOR = {"src/.env": ENV.replace("icarus", "verilator")}
"""The harness's file with which it runs Verilator."""

RUNNER = """\
import os
from cocotb_tools.runner import get_runner

def test_adder():
    runner = get_runner(os.getenv("SIM"))
    runner.build(
        sources=os.getenv("VERILOG_SOURCES").split(),
        hdl_toplevel=os.getenv("TOPLEVEL"),
        always=True,
        clean=True,
        timescale=("1ns", "1ns"),
        log_file="build.log",
    )
    runner.test(hdl_toplevel=os.getenv("TOPLEVEL"), test_module=os.getenv("MODULE"))
"""

TESTS = """\
import random

import cocotb
from cocotb.triggers import Timer


async def add(dut, a, b):
    dut.clk.value, dut.a.value, dut.b.value = 0, a, b
    await Timer(5, unit="ns")
    dut.clk.value = 1
    await Timer(5, unit="ns")
    return dut.sum.value


@cocotb.test()
async def test_small(dut):
    assert await add(dut, 1, 2) == 3


@cocotb.test()
async def test_carry(dut):
    assert await add(dut, 255, 255) == 510


@cocotb.test()
async def test_random(dut):
    for _ in range(20):
        a, b = random.randrange(256), random.randrange(256)
        assert await add(dut, a, b) == a + b
"""

COMPOSE = """\
services:
  direct:
    image: __OSS_SIM_IMAGE__
    volumes:
      - ./src/:/src/:ro
    working_dir : /code/rundir
    env_file    : ./src/.env
    command     : pytest -s -o cache_dir=/code/rundir/.cache /src/test_runner.py -v
"""


def inside(body: str, design: str = EMPTY) -> str:
    """A design with something more in its module."""
    return design.replace("endmodule", f"{body}\nendmodule")


def make_problem(**changes: Any) -> Problem:
    """The adder's problem; `harness` adds to or replaces files of its harness, the rest replaces fields."""
    harness = {
        "docker-compose.yml": COMPOSE,
        "src/.env": ENV,
        "src/test_runner.py": RUNNER,
        "src/test_adder.py": TESTS,
    }
    harness |= changes.pop("harness", {})
    fields: dict[str, Any] = {
        "id": "cvdp_agentic_rtlgym_adder_0001",
        "category": 3,
        "difficulty": "easy",
        "prompt": f"Write a registered adder in {TARGET}:\n\n```systemverilog\n{HEADER}```\n",
        "targets": (TARGET,),
        "harness": {path: text for path, text in harness.items() if text is not None},
        "golden": {TARGET: GOLDEN},
    }
    return Problem(**(fields | changes))


@pytest.fixture
def adder() -> Problem:
    """The adder's problem as it is."""
    return make_problem()


@pytest.fixture(scope="session")
def bundled() -> dict[str, Problem]:
    """The bundled problems by id."""
    return {problem.id: problem for problem in load_problems("bundled")}


@pytest.fixture(scope="session")
def rows(cvdp_data: Path) -> dict[str, Problem]:
    """CVDP's open rows that can be graded here, by id."""
    return {problem.id: problem for file in (ROWS, EXAMPLES) for problem in load_problems(cvdp_data / file)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what shares a module's fixtures in that module's event loop."""
    here, shared = Path(__file__).parent, {"shared_provider", "scorer", "frontend"}
    for item in items:
        if not isinstance(item, pytest.Function) or here not in item.path.parents:
            continue
        if shared & set(item.fixturenames) and inspect.iscoroutinefunction(item.function):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_provider(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    """A maker of real sandboxes for a file's tests.

    Not for tests that are about Docker, or about what a provider has open: they have their own, `provider`. No test can
    use both, as their event loops differ.
    """
    if resolved_kind() == "namespaces":
        request.getfixturevalue("root_folder")
    async with make_provider() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scorer(shared_provider: SandboxProvider) -> AsyncIterator[Scorer]:
    """A scorer without a cache for a file's tests: each grading has a fresh sandbox."""
    async with Scorer(shared_provider) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dense_scorer(shared_provider: SandboxProvider) -> AsyncIterator[Scorer]:
    """The same with partial credit in its rewards."""
    async with Scorer(shared_provider, weights=RewardWeights.preset("dense")) as made:
        yield made
