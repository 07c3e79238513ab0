"""Verilator's files of options (``-f``): which words they have, and whether they could run a program."""

from __future__ import annotations

import itertools
import os
import re

from . import compiled
from .compiled import below, short

OPTIONS_FILES = ("f", "F")
"""The options that name such a file."""
LISTED = re.compile(r"(?!-+[fF]$)[\w.+=:-]*(?:/[\w.+=:-]+)*", re.ASCII)
"""A word of an options file without special meaning: no comment, variable or quotation."""
C_SOURCES = (".c", ".cc", ".cpp", ".cxx")
FOREIGN_SOURCES = (*C_SOURCES, ".sp", ".o", ".a", ".so", ".vlt")
"""Endings of files that Verilator does not read as Verilog."""
PLAIN = re.compile(
    r"(?:[+-]+(?:[DIGWOUfFvy]|incdir|libext|define|sv$|top|timing|no-timing|trace|assert|timescale|language|x-"
    r"|default-language|relative-includes|bbox|unroll|public|coverage|error-limit)|[\w./])[\w.+=:/,-]*",
    re.ASCII,
)
"""A source, or a Verilator option that starts no program."""
COMMENT = re.compile(r"^[ \t]*//.*", re.MULTILINE)


def with_listed(arguments: list[str]) -> list[str]:
    """The arguments with each options file replaced by its words, unless it has more than plain words."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        found.append(word)
        if word.lstrip("-") == "f":
            path = next(words, "")
            found.append(path)
            if os.path.isfile(path):
                with open(path, "rb") as stream:
                    listed = list(map(os.fsdecode, stream.read().split()))  # at white space of ASCII's, as Verilator
                found[-2:] = listed if all(map(LISTED.fullmatch, listed)) else found[-2:]
    return found


def running_options(arguments: list[str]) -> list[str]:
    """Reasons not to start Verilator: a submitted file of options has one that could run a program (``--pipe-filter``,
    ``-CFLAGS``), a source in C++, or a word with a quotation mark, a variable or a comment, which could contain these.
    """
    faults, seen = list[str](), set[str]()
    left = [path for option, path in itertools.pairwise(arguments) if option.lstrip("-") in OPTIONS_FILES]
    while left:
        path = left.pop()
        if path in seen or not os.path.isfile(path):
            continue
        seen.add(path)
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            words = COMMENT.sub("", stream.read()).split()
        nested = [name for option, name in itertools.pairwise(words) if option.lstrip("-") in OPTIONS_FILES]
        left += [place for name in nested for place in (name, os.path.join(os.path.dirname(path), name))]
        for word in words if below(os.path.realpath(path), compiled.EDITABLE) else ():
            if not PLAIN.fullmatch(word) or word.endswith(FOREIGN_SOURCES):
                faults.append(f"{short(path)}: {word!r} in a file of options, which could run a program")
    return faults
