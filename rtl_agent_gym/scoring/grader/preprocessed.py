"""Checks the text that Verilator's preprocessor prints, with every macro, include and condition resolved.

A search of this text can name each place. What only the compiler sees, `verilated.py` finds in the elaborated design.
"""

from __future__ import annotations

import os
import re

from .compiled import HOSTILE, READABLE, READS, WRITES, below, short
from .options_files import file_fault
from .sources import CLAIMED, is_hidden, is_own
from .testbench import CLAIMABLE, STEERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    Checked = tuple[list[str], list[str]]

SOURCES = (".v", ".sv")
TOKEN = re.compile(
    r'(?P<block>""")|(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<escaped>\\[^ \t\f\r\n]+)'
    r"|(?P<task>\$[A-Za-z_0-9$]+)|(?P<directive>`[A-Za-z_]\w*)|(?P<dpi>\b(?:import|export)\b)|(?P<end>\n)|(?P<stop>;)"
    r"|(?P<raw>\(\*(?=[ \t\f\r\n]*[A-Za-z_\\])|\btable\b)|(?P<cooked>\*\)|\bendtable\b)",
    re.DOTALL | re.ASCII,
)
"""Between `raw` and `cooked` (an attribute or a table), the compiler sees no strings, comments or escaped names."""
LINE = re.compile(rf'[ \t]+(\d+)[ \t]+"({CLAIMABLE}*)"[ \t]*(\d?)[^\n]*')
ARGUMENT = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*(?=[,)])')
MODE = re.compile(r'\s*,\s*"(rb?)"\s*\)')
FOREIGN = re.compile(r"`(?:systemc_\w+|pragma|verilator_config)")
RAW = re.compile(r"\$c(?:\d+|pure)?")
RESOLVED = {"$fopen", "$readmemh", "$readmemb"}
"""Tasks that `check_tree` judges by the file name that the compiler resolved, or refuses if there is none."""


def check_preprocessed(text: str, arguments: list[str], driven: bool = False, apart: bool = False) -> Checked:
    """Check the output of Verilator's preprocessor: (violations, reasons not to build the design). With `driven`, a
    hidden testbench in C++ runs the design; one from which the design is `apart` may open any file.
    """
    named = tuple(os.path.realpath(word) for word in arguments if os.path.isfile(word))
    allowed, claimed = READABLE + named, set[str]()
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
                claimed.add(where[2])
                file, number, at = where[2], int(where[1]) - 1, where.end()
                continue
            refused.append(f"{place}: a `line directive that cannot be judged")
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
            reached, reason = _task_fault(word, text, at, apart and is_hidden(file))
            (violations if reached else refused).extend([f"{place}: {reason}"] if reason else [])
            if driven and word in STEERS and is_own(file):
                violations.append(f"{place}: {word} {STEERS[word]}")
        number += word.count("\n")
    verilog = [path for path in named if path.endswith(SOURCES)]
    if driven and not all(is_own(path) or os.path.realpath(path) in verilog for path in claimed):
        refused.append(CLAIMED)
    return list(dict.fromkeys(violations)), list(dict.fromkeys(refused))


def _task_fault(name: str, text: str, at: int, hidden: bool) -> tuple[bool, str | None]:
    """Whether a task is a violation, and what is wrong with it; None if nothing is wrong. A `hidden` one may open any
    file.
    """
    if RAW.fullmatch(name):
        return True, f"{name} puts C++ of its own into the simulator"
    if name in HOSTILE:
        return True, f"{name} reaches out of the simulation"
    if hidden or (name not in READS | WRITES and name != "$dumpfile"):
        return False, None
    open_ = re.compile(r"\s*\(").match(text, at)
    first = ARGUMENT.match(text, open_.end()) if open_ else None
    if first is None or "\\" in first[1]:
        if name in RESOLVED:  # such as a parameter
            return False, None
        return False, f"{name} opens a file whose name is no plain literal text; that cannot be watched"
    reads = name in READS or (name == "$fopen" and bool(MODE.match(text, first.end())))
    return file_fault(name, first[1], reads=reads)
