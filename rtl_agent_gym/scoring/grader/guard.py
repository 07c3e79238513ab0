"""Runs in place of a simulator's program: checks what is about to run, then runs it or refuses to.

It checks what the compilers read (`sources.py`, `verilated.py`) and the compiled design (`compiled.py`), immediately
before the simulator reads it and before any part of the design has run. In the simulator's process, `wall.c` decides
which files a design may open. If the supervisor cannot be reached, nothing is run.

This runs before every simulation, so modules that take milliseconds to import are imported where they are used.
"""

from __future__ import annotations

import os
import sys

from . import compiled
from .compiled import TOOLS, check_vvp, has_hidden, open_checkout, wall
from .line import Line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from .messages import Compiled, Simulated

WALL_LIBRARY = "/opt/rtl-agent-gym/wall.so"
"""The library that decides which files a design may open; built from `wall.c` with the image."""
REFUSED = 125
NEVER_BEGINS = (
    "?: the simulation would end with status 0 before it begins, and the hidden testbench would test nothing, for"
    " example after $monitor or $strobe of an expression, $swrite to anything but a reg, or a task called as a function"
)
UNJUDGED = "?: this file was not compiled here with the hidden testbench that it contains, so it has not been judged"
NO_FILES = "?: the design and the hidden testbench both use files, and what the testbench writes would be lost"
MOST, LONGEST = 20, 400
"""Maximum complaints that are reported for one simulation, and characters of one complaint."""


def run_vvp(line: Line, arguments: list[str]) -> None:
    """Check the compiled design that `vvp` is to run, then become `vvp`."""
    env = dict(os.environ)
    violations: list[str] = []
    refusals: list[str] = []
    design = compiled_design(arguments)
    if design is not None and line.settings["simulation"]:
        violations, refusals, silent = check_vvp(design)
        bench = ""
        if line.named:
            from .connections import benches_files

            bench = benches_files(design, line.named)
        waves = bench == "all" and line.settings.get("waves")  # of a testbench beside which a design records none
        arguments = [*arguments, "-none"] if silent and not waves else arguments
        if bench in ("", "own") and line.settings["testbench"] and any("cocotb" in word for word in arguments):
            from .connections import written_inputs

            refusals += written_inputs(design, line.settings.get("inputs", ()))
        beside = line.settings["testbench"] and line.settings["includes"]
        if beside:
            refusals += [NO_FILES] if bench.endswith("-") else [UNJUDGED] if not bench and has_hidden(design) else []
        if bench not in ("all", "dumps" if silent else "all"):
            env["LD_PRELOAD"] = " ".join([WALL_LIBRARY, *os.environ.get("LD_PRELOAD", "").split()])
            # The compiled file may contain a hidden testbench, which a design must not read.
            policy = wall(line.named, bench == "read")
            env["RTL_GYM_WALL"] = ":".join([os.path.realpath(design), os.path.abspath(design), policy])
        if beside and bench == "none":  # the design could read what the testbench is to read
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        if beside and bench not in ("", "own") and not (violations or refusals) and not begins(design, arguments, env):
            refusals = [NEVER_BEGINS]
    report(line, {"kind": "simulator", "violations": violations, "refusals": refusals})
    os.execve(f"{TOOLS}/vvp", ["vvp", *arguments], env)


def begins(design: str, arguments: list[str], env: dict[str, str]) -> bool:
    """Whether a compiled design comes to its first event. Only then does a hidden testbench decide the exit status.

    ``-s`` stops before that event, which ``-N`` turns into the exit status 1. It is 0 if a system task ended the
    simulation when its arguments were checked, or after 256 errors of linking.
    """
    from .sources import run

    after = arguments[arguments.index(design) + 1 :]
    return run([f"{TOOLS}/vvp", "-N", "-s", design, *after], dict.fromkeys(range(3), "/dev/null"), env) != 0


def run_iverilog(line: Line, arguments: list[str]) -> None:
    """Compile, and check which files the compiler read."""
    from . import connections, sources
    from .sources import OwnFolder, run, without

    checked, plain = line.settings["includes"], without("M", arguments)
    with OwnFolder() as folder:
        listing, errors = f"{folder}/files", f"{folder}/stderr"
        own_list = [f"-Mprefix={listing}"] if checked else []
        options = own_list if plain == arguments else []
        remove(sources.outputs(arguments))  # an earlier compilation's file must not pass for this one's
        code = run([f"{TOOLS}/iverilog", *options, *arguments], {2: errors})
        if not code and sources.is_compilation(arguments) and not any(map(os.path.exists, sources.outputs(arguments))):
            code = 1  # the exit status has eight bits: after 256 errors it is 0
        if checked and (code or not options):  # the preprocessor may not have written this list
            again = [f"{TOOLS}/iverilog", *own_list, *without("o", plain), "-E", "-o", "/dev/null"]
            run(again, {1: "/dev/null", 2: "/dev/null"})
        with open(errors, "rb") as stream:
            text = b""
            while piece := stream.read(1 << 16):
                text = text or piece
                os.write(2, piece)
            stream.seek(0)
            driven = connections.driven_inputs(stream)
        lines = sources.read_lines(listing)
    violations: list[str] = []
    refusals: list[str] = []
    judged = not checked
    try:
        if checked:
            violations += sources.include_faults(lines)
        if not lines and not options and checked and sources.is_compilation(arguments):
            refusals = ["?: the compiler's list of files is missing, so the design cannot be judged"]
        elif checked and not code and line.settings["testbench"]:
            reach = sources.icarus_beyond_ports(lines, plain)
            violations += reach.violations
            refusals = reach.refusals + (driven if sources.mixed(lines) else [])
            refusals += reached_signals(lines, arguments) if reach.mixed else []
            refusals += connections.changed_parameters(sources.outputs(arguments), arguments)
        judged = True
    finally:  # also if this program fails: what was not judged must not run
        if violations or refusals or not judged or code:  # after some errors, Icarus leaves a file that would run
            remove(sources.outputs(arguments))
    named = sources.named_files(arguments, lines) if checked else []
    if not code and all(sources.is_own(line[2:]) for line in lines):
        named += connections.claims(sources.outputs(arguments))
    elif not code:
        named += connections.benches_with_files(sources.outputs(arguments), sources.is_own)
    end_compiler(line, code, text, violations, refusals, arguments, named)


def reached_signals(lines: list[str], arguments: list[str]) -> list[str]:
    """Where the design that was just compiled accesses signals of the testbench that it was compiled with."""
    from . import connections, sources

    paths = list(filter(os.path.isfile, sources.outputs(arguments)))
    hidden = [line[2:] for line in lines if not sources.is_own(line[2:])]
    return [fault for path in paths for fault in connections.reached_signals(path, sources.is_own, hidden)]


def remove(paths: list[str]) -> None:
    """Delete those of the files that exist, other than devices."""
    for path in paths:
        if os.path.isfile(path) and not path.startswith("/dev/"):
            os.unlink(path)


def run_verilator(line: Line, arguments: list[str]) -> None:
    """Check what Verilator would turn into a program, then run Verilator."""
    from .options_files import prepare, running_options
    from .sources import OwnFolder, run
    from .verilated import HARMLESS, judge

    if refusals := running_options(arguments):
        end_compiler(line, None, b"", [], refusals, arguments)
    if not HARMLESS.isdisjoint(arguments):
        os.execv(f"{TOOLS}/verilator", ["verilator", *arguments])
    with OwnFolder() as folder:
        if line.settings["simulation"]:
            failed, text, violations, refusals = judge(arguments, folder, line.settings)
            if not (failed or violations or refusals):
                refusals = prepare(arguments)
            if failed or violations or refusals:
                os.write(2, text)
                end_compiler(line, failed, text, violations, refusals, arguments)
        code = run([f"{TOOLS}/verilator", *arguments], {2: f"{folder}/stderr"})
        with open(f"{folder}/stderr", "rb") as stream:
            text = stream.read()
    os.write(2, text)
    end_compiler(line, code, text, [], [], arguments)


def end_compiler(
    line: Line,
    code: int | None,
    text: bytes,
    violations: list[str],
    refusals: list[str],
    arguments: list[str],
    named: Sequence[str] = (),
) -> NoReturn:
    """Report how a compiler ended (with None: it was not started), and exit with its status."""
    from .sources import own_build

    report(
        line,
        {
            "kind": "compiler",
            "code": code,
            "text": text[:4096].decode("utf-8", errors="replace"),
            "violations": violations,
            "refusals": refusals,
            "build": own_build(arguments),
            "named": list(named),
        },
    )
    sys.exit(code if code is None or code >= 0 else 128 - code)


def report(line: Line, message: Compiled | Simulated) -> None:
    """Report the result of a check. If there are complaints, print them to stderr and exit without running anything."""
    if line.settings["limits"]:
        message["violations"], message["refusals"] = cut(message["violations"]), cut(message["refusals"])
    line.send(message)
    complaints = message["violations"] + message["refusals"]
    for text in complaints:
        print(f"rtl-agent-gym: {ascii(text)[1:-1]}", file=sys.stderr)
    if complaints:
        sys.exit(REFUSED)


def cut(complaints: list[str]) -> list[str]:
    """The first complaints, shortened, and the number of omitted ones, since a design determines how many there are."""
    distinct = list(dict.fromkeys(text if len(text) <= LONGEST else f"{text[:LONGEST]} …" for text in complaints))
    more = [f"?: and {len(distinct) - MOST} more"] if len(distinct) > MOST else []
    return distinct[:MOST] + more


def compiled_design(arguments: list[str]) -> str | None:
    """The file that `vvp` is to run: the first word that is neither an option nor an option's value."""
    words = iter(arguments)
    for word in words:
        if word == "--":
            return next(words, None)
        if not word.startswith("-") or word == "-":
            return word
        if word.rstrip("lMm") != word and not word[1:-1].strip("hinNpqsvV"):
            next(words, None)  # the value of -l, -M or -m, where it is not in the same word
    return None


def main() -> None:
    """Run in place of the simulator's program that the first argument names."""
    name, arguments = sys.argv[1], sys.argv[2:]
    try:
        line = Line()
    except OSError as error:
        print(f"rtl-agent-gym: {name} is not run, as nobody supervises it ({error})", file=sys.stderr)
        sys.exit(REFUSED)
    compiled.times = frozenset(line.times)
    if line.settings.get("checkout"):
        open_checkout()
    {"vvp": run_vvp, "iverilog": run_iverilog, "verilator": run_verilator}[name](line, arguments)
