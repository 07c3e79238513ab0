import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.getenv("VERILOG_SOURCES").split()
sim = os.getenv("SIM", "icarus")
toplevel = os.getenv("TOPLEVEL")
module = os.getenv("MODULE")


@pytest.fixture(scope="module", params=[8, 5], ids=lambda width: f"WIDTH{width}")
def built(request):
    """The simulator's build for one width, shared by the tests below."""
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=toplevel,
        parameters={"WIDTH": request.param},
        build_dir=f"sim_build_{request.param}",
        always=True,
        clean=True,
        verbose=True,
        timescale=("1ns", "1ps"),
        log_file=f"build_{request.param}.log",
    )
    return runner, request.param


@pytest.mark.parametrize("group", ["waveforms", "disturbances"])
def test_spi_master(built, group):
    runner, width = built
    runner.test(
        hdl_toplevel=toplevel,
        test_module=module,
        build_dir=f"sim_build_{width}",
        test_filter=rf"{group}_.*",
        extra_env={"SPI_WIDTH": str(width)},
    )
