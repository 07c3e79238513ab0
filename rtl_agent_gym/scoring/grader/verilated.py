"""Checks a design that Verilator is about to turn into a program for what it could do outside of the simulation.

Verilator prints two things without building anything. Its preprocessor prints the text that its compiler will read,
with every macro, include and condition resolved; this module searches it, and so can name each place. Its compiler
prints the elaborated design, and `elaborated.py` searches that: it decides, since a text can be read in other ways than
the compiler reads it. Nothing watches the program while it runs, so file names must be literals, and a design that
writes files is not built.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess

from .compiled import HOSTILE, READABLE, READS, TOOLS, WRITES, below, short
from .elaborated import check_tree, elaborate, file_fault, looked_up, written_inputs
from .sources import APART, Reach, beyond_ports

TOKEN = re.compile(
    r'(?P<block>""")|(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<escaped>\\[^ \t\f\r\n]+)'
    r"|(?P<task>\$[A-Za-z_0-9$]+)|(?P<directive>`[A-Za-z_]\w*)|(?P<dpi>\b(?:import|export)\b)|(?P<end>\n)|(?P<stop>;)"
    r"|(?P<raw>\(\*(?=[ \t\f\r\n]*[A-Za-z_\\])|\btable\b)|(?P<cooked>\*\)|\bendtable\b)",
    re.DOTALL | re.ASCII,
)
"""Between `raw` and `cooked`, an attribute or a table, the compiler knows no strings, comments or escaped names."""
LINE = re.compile(r'[ \t]+(\d+)[ \t]+"((?:[^"\\]|\\.)*)"[ \t]*(\d?)[^\n]*')
ARGUMENT = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*(?=[,)])')
MODE = re.compile(r'\s*,\s*"(rb?)"\s*\)')
FOREIGN = re.compile(r"`(?:systemc_\w+|pragma|verilator_config)")
RAW = re.compile(r"\$c(?:\d+|pure)?")
MODES = ("build", "exe", "binary", "cc", "sc", "main", "xml-only", "json-only", "dpi-hdr-only")
"""Modes that cannot be combined with -E."""
HARMLESS = {"--lint-only", "--version", "-V", "-E", "--getenv"}
"""Options with which nothing is built."""
SOURCES, OPTIONS_FILES = (".v", ".sv"), ("f", "F")
LISTED = re.compile(r"(?!-+[fF]$)[\w.+=:-]*(?:/[\w.+=:-]+)*", re.ASCII)
"""A word of a file of options that means nothing but itself: no comment, variable or quotation."""
FOREIGN_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".sp", ".o", ".a", ".so", ".vlt")
"""Endings of files that Verilator does not read as Verilog."""


def judge(arguments: list[str], folder: str, testbench: bool) -> tuple[int | None, bytes, list[str], list[str]]:
    """What a build would do: its exit status if it fails on these sources, else None; what it printed then;
    violations; refusals.

    Args:
        arguments: Verilator's.
        folder: An empty folder for its output.
        testbench: Whether a design may be connected to a hidden testbench by ports only.
    """
    # Without the text nothing can be checked, so nothing is built.
    arguments = _with_listed(arguments)
    kept = [word for word in arguments if word.lstrip("-") not in MODES]
    options = {word.lstrip("-") for word in arguments}
    if "binary" in options and options.isdisjoint(("timing", "no-timing")):
        kept.append("--timing")  # --binary implies it, and a design can test for it
    done = subprocess.run([f"{TOOLS}/verilator", *kept, "-E"], capture_output=True)
    failed, design = (b"", None) if done.returncode else elaborate(kept, folder)
    if design is None or not done.stdout.strip():
        reason = "Verilator does not end well on these sources, so nothing is built from them"
        return done.returncode or 1, done.stderr + failed, [], [reason]
    text = done.stdout.decode("utf-8", errors="surrogateescape")
    violations, refusals = check_preprocessed(text, arguments)
    certain, refused = check_tree(design)
    # The text names places better, and the elaborated design hides nothing.
    violations, refusals = violations or certain, refusals or refused
    refusals += looked_up(done.stdout, design, kept, folder)
    if testbench:
        reach = _beyond_ports(kept, design.read)
        violations, refusals = violations + reach.violations, refusals + reach.refusals
        refusals += written_inputs(design) if reach.mixed else []
    return None, b"", violations, refusals


def _with_listed(arguments: list[str]) -> list[str]:
    """The arguments with the words of files of options in their place, unless a file has more than plain words."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        found.append(word)
        if word.lstrip("-") == "f":
            path = next(words, "")
            found.append(path)
            if os.path.isfile(path):
                with open(path, encoding="utf-8", errors="surrogateescape") as stream:
                    listed = stream.read().split()
                found[-2:] = listed if all(map(LISTED.fullmatch, listed)) else found[-2:]
    return found


def _beyond_ports(kept: list[str], read: list[str]) -> Reach:
    """`beyond_ports` for Verilator, from the files that it reads."""
    files = [word for word in kept if os.path.isfile(word) and not word.endswith(FOREIGN_SOURCES)]
    named = [word for word in files if word.endswith(SOURCES)]
    others = [word for word in kept if word not in named]
    own = [below(os.path.realpath(path), READABLE) for path in read if not path.startswith("/usr/")]
    listed = len(named) < len(files) or any(word.lstrip("-") in OPTIONS_FILES for word in others)
    if listed and any(own) and not all(own):
        return Reach([], [APART], True)
    tops = [word for option, word in itertools.pairwise(others) if option.lstrip("-") == "top-module"]
    return beyond_ports([f"{TOOLS}/verilator", "-E", *others], named, tops)


def check_preprocessed(text: str, arguments: list[str]) -> tuple[list[str], list[str]]:
    """What a design would do, from the output of Verilator's preprocessor: (violations, why it is not built)."""
    allowed = READABLE + tuple(os.path.realpath(word) for word in arguments if os.path.isfile(word))
    violations: list[str] = []
    refused: list[str] = []
    file, number, at, foreign, raw = "?", 1, 0, "", False
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
        raw = kind == "raw" or (raw and kind != "cooked")
        if kind == "escaped" and not (word.isascii() and word.isprintable()):
            refused.append(
                f"{place}: an escaped name of other characters than those of ASCII's, which cannot be judged"
            )
        elif raw and kind in ("string", "comment", "escaped") and ("*)" in word or "endtable" in word):
            refused.append(f"{place}: a text in an attribute or a table that ends it, which cannot be judged")
        if kind == "block":
            violations.append(f'{place}: a """ string, behind which this check cannot follow')
        elif kind == "directive" and FOREIGN.fullmatch(word):
            violations.append(f"{place}: {word} puts text of its own into the simulator")
        elif kind == "task":
            reached, reason = _task_fault(word, text, at)
            (violations if reached else refused).extend([f"{place}: {reason}"] if reason else [])
        number += word.count("\n")
    return list(dict.fromkeys(violations)), list(dict.fromkeys(refused))


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
    return file_fault(name, first[1], reads=name in READS or (name == "$fopen" and bool(MODE.match(text, first.end()))))
