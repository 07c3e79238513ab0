import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.getenv("VERILOG_SOURCES").split()
sim = os.getenv("SIM", "icarus")
toplevel = os.getenv("TOPLEVEL")
module = os.getenv("MODULE")


def run_simulation(width):
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=toplevel,
        parameters={} if width is None else {"WIDTH": width},
        always=True,
        clean=True,
        verbose=True,
        timescale=("1ns", "1ns"),
        log_file="build.log",
    )
    runner.test(hdl_toplevel=toplevel, test_module=module, extra_env={"PWM_WIDTH": str(width or 8)})


@pytest.mark.parametrize("width", [None, 1, 4, 11])
def test_width(width):
    run_simulation(width)
