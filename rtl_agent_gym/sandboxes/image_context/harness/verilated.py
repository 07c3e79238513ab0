"""Judges a design that Verilator is about to turn into a program: what it could do to the world outside of it.

Verilator leaves no list of calls behind, but its own preprocessor can be asked for the text that its compiler will
read, with every macro, include and condition resolved. In that text the words that reach outside are few, and all are
fixed by its lexer: none can be made at run time. Names of files must stand there as literal text.
"""

from __future__ import annotations

import os
import re

from compiled import DUMPS, READABLE, below, read_fault, short
from tasks import HOSTILE, READS, WRITES

TOKEN = re.compile(
    r'(?P<block>""")|(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<escaped>\\\S+)'
    r"|(?P<task>\$[A-Za-z_0-9$]+)|(?P<directive>`[A-Za-z_]\w*)|(?P<dpi>\b(?:import|export)\s*(?=\"))|(?P<end>\n)",
    re.DOTALL,
)
LINE = re.compile(r'[ \t]+(\d+)[ \t]+"((?:[^"\\]|\\.)*)"[ \t]*(\d?)[^\n]*')
ARGUMENT = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*(?=[,)])')
MODE = re.compile(r'\s*,\s*"(rb?)"\s*\)')
FOREIGN = re.compile(r"`(?:systemc_\w+|pragma|verilator_config)")
RAW = re.compile(r"\$c(?:\d+|pure)?")


def check_preprocessed(text: str, arguments: list[str]) -> list[str]:
    """What a design would do, from the output of Verilator's preprocessor.

    Args:
        text: That output.
        arguments: Verilator's own, which name the sources.
    """
    allowed = READABLE + tuple(os.path.realpath(word) for word in arguments if os.path.isfile(word))
    found, file, number, at = [], "?", 1, 0
    while match := TOKEN.search(text, at):
        at = match.end()
        word, place = match.group(), f"{short(file)}:{number}"
        if word == "`line":
            where = LINE.match(text, at)
            if where:
                if where[3] == "1" and not below(os.path.realpath(where[2]), allowed):
                    found.append(f"{place}: `include reads {where[2]!r}, which is none of the problem's files")
                file, number, at = where[2], int(where[1]) - 1, where.end()
            continue
        reason = _fault(match.lastgroup or "", word, text, at)
        if reason:
            found.append(f"{place}: {reason}")
        number += word.count("\n")
    return list(dict.fromkeys(found))


def _fault(kind: str, word: str, text: str, at: int) -> str | None:
    """What is wrong with a word of the text, or None."""
    if kind == "block":
        return 'a """ string, behind which this check cannot follow'
    if kind == "dpi":
        return f"{word.strip()} of a foreign function reaches out of the simulation"
    if kind == "directive" and FOREIGN.fullmatch(word):
        return f"{word} puts text of its own into the simulator"
    if kind == "task":
        return _task_fault(word, text, at)
    return None


def _task_fault(name: str, text: str, at: int) -> str | None:
    if RAW.fullmatch(name):
        return f"{name} puts C++ of its own into the simulator"
    if name in HOSTILE:
        return f"{name} reaches out of the simulation"
    if name in WRITES:
        return f"{name} writes a file"
    if name not in READS and name not in ("$fopen", "$dumpfile"):
        return None
    open_ = re.compile(r"\s*\(").match(text, at)
    first = ARGUMENT.match(text, open_.end()) if open_ else None
    if first is None:
        return f"{name} opens a file whose name is no literal text"
    if name == "$dumpfile":
        return None if first[1].endswith(DUMPS) else f"$dumpfile writes {first[1]!r}, which is no waveform file"
    if name == "$fopen" and not MODE.match(text, first.end()):
        return f"$fopen opens {first[1]!r} for writing"
    reason = "names a file with a backslash in it" if "\\" in first[1] else read_fault(first[1])
    return f"{name} {reason}" if reason else None
