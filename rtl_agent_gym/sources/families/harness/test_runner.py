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

# The agent reads these folders. A design that reads or includes their files could pass although the agent did not look.
CODE = Path(os.environ["VERILOG_SOURCES"].split()[0]).parents[1]
FOR_AGENTS = (CODE / "docs", CODE / "verif")

# A call of a system task that opens or reads files, in the compiled design: its line and name. No string of a design
# looks like one, since quotation marks in strings are escaped. Printing, $dumpfile and $dumpvars are allowed.
READER = re.compile(
    r"(?:%vpi_(?:call|func)[/a-z]*|\.sfunc(?:/e)?)[ \t]+\d+[ \t]+(\d+)[ \t]+"
    r'"(\$(?:f(?:open|gets|getc|read|scanf|seek|tell|eof|error)|s?readmem|sdf_|rewind|ungetc|ivlh_)[^"\\]*)"'
)

# The compiled design's lines with the ports of the top module, which has no parent, and one of them.
TOP = re.compile(rf'\.scope module[^"\n]*"{toplevel}" "{toplevel}" \d+ \d+;\n(?: +\.(?:timescale|port_info) .*\n)*')
PORT = re.compile(r'\.port_info \d+ /(\w+) +\d+ "(\w+)"')


def ports(compiled):
    """The directions of the design's ports by name, which cocotb cannot tell from signals inside the design."""
    found = TOP.search(compiled)
    return {name: direction for direction, name in PORT.findall(found[0] if found else "")}


def check_files(compiled):
    """A design that opens or reads files is not simulated."""
    calls = dict.fromkeys(f"{task} in line {line}" for line, task in READER.findall(compiled))
    assert not calls, f"a design must not open or read files; leave out {', '.join(calls)}"


def test_design():
    for folder in FOR_AGENTS:
        shutil.rmtree(folder, ignore_errors=True)  # a mount point is emptied, but remains
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
    compiled = (runner.build_dir / "sim.vvp").read_text(encoding="utf-8", errors="replace")
    check_files(compiled)
    case = Path(__file__).with_name("case.json").read_text(encoding="utf-8")
    asked = json.loads(case)["names"].values()  # an environment holds only so many
    found = ports(compiled)
    directions = json.dumps({name: found[name] for name in asked if name in found})
    runner.test(hdl_toplevel=toplevel, test_module=module, extra_env={"PORTS": directions})
