import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.environ["VERILOG_SOURCES"].split()
sim = os.getenv("SIM", "icarus")
toplevel = os.environ["TOPLEVEL"]
module = os.environ["MODULE"]

DEFAULTS = {"DATA_WIDTH": 8, "DEPTH": 16, "ALMOST_FULL": None, "ALMOST_EMPTY": 2}
SWEEP = [
    {},
    {"DATA_WIDTH": 13, "DEPTH": 5, "ALMOST_FULL": 4, "ALMOST_EMPTY": 1},
    {"DATA_WIDTH": 32, "DEPTH": 2, "ALMOST_FULL": 1, "ALMOST_EMPTY": 0},
    {"DATA_WIDTH": 4, "DEPTH": 20},
]


@pytest.mark.parametrize("parameters", SWEEP, ids=lambda chosen: f"depth{chosen.get('DEPTH', 'default')}")
def test_sync_fifo(parameters):
    expected = {**DEFAULTS, **parameters}
    if expected["ALMOST_FULL"] is None:
        expected["ALMOST_FULL"] = expected["DEPTH"] - 2
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=toplevel,
        parameters=parameters,
        always=True,
        clean=True,
        timescale=("1ns", "1ps"),
        log_file="build.log",
    )
    runner.test(
        hdl_toplevel=toplevel,
        test_module=module,
        extra_env={f"FIFO_{name}": str(value) for name, value in expected.items()},
    )
