import os

from cocotb_tools.runner import get_runner

verilog_sources = os.environ["VERILOG_SOURCES"].split()
sim = os.getenv("SIM", "icarus")
toplevel = os.environ["TOPLEVEL"]
module = os.environ["MODULE"]


def test_design():
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=toplevel,
        always=True,
        clean=True,
        verbose=True,
        timescale=("1ns", "1ps"),
        log_file="build.log",
    )
    runner.test(hdl_toplevel=toplevel, test_module=module)
