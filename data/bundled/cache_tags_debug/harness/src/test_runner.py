import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.getenv("VERILOG_SOURCES").split()
sim = os.getenv("SIM", "icarus")
toplevel = os.getenv("TOPLEVEL")
module = os.getenv("MODULE")


@pytest.mark.parametrize(("sets", "tag_w"), [(8, 10), (2, 5), (16, 3)])
def test_cache_tags(sets, tag_w):
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=toplevel,
        parameters={"SETS": sets, "TAG_W": tag_w},
        always=True,
        clean=True,
        verbose=True,
        timescale=("1ns", "1ps"),
        log_file="build.log",
    )
    runner.test(hdl_toplevel=toplevel, test_module=module, extra_env={"SETS": str(sets), "TAG_W": str(tag_w)})
