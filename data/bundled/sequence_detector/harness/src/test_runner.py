import os

import pytest
from cocotb_tools.runner import get_runner

SOURCES = os.environ["VERILOG_SOURCES"].split()
SIM = os.getenv("SIM", "icarus")
TOPLEVEL = os.environ["TOPLEVEL"]
MODULE = os.environ["MODULE"]


@pytest.mark.parametrize("cnt_w", [None, 3, 1])
def test_sequence_detector(cnt_w):
    runner = get_runner(SIM)
    runner.build(
        sources=SOURCES,
        hdl_toplevel=TOPLEVEL,
        parameters={} if cnt_w is None else {"CNT_W": cnt_w},
        always=True,
        clean=True,
        timescale=("1ns", "1ps"),
        log_file="build.log",
    )
    runner.test(hdl_toplevel=TOPLEVEL, test_module=MODULE, extra_env={"EXPECTED_CNT_W": str(cnt_w or 8)})
