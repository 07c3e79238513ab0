"""Measures how much of the right design a testbench reaches, by Verilator's coverage.

The bench is not run again. Its run with the right design recorded the inputs, and these are played to the same design,
built by Verilator from hidden files alone.
"""

import os
import re
import resource
import subprocess
import tempfile
from pathlib import Path

VERILATOR, ROOT = "verilator_bin", "/usr/share/verilator"
"""The program behind ``verilator``, which a guard replaces in front of submitted files; here is none."""
BUILD = [
    *("--cc", "--exe", "--build", "-j", "1", "-O0", "--no-timing", "--top-module", "player"),
    *("-Wno-fatal", "-Wno-lint", "-Wno-style", "--coverage-line", "--coverage-toggle"),
    *("-CFLAGS", "-O0", "-MAKEFLAGS", "OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0"),
]
SECONDS = 120
"""Processor time of the build, and of playing the inputs."""

POINT = re.compile(r"^C '(.*)' (\d+)$", re.MULTILINE)
PAGE = re.compile("\x01page\x02v_(line|branch|toggle)/")

MAIN = r"""
#include "Vplayer.h"
#include "verilated.h"
#include "verilated_cov.h"
#include <iostream>
#include <string>
int main() {
    Vplayer top;
    for (std::string bits; std::getline(std::cin, bits);) {
        for (size_t word = 0; word * 32 < bits.size(); ++word) {
            IData value = 0;
            for (size_t bit = word * 32; bit < bits.size() && bit < word * 32 + 32; ++bit)
                value |= IData{bits[bits.size() - 1 - bit] == '1'} << (bit - word * 32);
            top.values[word] = value;
        }
        top.eval();
    }
    top.final();
    VerilatedCov::write("coverage.dat");
}
"""


def player(top, settings):
    """A module that takes the values of all inputs as one vector of at least 65 bits, so that it is an array in C++."""
    width = sum(width for _, way, width in settings["ports"] if way == "input")
    connected, high = [], width
    for name, way, bits in settings["ports"]:
        if way == "input":
            high -= bits
        connected.append(f".{name}({f'values[{high} +: {bits}]' if way == 'input' else ''})")
    return (
        f"/* verilator coverage_off */\nmodule player(input wire [{max(width, 65) - 1}:0] values);\n"
        f"{top} played({', '.join(connected)});\nendmodule\n"
    )


def steps(trace, settings):
    """The values of the inputs in the order in which they are played; unknown ones are 0.

    Where other inputs change at an edge of the clock, the edge comes first, as if they were assigned by `<=`.
    """
    names = [name for name, way, _ in settings["ports"] if way == "input"]
    clock, before = names.index(settings["clock"]), None
    for _, values, *_ in trace:
        now = re.sub("[xz]", "0", values.split(b"|")[0].decode()).split()
        if before and now[clock] != before[clock]:
            yield "".join([*before[:clock], now[clock], *before[clock + 1 :]])
        yield "".join(now)
        before = now


def measure(design, top, trace, settings):
    """The shares of lines and of bits of a design that were reached, each from 0 to 1; 1 if it has none.

    A line counts once it was executed, and a bit once it rose and fell.
    """
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        texts = {
            "player.sv": player(top, settings),
            "design.sv": f"/* verilator coverage_on */\n{design}",
            "main.cpp": MAIN,
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))}
        command = [VERILATOR, *BUILD, *texts]
        environment = {**os.environ, "VERILATOR_ROOT": ROOT} if os.path.isdir(ROOT) else None
        subprocess.run(command, cwd=folder, env=environment, check=True, **limits)
        played = "\n".join(steps(trace, settings)).encode()
        subprocess.run([str(folder / "obj_dir" / "Vplayer")], cwd=folder, input=played, check=True, **limits)
        found = (folder / "coverage.dat").read_text(encoding="utf-8", errors="replace")
    reached = {"line": [], "toggle": []}
    for text, count in POINT.findall(found):
        if page := PAGE.search(text):
            kind = "toggle" if page[1] == "toggle" else "line"
            reached[kind].append(int(count) >= (2 if kind == "toggle" else 1))
    return {kind: sum(points) / len(points) if points else 1.0 for kind, points in reached.items()}
