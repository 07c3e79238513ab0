"""Checks a design that Verilator is about to turn into a program for what it could do outside of the simulation.

Verilator writes no list of calls, but its preprocessor can print the text that its compiler will read, with every
macro, include and condition resolved. In that text few words have effects outside, and its lexer fixes all of them:
none can be computed at run time. Nothing watches the program while it runs, so file names must be literals, and a
design that writes files is not built.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess

from .compiled import LOADED, READABLE, SECRET, TOOLS, WORK, below, short
from .sources import beyond_ports
from .tasks import HOSTILE, READS, WRITES

TOKEN = re.compile(
    r'(?P<block>""")|(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<escaped>\\\S+)'
    r"|(?P<task>\$[A-Za-z_0-9$]+)|(?P<directive>`[A-Za-z_]\w*)|(?P<dpi>\b(?:import|export)\b)|(?P<end>\n)|(?P<stop>;)",
    re.DOTALL,
)
LINE = re.compile(r'[ \t]+(\d+)[ \t]+"((?:[^"\\]|\\.)*)"[ \t]*(\d?)[^\n]*')
MARKS = re.compile(r'^`line \d+ "[^"\n]*" \d[ \t]*$', re.MULTILINE)
PLAIN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
BORDER = re.compile(
    r"\\\S+|(?<![\w$])(?:end(?:module|interface|program|package|primitive)"
    r"|(?:module|macromodule|interface|program|package|primitive)(?:\s+(?:automatic|static))?\s+\\?([\w$]+))(?![\w$])"
)
ARGUMENT = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*(?=[,)])')
MODE = re.compile(r'\s*,\s*"(rb?)"\s*\)')
FOREIGN = re.compile(r"`(?:systemc_\w+|pragma|verilator_config)")
RAW = re.compile(r"\$c(?:\d+|pure)?")
MODES = ("build", "exe", "binary", "cc", "sc", "main", "xml-only", "json-only", "dpi-hdr-only")
"""Modes that cannot be combined with -E."""
HARMLESS = {"--lint-only", "--version", "-V", "-E", "--getenv"}
"""Options with which nothing is built."""
DUMPS = (".vcd", ".fst", ".lxt", ".lxt2", ".lx2", ".evcd", ".fsdb", ".vcd.gz")


def judge(arguments: list[str], folder: str, testbench: bool) -> tuple[int | None, bytes, list[str], list[str]]:
    """What a build would do: its exit status if it fails on these sources, else None; what it printed then;
    violations; refusals.

    Args:
        arguments: Verilator's.
        folder: An empty folder for its output.
        testbench: Whether a design may be connected to a hidden testbench by ports only.
    """
    # Without the text nothing can be checked, so nothing is built.
    kept = [word for word in arguments if word.lstrip("-") not in MODES]
    done = subprocess.run([f"{TOOLS}/verilator", *kept, "-E"], capture_output=True)
    read, errors = ([], b"") if done.returncode else _read_files(kept, folder)
    if done.returncode or not done.stdout.strip() or errors:
        reason = "Verilator does not end well on these sources, so nothing is built from them"
        return done.returncode or 1, done.stderr + errors, [], [reason]
    text = done.stdout.decode("utf-8", errors="surrogateescape")
    violations, refusals = check_preprocessed(text, arguments)
    refusals += unjudged(text, read, arguments)
    if testbench:
        named = [word for word in kept if word.endswith((".v", ".sv")) and os.path.isfile(word)]
        others = [word for word in kept if word not in named]
        tops = [word for option, word in itertools.pairwise(others) if option.lstrip("-") == "top-module"]
        reached, apart = beyond_ports([f"{TOOLS}/verilator", "-E", *others], named, tops)
        violations, refusals = violations + reached, refusals + apart
    return None, b"", violations, refusals


def _read_files(kept: list[str], folder: str) -> tuple[list[str], bytes]:
    """Every file that Verilator reads, including those that it looks up; if it fails, what it printed."""
    timing = [] if any(word.lstrip("-") in ("timing", "no-timing") for word in kept) else ["--timing"]
    outputs = ["--json-only", "--json-only-output", f"{folder}/tree", "--json-only-meta-output", f"{folder}/meta"]
    done = subprocess.run([f"{TOOLS}/verilator", *kept, *timing, *outputs, "--Mdir", folder], capture_output=True)
    try:
        with open(f"{folder}/meta", "rb") as stream:
            files = json.loads(stream.read().decode("utf-8", errors="surrogateescape"))["files"]
    except (OSError, ValueError, KeyError):
        return [], done.stderr or b"no list of files"
    return (
        ([], done.stderr or b"no reason") if done.returncode else ([file["filename"] for file in files.values()], b"")
    )


def check_preprocessed(text: str, arguments: list[str]) -> tuple[list[str], list[str]]:
    """What a design would do, from the output of Verilator's preprocessor: (violations, why it is not built)."""
    allowed = READABLE + tuple(os.path.realpath(word) for word in arguments if os.path.isfile(word))
    violations: list[str] = []
    refused: list[str] = []
    file, number, at, foreign = "?", 1, 0, ""
    while match := TOKEN.search(text, at):
        at = match.end()
        kind, word, place = match.lastgroup, match.group(), f"{short(file)}:{number}"
        if word == "`line":
            where = LINE.match(text, at)
            if where:
                if where[3] == "1" and not below(os.path.realpath(where[2]), allowed):
                    violations.append(f"{place}: `include reads {where[2]!r}, which is none of the problem's files")
                file, number, at = where[2], int(where[1]) - 1, where.end()
                continue
        if kind == "dpi" or kind == "stop":
            foreign = f"{place}: {word}" if kind == "dpi" else ""
        elif foreign and kind in ("string", "block", "directive"):
            # A string after import or export names a foreign language; a block or a directive may contain one.
            violations.append(f"{foreign} of a foreign function reaches out of the simulation")
            foreign = ""
        if kind == "block":
            violations.append(f'{place}: a """ string, behind which this check cannot follow')
        elif kind == "directive" and FOREIGN.fullmatch(word):
            violations.append(f"{place}: {word} puts text of its own into the simulator")
        elif kind == "task":
            reached, reason = _task_fault(word, text, at)
            (violations if reached else refused).extend([f"{place}: {reason}"] if reason else [])
        number += word.count("\n")
    return list(dict.fromkeys(violations)), list(dict.fromkeys(refused))


def unjudged(text: str, read: list[str], arguments: list[str]) -> list[str]:
    """Files of the candidate that Verilator looked up by the name of a module, so that `text` does not have them.

    Args:
        text: The preprocessed text of the sources that the arguments name.
        read: Every file that the compiler read.
        arguments: Verilator's.
    """
    named = {os.path.realpath(word) for word in arguments if os.path.isfile(word)}
    plain = PLAIN.sub(" ", MARKS.sub("", text))
    declared = _declared(plain)
    found = []
    for path in read:
        if not below(os.path.realpath(path), READABLE) or os.path.realpath(path) in named:
            continue
        # A file that is not named was included, or looked up for a module that the text names, whose name begins the
        # name of the file. Verilator does not look up what the text declares.
        parts = os.path.basename(path).split(".")
        stems = [".".join(parts[: count + 1]) for count in range(len(parts))]
        if any(re.search(rf"(?<!\w){re.escape(stem)}(?!\w)", plain) for stem in stems if stem not in declared):
            found.append(f"{short(path)}: a module that is looked up in a folder cannot be judged; nothing is built")
    return found


def _declared(plain: str) -> set[str]:
    """The modules, packages and the like that a text declares at its top level."""
    found, depth = {""}, 0
    for match in BORDER.finditer(plain):
        if match[1] and depth == 0:
            found.add(match[1])
        depth += bool(match[1]) - match[0].startswith("end")
    return found


def _task_fault(name: str, text: str, at: int) -> tuple[bool, str | None]:
    """Whether a task is a violation, and what is wrong with it; None if nothing is."""
    if RAW.fullmatch(name):
        return True, f"{name} puts C++ of its own into the simulator"
    if name in HOSTILE:
        return True, f"{name} reaches out of the simulation"
    if name not in READS | WRITES and name != "$dumpfile":
        return False, None
    open_ = re.compile(r"\s*\(").match(text, at)
    first = ARGUMENT.match(text, open_.end()) if open_ else None
    if first is None or "\\" in first[1]:
        return False, f"{name} opens a file whose name is no plain literal text; that cannot be watched"
    path, shown = first[1], repr(first[1])
    places = {os.path.normpath(os.path.join(os.getcwd(), path)), os.path.realpath(path)}
    secret = any(below(place, SECRET) for place in places)
    if name in READS or (name == "$fopen" and MODE.match(text, first.end())):
        here = os.getcwd()
        work = (*WORK, *([here] if here != "/" and not os.path.isabs(path) else []))
        if secret or not all(below(place, work) for place in places):
            return secret, f"{name} reads {shown}, which is none of the problem's files"
        return False, None
    if secret or path.endswith(LOADED):
        return True, f"{name} opens {shown} for writing, which only the checker may"
    if name == "$dumpfile":
        waves = path.endswith(DUMPS) or "." not in os.path.basename(path)
        return False, None if waves else f"$dumpfile writes {shown}, which is no waveform file; it cannot be watched"
    return False, f"{name} opens {shown} for writing; in a program of Verilator's that cannot be watched"
