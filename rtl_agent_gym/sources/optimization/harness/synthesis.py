"""A design's text becomes a netlist of library cells, and Yosys's ABC compares two of them."""

import json
import re
import subprocess
from pathlib import Path

from netlists import CELLS, Netlist, Proof, Unfit, X, miter

FRONT = (
    "read_verilog -sv -noassert -noassume -nomeminit plain.sv; hierarchy -check -top {top}; "
    "setattr -mod -unset keep_hierarchy; "
    # Without -norom, a case of constants becomes a memory, and its content would be deleted with the initial values.
    "proc -norom; "
    "delete t:$meminit t:$meminit_v2; flatten; setattr -unset keep; setattr -unset init; "
)
BACK = (
    "setattr -unset keep; synth -flatten -noabc -top {top}; setattr -unset init; opt_clean -purge; "
    "setundef -zero -undriven; "
    "dfflegalize -cell $_DFF_P_ x -cell $_DFF_N_ x -cell $_DFFSR_PNN_ x; opt_clean; "
    "abc -genlib {cells}; opt_clean -purge; write_json netlist.json"
)
SECONDS = 60
"""Processor time of a synthesis."""
PROOF_SECONDS = 30
"""Processor time of the search for a difference; a proof has twice as much."""
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TIME = r"[ \t]*1(?:00?)?[ \t]*[munpf]?s[ \t]*"
_FUNCTIONS = r"clog2|signed|unsigned|bits|countones|onehot0?|size|left|right|high|low"
_SKIPPED = re.compile(
    rf"(?P<string>{_STRING})|//[^\n]*|/\*.*?(?:\*/|\Z)|^`line \d+ \"[^\"\n]*\" [02]$"
    r"|(?P<name>\\\S*)|(?P<odd>\"|[^\t\n\r -~])",
    re.DOTALL | re.MULTILINE,
)
"""Comments, and the lines in which the preprocessor says where a text goes on after a macro; no file is included.

Strings are known since no comment begins in them. A character beyond ASCII, or NUL, ends all text for the compiler.
"""
_PIECES = re.compile(
    rf"\(\*(?![ \t]*\))(?:{_STRING}|[^\"`(*]|\((?!\*)|\*(?!\)))*+\*\)"
    rf"|`(?:timescale{_TIME}/{_TIME}|default_nettype[ \t]+(?:none|wire)|resetall|(?:end)?celldefine)[ \t\r]*$"
    rf"|(?P<task>\$(?!(?:{_FUNCTIONS})(?![\w$]))[\w$]+)"
    r"|(?P<attribute>\(\*(?![ \t]*\))[^\n]*)|(?P<directive>`[^\n]*)|(?P<literal>\"[^\n]*)",
    re.DOTALL | re.MULTILINE,
)
"""Attributes and directives in a text without comments, and what is not synthesised.

A directive has its line for itself and its argument. After some, the compiler reads the rest of the line as code.
"""
_FAULTS = {
    "name": "it has an escaped name,",
    "odd": "it has a string without an end, or a character that is not printable ASCII:",
    "task": "it calls",
    "attribute": "it has an attribute that cannot be read,",
    "directive": "it has the directive",
    "literal": "it has a string,",
}
_STATUS = re.compile(r"^Status = (-?\d+)", re.MULTILINE)
_STEP = re.compile(r"^ *\d+ \+ : ", re.MULTILINE)
"""A line of ABC's bmc3 for each step in which it finds no difference."""


def plain_text(text):
    """A preprocessed text without comments, attributes and directives, so that Yosys reads what the compiler reads.

    Raises `Unfit` for what is no hardware, and for what the two may read differently.
    """

    def replaced(piece):
        kind, found = piece.lastgroup, piece[0]
        if kind in _FAULTS:
            raise Unfit(f"{_FAULTS[kind]} {found[:40]!a}")
        return found if kind == "string" else " "

    return _PIECES.sub(replaced, _SKIPPED.sub(replaced, text))


def synthesise(text, top, folder, cells=CELLS):
    """The netlist of a plain text. Raises `Unfit`."""
    folder = Path(folder)
    (folder / "plain.sv").write_text(text, encoding="utf-8")
    script = (FRONT + BACK).format(top=top, cells=cells)
    done = _limited(["yosys", "-q", "-p", script], folder, SECONDS)
    if done.returncode:
        error = re.search(r"ERROR: (.{0,200})", done.stdout + done.stderr)
        raise Unfit(f"it cannot be synthesised: {error[1] if error else 'Yosys fails or needs too long'}")
    return Netlist((folder / "netlist.json").read_text(encoding="utf-8"), top)


def prove(gold, gate, device, folder, seconds=PROOF_SECONDS):
    """Whether two netlists with the same ports behave alike after the reset."""
    path = Path(folder) / "miter.blif"
    path.write_text(miter(gold, gate, device["reset"], device["level"]), encoding="utf-8")
    begin = "read_blif miter.blif; strash; scleanup; scorr; scorr -F 3"
    # A command that does not fit the circuit ends ABC: the first needs one without flip-flops, the others with them.
    # Their own limits on time are those of a clock, which a busy machine does not wait for.
    output = ""
    for way, most in (("iprove", 3 * seconds), ("pdr", 2 * seconds), ("bmc3 -v", seconds)):
        output = _limited(["yosys-abc", "-q", f"{begin}; {way}; print_status"], folder, most).stdout
        found = _STATUS.findall(output)
        if "1" in found:
            return Proof("proved", "")
        if "0" in found:
            return Proof("differs", "")
    steps = len(_STEP.findall(output))
    return Proof("bounded", steps) if steps else Proof("unknown", output[-200:])


def _limited(command, folder, seconds):
    shell = f'ulimit -t {seconds} && exec "$@"'
    return subprocess.run(
        ["sh", "-c", shell, "sh", *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )


def main():
    """Compare designs before there is a problem: reads ``designs.json``, prints what was found."""
    wanted = json.loads(Path("designs.json").read_text(encoding="utf-8"))
    try:
        nets = [synthesise(plain_text(text), wanted["top"], ".") for text in wanted["designs"]]
        reference, original = nets[:2]
        for net in nets:
            net.check_clock(wanted["clock"], wanted["reset"])
            if net.ports.keys() != reference.ports.keys():
                raise Unfit("the ports differ")
        state = reference.reset_state(wanted["reset"], wanted["level"], reference.two_phases())
        if X in state.values():
            raise Unfit("its reset leaves a flip-flop as it is, so that proofs would not be complete")
        proof = prove(reference, original, wanted, ".", seconds=8)
        print(json.dumps({"costs": [net.costs() for net in nets], "proof": proof.found}))
    except Unfit as error:
        print(json.dumps({"fault": str(error)}))


if __name__ == "__main__":
    main()
