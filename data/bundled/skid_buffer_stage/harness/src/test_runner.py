import json
import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.getenv("VERILOG_SOURCES").split()
sim = os.getenv("SIM", "icarus")
toplevel = os.getenv("TOPLEVEL")
module = os.getenv("MODULE")


def simulate(top, parameters):
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=top,
        parameters=parameters,
        always=True,
        clean=True,
        verbose=True,
        timescale=("1ns", "1ps"),
        log_file="build.log",
    )
    runner.test(hdl_toplevel=top, test_module=module, extra_env={"DUT_PARAMETERS": json.dumps(parameters)})


@pytest.mark.parametrize("width", [8, 1])
def test_stage(width):
    simulate("pipe_stage", {"WIDTH": width})


@pytest.mark.parametrize(("width", "depth"), [(8, 1), (12, 4)])
def test_chain(width, depth):
    simulate(toplevel, {"WIDTH": width, "DEPTH": depth})
