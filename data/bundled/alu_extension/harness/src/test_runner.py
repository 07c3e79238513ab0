import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.getenv("VERILOG_SOURCES").split()
sim = os.getenv("SIM", "icarus")
toplevel = os.getenv("TOPLEVEL")
module = os.getenv("MODULE")


@pytest.mark.parametrize("width", [8, 4, 32])
@pytest.mark.parametrize("seed", [11])
def test_alu(width, seed):
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=toplevel,
        parameters={"WIDTH": width},
        always=True,
        clean=True,
        verbose=True,
        timescale=("1ns", "1ps"),
        log_file="build.log",
    )
    runner.test(
        hdl_toplevel=toplevel,
        test_module=module,
        extra_env={"ALU_WIDTH": str(width), "ALU_SEED": str(seed)},
    )
