import os
import shutil

from cocotb_tools.runner import get_runner

sim = os.getenv("SIM", "icarus")
toplevel = os.environ["TOPLEVEL"]
module = os.environ["MODULE"]

# Given modules are compiled as they are beside this file, whatever became of the agent's. They are copied, as a source
# that is hidden would count as a testbench.
verilog_sources = []
for path in os.environ["VERILOG_SOURCES"].split():
    own = os.path.join(os.path.dirname(__file__), os.path.basename(path))
    verilog_sources.append(shutil.copy(own, ".") if os.path.exists(own) else path)


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
