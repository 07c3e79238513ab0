"""Simulates the design with a hidden testbench in Verilog, and judges what the testbench prints.

The design runs in the testbench's process and can print anything. So each text that the testbench prints is put between
two words that are drawn for this run, and no other text is read. `judge.json` says what is simulated, and which verdict
the testbench's text has to give.
"""

import json
import os
import re
import resource
import secrets
import signal
import subprocess
from pathlib import Path

SRC = Path("/src")
SETTINGS = json.loads((SRC / "judge.json").read_text(encoding="utf-8"))
DESIGN = SETTINGS["design"]

# Only reads texts, so it needs no guard, and it must not count as a compilation of the design.
PREPROCESSOR = next(filter(os.path.exists, ["/opt/rtl-agent-gym/real/iverilog"]), "iverilog")
IVL = next(filter(os.path.isdir, ["/usr/local/lib/ivl", "/usr/lib/ivl"]), "")
AS_COMPILED = [f"""-BP/bin/sh -c 'exec {IVL}/ivlpp -L "$@"' """] if IVL else []
"""For the text that the compiler reads: -E alone leaves out the ends of lines behind files and macros of several lines,
so that a comment there would seem to go on. Icarus makes a command of a shell from it.
"""

PIECE = re.compile(
    r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/'
    r"|\$(?:display|write|strobe)[bho]?\s*\((?!\s*\))|\$(?:finish|stop|dump\w+)\b\s*(?:\([^()]*\))?\s*;"
    r'|[()]|[^"/$()]+|.',
    re.DOTALL,
)
PROSE = re.compile(r'\\[^ \t\b\f\r\n]+|"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?(?:\*/|(?P<endless>\Z))', re.DOTALL)
DIRECTIVE = re.compile(r"`(\w+)([^\n]*)")
SCOPE = re.compile(r'^S_\w+ \.scope \w+, "(?:[^"\\]|\\.)*" "((?:[^"\\]|\\.)*)"', re.MULTILINE)
PORT = re.compile(r'^ +\.port_info \d+ /(\w+) +\d+ "((?:[^"\\]|\\.)*)"', re.MULTILINE)
UNIT = "1ns/1ps"
"""The unit of time of a source that has none, and its precision."""

RANDOM = re.compile(r"\$(?:urandom|urandom_range|random|mti_random|mti_dist_uniform)\b")
TIME = re.compile(r"%[-+0-9.]*[tT]")
FILES = re.compile(
    r"\$(?:f(?:open[rwa]?|close|scanf|getc|putc|gets|read|seek|tell|eof|error|lush|(?:display|write|strobe|monitor)[bho]?)"
    r"|rewind|ungetc|sdf_annotate|ivlh_\w+)\b"
)
NEVER_RUNS = ("process has no sensitivities", "found no sensitivities so it will never trigger")
LONGEST = 1 << 20


def test_design(tmp_path):
    assert os.path.isfile(DESIGN), f"{DESIGN} is missing"
    begin, end = f"[{secrets.token_hex(16)}<", f">{secrets.token_hex(16)}]"
    hidden = preprocessed([str(SRC / name) for name in SETTINGS["hidden"]])
    check_ports(preprocessed([*AS_COMPILED, DESIGN]), hidden)

    units, bench = tmp_path / "units.txt", tmp_path / "hidden.sv"
    compiled, folder = tmp_path / "sim.vvp", tmp_path / "work"
    folder.mkdir()
    units.write_text(f"+timescale+{UNIT}\n", encoding="utf-8")
    bench.write_text(marked(hidden, begin, end, data_files()), encoding="utf-8")
    # The testbench is read first, so that no name of it leads to one outside the design's modules. Compilation units
    # (-u) would ensure that, too, but with them Icarus finds none of the design's own types and functions there.
    options = ["-g2012", "-Wall", "-Winfloop", "-Wno-timescale", "-c", str(units), "-s", SETTINGS["top"]]
    command = ["iverilog", *options, "-o", str(compiled), str(bench), DESIGN]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = done.stderr.decode(errors="replace")
    print(said)
    bench.unlink()
    assert done.returncode == 0, "it does not compile with the testbench"
    if SETTINGS["verdict"] == "mismatches":
        lines = [line for line in said.splitlines() if not line.startswith(str(bench))]
        never = [line for line in lines if any(text in line for text in NEVER_RUNS)]
        assert not never, f"the benchmark counts this warning as a failure: {never[0]}"
    check_directions(compiled.read_text(encoding="utf-8", errors="replace"), hidden)

    texts, ended, code = simulate(compiled, folder, begin.encode(), end.encode())
    print(*texts[:50], *(["…", *texts[-50:]] if len(texts) > 50 else []), sep="\n")
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        raise TimeoutError(f"the simulation needs more than {SETTINGS['seconds']} s of processor time")
    assert code == 0, f"the simulation ended with {code}"
    {"mismatches": judge_mismatches, "passed": judge_passed}[SETTINGS["verdict"]](texts, ended)


def judge_mismatches(texts, ended):
    lines = [line for text in texts for line in text.splitlines()]
    if any("TIMEOUT" in line for line in lines):
        raise TimeoutError("the testbench timed out")
    assert ended, "the testbench did not reach its end"
    found = [match for line in lines if (match := re.fullmatch(r"Mismatches: (\d+) in (\d+) samples", line))]
    assert found, "the testbench told no number of mismatches"
    assert all(int(wrong) == 0 < int(samples) for wrong, samples in (match.groups() for match in found))


def judge_passed(texts, ended):
    assert any("Pass" in text or "pass" in text for text in texts), "the testbench did not say that the design passed"


def preprocessed(words):
    command = [PREPROCESSOR, "-g2012", "-E", "-o", "/dev/stdout", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert done.returncode == 0, f"{words[-1]} cannot be preprocessed"
    return done.stdout.decode("utf-8", errors="surrogateescape").encode(errors="replace").decode()


def check_ports(design, hidden):
    """What a design could do to the testbench although it uses nothing but its ports."""
    if TIME.search(hidden):
        assert "$timeformat" not in design, "$timeformat would write a text of its own into what the testbench prints"
    design = words_of(design) + words_of(DIRECTIVE.sub(" ", design))
    if RANDOM.search(words_of(hidden)):
        found = RANDOM.search(design)
        assert not found, f"{found[0]} would change the random numbers that the testbench draws"
    if SETTINGS["data"]:
        found = FILES.search(design)
        assert not found, f"{found[0]} could act on a file that the testbench opens, or leave no handle for it"


def check_directions(compiled, hidden):
    """Whether the design's ports have the reference's directions: an output in an input's place drives the testbench.

    Ports are compared by name, or by position if the testbench connects them by position.
    """
    ports, module = SETTINGS["ports"], re.escape(SETTINGS["module"])
    in_order = [*ports.values()]
    by_name = re.search(rf"\b{module}\s*(?:#\s*\([^;]*?\)\s*)?\w+\s*\(\s*\.", words_of(hidden))
    scopes = SCOPE.split(compiled)  # the text before, and for each scope its module's name and its text
    designs = [text for name, text in zip(scopes[1::2], scopes[2::2], strict=True) if name == SETTINGS["module"]]
    assert designs, f"the testbench has no part {SETTINGS['module']}"
    for found in map(PORT.findall, designs):
        for at, (way, port) in enumerate(found):
            way, past = way.lower(), at >= len(in_order)
            assert way != "inout" or SETTINGS["inout"], (
                f"the port {port or at + 1} goes both ways, the reference's do not"
            )
            wanted = ports.get(port, way) if by_name else way if past else in_order[at]
            assert way == wanted, f"the port {port or at + 1} is an {way}, but the reference's is an {wanted}"


def words_of(text):
    """A text without strings and comments; escaped names only if they are those of system tasks and functions.

    Of a comment that does not end, all is kept.
    """

    def kept(found):
        return found[0][1:] if found[0].startswith("\\$") else " " if found["endless"] is None else found[0]

    return PROSE.sub(kept, text)


def data_files():
    """Copies of the testbench's data files, in a folder whose name no design knows."""
    folder = Path("/rundir" if os.path.isdir("/rundir") else "/code/rundir") / secrets.token_hex(16)
    if SETTINGS["data"]:
        folder.mkdir(mode=0o700)
    for name in SETTINGS["data"]:
        (folder / name).write_bytes((SRC / "data" / name).read_bytes())
    return {name: str(folder / name) for name in SETTINGS["data"]}


def marked(text, begin, end, data):
    """The testbench's text, with marks around everything that it prints and a marked line before each end.

    Neither it nor the design, which is read after it, takes directives of the other, such as the unit of time. It
    records no waveforms: VerilogEval's testbenches name a wire for that before they declare it, which not every
    version of Icarus allows.
    """
    out, calls = [f"`timescale {UNIT}\n"], []
    for piece in PIECE.findall(text):
        if piece[0] == '"':
            name = piece[1:-1].removeprefix("./")
            out.append(f'"{data[name]}"' if name in data else piece)
        elif piece.startswith("$dump"):
            out.append(";")
        elif piece.startswith(("$finish", "$stop")):
            out.append(f'begin $display("{begin}", "the end", "{end}"); $finish; end')
        elif piece[0] == "$" and piece[-1] == "(":
            calls.append(True)
            out.append(f'{piece}"{begin}", ')
        elif piece == "(":
            calls.append(False)
            out.append(piece)
        elif piece == ")":
            out.append(f', "{end}")' if calls and calls.pop() else piece)
        else:
            out.append(piece)
    return "".join([*out, f"\n`resetall\n`timescale {UNIT}\n"])


def simulate(compiled, folder, begin, end):
    """What the testbench printed, whether it reached its end, and the simulator's exit status."""
    limits = (SETTINGS["seconds"], SETTINGS["seconds"] + 5)
    process = subprocess.Popen(
        ["vvp", "-n", str(compiled)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limits),
    )
    texts, held = [], b""
    while piece := process.stdout.read1(1 << 16):
        held += piece
        while (start := held.find(begin)) >= 0 and (stop := held.find(end, start)) >= 0:
            texts.append(held[start + len(begin) : stop].decode(errors="replace"))
            held = held[stop + len(end) :]
        held = held[start:] if start >= 0 and len(held) - start < LONGEST else held[-len(begin) :]
    return [text for text in texts if text != "the end"], "the end" in texts, process.wait()
