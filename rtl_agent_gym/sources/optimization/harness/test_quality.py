"""Measures a design that was to be made smaller or faster: its netlist is made, proved and measured.

What it finds is recorded as properties of the last test, from which the score is made.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from netlists import Unfit
from synthesis import plain_text, prove, synthesise

SRC = Path("/src")
SETTINGS = json.loads((SRC / "quality.json").read_text(encoding="utf-8"))
GOAL, ORIGINAL, REFERENCE = (SETTINGS[key] for key in ("goal", "original", "reference"))
LEAST = 0.1
"""A smaller gain is none: the order of a text's lines and names alone moves results by less."""
IVL = next(filter(os.path.isdir, ["/usr/local/lib/ivl", "/usr/lib/ivl"]), "")
AS_COMPILED = f"""-BP/bin/sh -c 'exec {IVL}/ivlpp -L "$@"' """
"""For the text that the compiler reads: -E alone leaves out the ends of lines behind macros of several lines, so that a
comment there would seem to go on. Icarus makes a command of a shell from it.
"""
WORK = Path("/code/rundir" if os.path.isdir("/code/rundir") else "/rundir")


def submitted(folder):
    """The submitted design, preprocessed by the compiler of the hidden tests, whose guards see what it reads."""
    paths = [f"/code/{path}" for path in SETTINGS["sources"]]
    if missing := [path for path in paths if not os.path.isfile(path)]:
        raise Unfit(f"there is no {missing[0].removeprefix('/code/')}")
    plain = folder / "preprocessed.sv"
    command = ["iverilog", "-g2012", AS_COMPILED, "-E", "-o", str(plain), *paths]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        raise Unfit("it cannot be preprocessed")
    return plain_text(plain.read_bytes().decode("latin-1"))  # the compiler's lines end at a newline only


def examine():
    """The netlist's costs and the proof that it does what the reference does."""
    top = SETTINGS["top"]
    with tempfile.TemporaryDirectory(dir=WORK) as path:
        netlist = synthesise(submitted(Path(path)), top, path)
        ports = sorted([name, way, len(bits)] for name, (way, bits) in netlist.ports.items())
        if ports != sorted(SETTINGS["ports"]):
            raise Unfit("its ports are not those of the given design")
        netlist.check_clock(SETTINGS["clock"], SETTINGS["reset"])
        right = synthesise(plain_text((SRC / "reference.sv").read_text(encoding="utf-8")), top, path)
        proof = prove(right, netlist, SETTINGS, path)
    return netlist.costs(), proof


try:
    (COSTS, PROOF), FAULT = examine(), ""
except Unfit as error:
    COSTS, PROOF, FAULT = {}, None, str(error)


def quality():
    """The share of the reference's gain that was reached, and why."""
    if FAULT:
        return 0.0, FAULT
    if PROOF.found != "proved":  # a text may mean one thing to the hidden tests and another to synthesis
        known = {
            "differs": "it does something else than the given design after a reset",
            "bounded": f"in time, it was proved equal to the given design in the first {PROOF.detail} steps only",
        }
        return 0.0, known.get(PROOF.found, "it could not be compared with the given design")
    gain = (ORIGINAL[GOAL] - COSTS[GOAL]) / (ORIGINAL[GOAL] - REFERENCE[GOAL])
    share = 0.0 if gain < LEAST else min(gain, 1.0)
    text = f"{GOAL} {COSTS[GOAL]:g}, given {ORIGINAL[GOAL]:g}, reference {REFERENCE[GOAL]:g}"
    return share, f"{text}; proved equal"


def test_synthesis():
    assert not FAULT, FAULT


def test_equivalence():
    assert PROOF is not None, FAULT
    assert PROOF.found == "proved", PROOF


def test_quality(record_property):
    share, why = quality()
    record_property("quality", round(share, 4))
    record_property("goal", GOAL)
    record_property("equivalence", PROOF.found if PROOF else "")
    record_property("why", why)
    for name, value in COSTS.items():
        record_property(name, value)
    assert share >= SETTINGS["threshold"], why
