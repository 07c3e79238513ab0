import json
import os

import pytest
from cocotb_tools.runner import get_runner

verilog_sources = os.getenv("VERILOG_SOURCES").split()
sim = os.getenv("SIM", "icarus")
toplevel = os.getenv("TOPLEVEL")
module = os.getenv("MODULE")

FILTERS = [
    {"N_TAPS": 8, "DATA_W": 12, "COEF_W": 10, "SHIFT": 6, "OUT_W": 12},
    {"N_TAPS": 5, "DATA_W": 8, "COEF_W": 8, "SHIFT": 0, "OUT_W": 8},
    {"N_TAPS": 3, "DATA_W": 24, "COEF_W": 24, "SHIFT": 16, "OUT_W": 24},
    {"N_TAPS": 2, "DATA_W": 6, "COEF_W": 7, "SHIFT": 3, "OUT_W": 11},
]
LINES = [{"DEPTH": 8, "WIDTH": 12}, {"DEPTH": 5, "WIDTH": 7}, {"DEPTH": 2, "WIDTH": 3}]


def name(parameters):
    return "-".join(str(value) for value in parameters.values())


def simulate(parameters):
    runner = get_runner(sim)
    runner.build(
        sources=verilog_sources,
        hdl_toplevel=toplevel,
        parameters={} if parameters in (FILTERS[0], LINES[0]) else parameters,  # these are the defaults
        always=True,
        clean=True,
        verbose=True,
        timescale=("1ns", "1ps"),
        log_file="build.log",
    )
    runner.test(hdl_toplevel=toplevel, test_module=module, extra_env={"DUT_PARAMETERS": json.dumps(parameters)})


@pytest.mark.parametrize("parameters", FILTERS, ids=name)
def test_fir_filter(parameters):
    simulate(parameters)


@pytest.mark.parametrize("parameters", LINES, ids=name)
def test_delay_line(parameters):
    simulate(parameters)
