import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.environ["VERILOG_SOURCES"].split()
sim = os.getenv("SIM", "icarus")
toplevel = os.environ["TOPLEVEL"]
module = os.environ["MODULE"]

SWEEP = [{}, {"STABLE_CYCLES": 1, "MODULUS": 3}, {"STABLE_CYCLES": 6, "MODULUS": 16}]


@pytest.mark.parametrize("parameters", SWEEP)
def test_button_counter(parameters):
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
    settings = {"STABLE_CYCLES": 4, "MODULUS": 10, **parameters}
    environment = {f"BUTTON_{name}": str(value) for name, value in settings.items()}
    runner.test(hdl_toplevel=toplevel, test_module=module, extra_env=environment)
