"""Runs a bench in Python with the module that it gets instead of a design, and prints its verdict and its inputs.

This runs beside the bench, which may change all that it does: it says no more than the bench could say itself.
"""

import base64
import json
import os
import resource
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import find_libpython
from cocotb_tools.config import lib_name_path, libs_dir

HERE = Path(__file__).resolve().parent
SETTINGS = json.loads((HERE / "run.json").read_text(encoding="utf-8"))
BUILD = ["iverilog", "-g2012", "-Wno-timescale", "-s", SETTINGS["module"], "-o", "sim.vvp", "module.sv"]


def environment():
    bench = Path(SETTINGS["bench"])
    return {
        **os.environ,
        "COCOTB_TEST_MODULES": bench.stem,
        "COCOTB_TOPLEVEL": SETTINGS["module"],
        "COCOTB_RESULTS_FILE": str(HERE / "results.xml"),
        "COCOTB_RANDOM_SEED": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(bench.parent),
        "LIBPYTHON_LOC": find_libpython.find_libpython(),
        "PYGPI_PYTHON_BIN": sys.executable,
        "TOPLEVEL_LANG": "verilog",
    }


def verdict(code):
    """What the results file says of the tests; without one, whether the processor time was used up."""
    try:
        cases = list(ElementTree.parse(HERE / "results.xml").iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return "late" if code == -24 else "crashed"  # SIGXCPU
    if any(case.find("failure") is not None or case.find("error") is not None for case in cases):
        return "rejected"
    return "accepted" if any(case.find("skipped") is None for case in cases) else "crashed"


def main():
    for name in ("recorded", "answers"):
        if (path := HERE / name).exists():
            path.write_bytes(zlib.decompress(base64.b64decode(path.read_bytes())))
    subprocess.run(BUILD, cwd=HERE, check=True)
    seconds = SETTINGS["seconds"]
    plugin = Path(lib_name_path("vpi", "icarus")).stem
    simulation = subprocess.run(
        [shutil.which("vvp"), "-M", str(libs_dir), "-m", plugin, "sim.vvp"],
        cwd=HERE,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2)),
    )
    steps = (HERE / "steps").read_bytes()
    steps = steps[: steps.rfind(b"\n") + 1]  # without what a simulation that was killed has of its last line
    found = {"verdict": verdict(simulation.returncode), "steps": base64.b64encode(zlib.compress(steps)).decode()}
    print("\n" + json.dumps(found))


main()
