"""Checks the text of a submitted design, then becomes the harness's own command, which is in the arguments.

NotSoTiny's harness compares the design with a reference in Yosys, and its verdict is a sentence in what Yosys prints.
Yosys also prints what a design tells it to print, and it reads what a design includes. So a design has to do without
everything by which it could print a sentence, read a file, or change what is compared. Lines of the problem's own files
may contain anything.
"""

import json
import os
import re
import sys

FOLDERS = ("/code/rtl", "/code/verif")
PROSE = re.compile(r'"((?:[^"\\\n]|\\.)*)"|//[^\n]*|/\*.*?\*/', re.DOTALL)
HIDING = re.compile(r'\\[^\s]*(?:/[/*]|")')
TASKS = {"clog2", "signed", "unsigned", "bits", "countones", "onehot", "onehot0", "isunknown", "size", "high", "low"}
TASKS |= {"left", "right", "readmemh", "readmemb"}
DIRECTIVES = {
    "define",
    "undef",
    "ifdef",
    "ifndef",
    "elsif",
    "else",
    "endif",
    "timescale",
    "default_nettype",
    "resetall",
}
WORDS = re.compile(r"\b(?:assume|assert|cover|restrict|bind|blackbox|whitebox|lib_whitebox)\b")


def faults(text, allowed):
    kept = "\n".join(line for line in text.splitlines() if line.strip() not in allowed)
    if match := HIDING.search(kept):
        yield f"the name {match[0]!r}"
    for match in PROSE.finditer(kept):
        if match[1] is not None and not re.fullmatch(r"[\w./-]*", match[1]):
            yield f"the text {match[0]!r}"
    code = PROSE.sub(" ", kept)
    for mark in ('"', "/*", "``", '`"', "`\\"):
        if mark in code:
            yield repr(mark)
    for task in re.findall(r"\$(\w+)", code):
        if task not in TASKS:
            yield f"${task}"
    names = DIRECTIVES.union(re.findall(r"`define\s+(\w+)", code))
    for name in re.findall(r"`(\w+)", code):
        if name not in names or name in ("include", "line"):
            yield f"`{name}"
    for match in WORDS.finditer(code):
        yield match[0]


def main():
    with open("/src/own_lines.json", encoding="utf-8") as stream:
        allowed = set(json.load(stream))
    for top in FOLDERS:
        for folder, _, files in os.walk(top):
            for name in sorted(files):
                with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as stream:
                    for fault in faults(stream.read(), allowed):
                        sys.exit(f"{folder}/{name}: {fault} is not allowed, as the verdict is what Yosys prints")
    os.execvp(sys.argv[1], sys.argv[1:])


main()
