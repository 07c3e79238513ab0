import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.environ["VERILOG_SOURCES"].split()
sim = os.getenv("SIM", "icarus")
toplevel = os.environ["TOPLEVEL"]
module = os.environ["MODULE"]


def simulate(width, maximum, parameters):
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
    environment = {"COUNTER_WIDTH": str(width), "COUNTER_MAX": str(maximum)}
    runner.test(hdl_toplevel=toplevel, test_module=module, extra_env=environment)


def test_defaults():
    simulate(8, 255, {})


@pytest.mark.parametrize("width", [3, 12])
def test_width_alone(width):
    simulate(width, 2**width - 1, {"WIDTH": width})


@pytest.mark.parametrize(("width", "maximum"), [(4, 9), (6, 1)])
def test_maximum(width, maximum):
    simulate(width, maximum, {"WIDTH": width, "MAX": maximum})
