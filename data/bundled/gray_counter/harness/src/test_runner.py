import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.environ["VERILOG_SOURCES"].split()
sim = os.getenv("SIM", "icarus")
toplevel = os.environ["TOPLEVEL"]
module = os.environ["MODULE"]


@pytest.mark.parametrize("width", [None, 3, 9])
def test_width(width):
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=toplevel,
        parameters={} if width is None else {"WIDTH": width},
        always=True,
        clean=True,
        timescale=("1ns", "1ps"),
        log_file="build.log",
    )
    runner.test(hdl_toplevel=toplevel, test_module=module, extra_env={"GRAY_WIDTH": str(width or 4)})
