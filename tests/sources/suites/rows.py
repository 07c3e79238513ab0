"""A row in the layout of NotSoTiny's CVDP files, with a harness that compares designs in Yosys."""

from __future__ import annotations

from typing import Any

from tests.problems.conftest import COMPOSE

CONTEXT = """\
module tt_um_tiny(input clk, input [7:0] ui_in, output [7:0] uo_out);
  wire [3:0] sum;
  tiny_sum s(.a(ui_in[3:0]), .b(ui_in[7:4]), .y(sum));
  reg [3:0] last;
  always @(posedge clk) last <= sum;
  assign uo_out = {last, sum};
endmodule
"""
HOLE = """\
module tiny_sum(a, b, y);
// >>> Module Implementation Begin
// <<< Module Implementation End
endmodule
"""
BODY = "input [3:0] a, b;\noutput [3:0] y;\nassign y = a + b;\n"
TARGET = "rtl/modules.v"

_TESTS = '''\
import subprocess

SCRIPT = """
read_verilog -sv {file}
hierarchy -check -top tt_um_tiny
proc
flatten
opt_clean
design -save {name}
design -reset
"""
COMPARE = """
design -copy-from gold -as gold A:top
design -copy-from gate -as gate A:top
equiv_make gold gate miter
hierarchy -top miter
equiv_simple -undef
equiv_induct -undef
equiv_status
"""


def test_equivalence(tmp_path):
    script = tmp_path / "compare.ys"
    files = [("gold", "/src/golden.v"), ("gate", "/code/rtl/modules.v")]
    script.write_text("".join(SCRIPT.format(name=name, file=file) for name, file in files) + COMPARE)
    said = subprocess.run(["yosys", "-s", str(script)], capture_output=True, text=True).stdout
    assert "Equivalence successfully proven!" in said
'''


def design(body: str, before: str = "") -> str:
    """The whole design with something in the module that was left out."""
    return before + CONTEXT + HOLE.replace("// >>> Module Implementation Begin\n", body)


def row(**harness: str) -> dict[str, Any]:
    """The row; `harness` adds to or replaces files of its harness, by the last part of their names."""
    files = {
        "docker-compose.yml": COMPOSE.replace("test_runner.py", "test_equivalence.py"),
        "src/.env": "PYTHONPATH = /src\n",
        "src/test_equivalence.py": _TESTS,
        "src/golden.v": design(BODY),
    }
    named = {path.rsplit("/", 1)[-1].partition(".")[0]: path for path in files}
    files |= {named[name]: text for name, text in harness.items()}
    return {
        "id": "cvdp_copilot_tt99_tiny_0001",
        "categories": ["cid002", "medium"],
        "input": {"prompt": "Complete the module tiny_sum:\n\n" + CONTEXT + HOLE, "context": {}},
        "output": {"response": "", "context": {TARGET: design(BODY)}},
        "harness": {"files": files},
    }
