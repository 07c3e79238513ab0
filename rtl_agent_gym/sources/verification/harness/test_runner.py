"""Runs the submitted bench against hidden designs, each in a process of its own, and judges its verdicts.

Each test is a mutant that the bench has to reject. Before that, the bench must accept every right design; otherwise all
tests fail, and their names say why. Coverage is measured by a test that is skipped, since it has no verdict.
"""

import hashlib
import json
import mmap
import os
import resource
import secrets
import subprocess
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
from simulation import Unfit, check_calls, finest_unit, first_difference, instrument, wrapped

SRC = Path("/src")
SETTINGS = json.loads((SRC / "judge.json").read_text(encoding="utf-8"))
BENCH, TOP = SETTINGS["bench"], SETTINGS["top"]
WORK = Path("/code/rundir" if os.path.isdir("/code/rundir") else "/rundir")
HIDDEN = "HIDDEN0_"
"""What the names of hidden modules begin with; runs replace it by a word that no bench knows."""
COMPILE = ["-g2012", "-u", "-Wno-timescale"]
COMPILER = next(filter(os.path.exists, ["/opt/rtl-agent-gym/real/iverilog"]), "iverilog")
"""Compiles what no submitted file can change: the bench's text is preprocessed before, by the guarded compiler."""

RAW = b"not supported (fun_signal_real)"
"""What Icarus says on its stderr when it formats a real number in a way that shows what its memory has by chance."""
MOST_EVENTS = 1_000_000
"""Points in time at which ports change in one simulation; the task says how many may be."""

Run = namedtuple("Run", "verdict time trace")
"""``accepted``, ``rejected``, ``late``, ``long`` or ``crashed``; the time of a rejection, in its unit; the events for
`first_difference`."""


def word():
    """A name that no bench knows."""
    return "h" + secrets.token_hex(16)


def compile_bench(folder):
    """The bench's text without macros and includes, the unit of times in its runs, and the word in hidden names there.

    The guards check what it reads, and report whether it compiles. A bench can print the word and count its letters, so
    it is the same in all runs; it depends on the hidden designs, too, so that no bench can contain it.
    """
    if not os.path.isfile(BENCH):
        raise Unfit(f"there is no {BENCH.removeprefix('/code/')}")
    token = word()
    stub, plain = folder / "stub.sv", folder / "plain.sv"
    around = wrapped(SETTINGS, token, token, stub=True) + hidden_bench(token)
    stub.write_text(around, encoding="utf-8")
    include = f"-I{os.path.dirname(BENCH)}"
    for command in (
        ["iverilog", *COMPILE, include, *tops(token), "-o", folder / "stub.vvp", stub, BENCH],
        ["iverilog", "-g2012", include, "-E", "-o", plain, BENCH],
    ):
        if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
            raise Unfit("the bench does not compile with the ports of the design alone")
    bench = plain.read_text(encoding="utf-8", errors="surrogateescape")
    unit = finest_unit(compiled(folder, token, {"around.sv": around, "bench.sv": bench}))
    hidden = [path.read_text(encoding="utf-8") for path in sorted((SRC / "designs").iterdir())]
    digest = hashlib.sha256("".join([*hidden, bench]).encode(errors="surrogateescape"))
    return bench, unit, "h" + digest.hexdigest()[:32]


def hidden_bench(token):
    """The hidden stimuli around a checker; empty where the bench has its own."""
    path = SRC / "stimuli.sv"
    return path.read_text(encoding="utf-8").replace(HIDDEN, token) if path.exists() else ""


def tops(token):
    return ["-s", f"{token}stimuli" if (SRC / "stimuli.sv").exists() else TOP, "-s", f"judge_{token}"]


def compiled(folder, token, texts):
    """The simulation of some texts, the last of which is what `compile_bench` found.

    That one is preprocessed again, so the name of its file and the numbers of its lines are the same with each design.
    """
    for file, text in texts.items():
        text = f"`resetall\n`timescale 1ns/1ps\n{text}"
        (folder / file).write_text(text, encoding="utf-8", errors="surrogateescape")
    command = [COMPILER, *COMPILE, "-Mprefix=read", *tops(token), "-o", "sim.vvp", *texts]
    if subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        raise Unfit("the bench does not compile after it was preprocessed")
    listed = (folder / "read").read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    if any(line.startswith("I ") for line in listed):
        raise Unfit("the bench still includes files after it was preprocessed")
    text = (folder / "sim.vvp").read_text(encoding="utf-8", errors="surrogateescape")
    check_calls(text)
    for file in texts:
        (folder / file).unlink()
    return text


def run(name, bench, unit, token):
    """Simulate one design with the bench."""
    with tempfile.TemporaryDirectory() as path, tempfile.TemporaryFile() as errors:
        folder, mark = Path(path), word()
        texts = {
            "design.sv": (SRC / "designs" / name).read_text(encoding="utf-8").replace(HIDDEN, token),
            "around.sv": wrapped(SETTINGS, token, mark, unit) + hidden_bench(token),
            "bench.sv": bench,
        }
        text = instrument(compiled(folder, token, texts), token, mark)
        (folder / "sim.vvp").write_text(text, encoding="utf-8", errors="surrogateescape")
        return simulate(folder, errors, token.encode(), mark.encode())


def simulate(folder, errors, token, mark):
    seconds = SETTINGS["seconds"]
    errors.write(b"\n")  # no file without a byte can be mapped
    errors.flush()
    process = subprocess.Popen(
        ["vvp", "-n", str(folder / "sim.vvp")],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5)),
    )
    trace, edges, rejected, left = [], {}, None, b""
    while piece := process.stdout.read1(1 << 16):
        *lines, left = (left + piece).split(b"\n")
        if len(left) > 1 << 20:  # of the bench's own texts; those that count begin after a newline
            left = left[-100:]
        for line in lines:
            if not line.startswith(mark):
                continue
            kind, _, rest = line[len(mark) + 1 :].partition(b" ")
            if kind == b"P":
                time, _, values = rest.replace(token, b"").partition(b" ")  # the path of the instance has it
                trace.append((int(time), values, edges.get(values.split(b"|", 3)[3])))
            elif kind == b"C":
                inputs, _, path = rest.replace(token, b"").partition(b"|")
                edges[path] = hash((edges.get(path), inputs))
            elif rejected is None:
                rejected = int(rest) if kind == b"E" else float("inf")
        if len(trace) > MOST_EVENTS:
            process.kill()
    code = process.wait()
    if len(trace) > MOST_EVENTS:
        return Run("long", None, trace)
    if code < 0:
        return Run("late", None, trace)
    with mmap.mmap(errors.fileno(), 0, access=mmap.ACCESS_READ) as text:
        raw = text.find(RAW) >= 0
    if code or raw:
        return Run("crashed", None, trace)
    return Run("accepted" if rejected is None else "rejected", rejected, trace)


def examine():
    """What `compile_bench` found, and the bench's run with the right design; or why it earns nothing."""
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        bench = compile_bench(Path(folder))
    runs = {}
    for name in SETTINGS["right"]:
        runs[name] = run(name, *bench)
        fault = {
            "rejected": "the bench rejects a right design",
            "late": f"the bench does not end in {SETTINGS['seconds']} s of processor time",
            "long": f"ports change at more than {MOST_EVENTS} points in time",
            "crashed": "the simulation of a right design crashes",
        }.get(runs[name].verdict)
        if fault:
            raise Unfit(fault)
    return bench, runs[SETTINGS["right"][0]]


try:
    (COMPILED, RIGHT), FAULT = examine(), ""
except Unfit as error:
    FAULT = str(error)


@pytest.mark.parametrize("mutant", SETTINGS["mutants"], ids=lambda name: name[:-3] + (f": {FAULT}" if FAULT else ""))
def test_rejects(mutant):
    assert not FAULT, FAULT
    found = run(mutant, *COMPILED)
    assert found.verdict == "rejected", f"the simulation of the mutant: {found.verdict}"
    differs = first_difference(RIGHT.trace, found.trace, found.time)
    assert differs is not None, "it was rejected before its ports showed a difference"


if SETTINGS["coverage"]:
    from design_coverage import measure

    def test_coverage(record_property):
        found = {"line": 0.0, "toggle": 0.0}
        if not FAULT:
            right = (SRC / "designs" / "right.sv").read_text(encoding="utf-8")
            found = measure(right, f"{HIDDEN}{SETTINGS['module']}", RIGHT.trace, SETTINGS)
        for kind, share in found.items():
            record_property(f"{kind}_coverage", round(share, 4))
        record_property("coverage", round(sum(found.values()) / len(found), 4))
        pytest.skip("measured")
