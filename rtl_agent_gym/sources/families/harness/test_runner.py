import json
import os
import re
import shutil
from pathlib import Path

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

# The compiled design's lines with the ports of the top module, which has no parent, and one of them.
TOP = re.compile(rf'\.scope module[^"\n]*"{toplevel}" "{toplevel}" \d+ \d+;\n(?: +\.(?:timescale|port_info) .*\n)*')
PORT = re.compile(r'\.port_info \d+ /(\w+) +\d+ "(\w+)"')


def ports(compiled):
    """The directions of the design's ports by name, which cocotb cannot tell from signals inside the design."""
    found = TOP.search(compiled.read_text(encoding="utf-8", errors="replace"))
    return {name: direction for direction, name in PORT.findall(found[0] if found else "")}


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
    case = Path(__file__).with_name("case.json").read_text(encoding="utf-8")
    asked = json.loads(case)["names"].values()  # an environment holds only so many
    found = ports(runner.build_dir / "sim.vvp")
    directions = json.dumps({name: found[name] for name in asked if name in found})
    runner.test(hdl_toplevel=toplevel, test_module=module, extra_env={"PORTS": directions})
