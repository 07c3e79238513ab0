"""A design's text becomes a netlist of library cells, and Yosys's ABC compares two of them."""

import json
import re
import subprocess
from pathlib import Path

from netlists import CELLS, Netlist, Proof, Unfit, X, miter

FRONT = (
    "read_verilog -sv -nomeminit plain.sv; hierarchy -check -top {top}; setattr -mod -unset keep_hierarchy; "
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
_PIECES = re.compile(
    r"(?P<string>\"(?:[^\"\\\n]|\\.)*\")|(?P<name>\\\S+)|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<attribute>\(\*(?!\s*\)).*?(?:\*\)|\Z))|(?P<directive>`\w*[^\n]*)|(?P<task>\$[\w$]+)",
    re.DOTALL,
)
_STATUS = re.compile(r"^Status = (-?\d+)", re.MULTILINE)
_STEP = re.compile(r"^ *\d+ \+ : ", re.MULTILINE)
"""A line of ABC's bmc3 for each step in which it finds no difference."""
_FUNCTIONS = {
    "clog2",
    "signed",
    "unsigned",
    "bits",
    "countones",
    "onehot",
    "onehot0",
    "size",
    "left",
    "right",
    "high",
    "low",
}
_KEPT = {"`timescale", "`default_nettype", "`resetall", "`line", "`celldefine", "`endcelldefine"}
"""Directives that a preprocessed text may still have; what is synthesised needs none of them."""


def plain_text(text):
    """A preprocessed text without comments, attributes and directives. Raises `Unfit` for what is no hardware."""

    def replaced(piece):
        kind, found = piece.lastgroup, piece[0]
        if kind == "string":
            raise Unfit("it has a string")
        if kind == "name":
            raise Unfit(f"it has an escaped name, {found[:40]}")
        if kind == "task" and found[1:] not in _FUNCTIONS:
            raise Unfit(f"it calls {found[:40]}")
        if kind == "directive" and found.split()[0] not in _KEPT:
            raise Unfit(f"it has the directive {found[:40]}")
        return found if kind == "task" else " "

    return _PIECES.sub(replaced, text)


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
