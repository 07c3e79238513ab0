"""Searches a design that Verilator has elaborated for what it could do outside of the simulation.

Verilator prints the elaborated design as JSON: every module, also those that it looked up in a folder, with macros,
parameters and constants resolved. What is not in there is not in the program either. The JSON is searched as text,
since a design determines how deep it is nested; a quotation mark in a name is escaped, so no name looks like a node.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import namedtuple

from .compiled import LOADED, READABLE, SECRET, TOOLS, WORK, below, short

CONSTRUCTS = {
    b'"dpiImport":true': "import of a foreign function reaches out of the simulation",
    b'"dpiExport":true': "export of a foreign function reaches out of the simulation",
    b'"type":"SYSTEM': "$system reaches out of the simulation",
    b'"type":"UC': "$c puts C++ of its own into the simulator",
    b'"type":"C': "$c puts C++ of its own into the simulator",
    b'"type":"S': "`systemc puts text of its own into the simulator",
}
"""What a node does that begins like this."""
OUTSIDE = re.compile(
    rb'"dpi(?:Import|Export)":true|"type":"SYSTEM(?=[TF]")|"type":"UC(?=(?:STMT|FUNC)")|"type":"C(?=(?:STMT|EXPR)USER")'
    rb'|"type":"S(?=C(?:HDR|INT|IMP|IMPHDR|CTOR|DTOR)"|YSTEMCSECTION")'
)
FILE = re.compile(
    rb'"type":"(?P<task>FOPEN|FOPENMCD|READMEM|WRITEMEM|DUMPCTL)"[^\n]*(?:\n\s*"(?:filenamep|exprp)": \[\s*'
    rb"""\{"type":"(?:CONST","name":"\d+'(?P<sign>s?)h(?P<name>[\da-f]+)"|(?P<computed>))[^\n]*"""
    rb"""(?:\n\s*\],\s*"modep": \[\s*\{"type":"CONST","name":"\d+'h(?P<mode>[\da-f]+)")?)?"""
)
"""A task that opens a file, and what it is given. Verilator prints texts as numbers."""
TASKS = {
    "FOPEN": "$fopen",
    "FOPENMCD": "$fopen",
    "READMEM": "$readmemh",
    "WRITEMEM": "$writememh",
    "DUMPCTL": "$dumpfile",
}
INPUT = re.compile(
    rb'^ {4}\{"type":"VAR","name":"(?P<name>(?:[^"\\]|\\.)*)","addr":"(?P<label>\(\w+\))"'
    rb'[^\n]*"direction":"(?:INPUT|(?:CONST)?REF)"',
    re.MULTILINE,
)
"""An input of a module, whose declarations have this indentation; those of tasks and functions are deeper."""
WRITTEN = re.compile(rb'"type":"VARX?REF"[^\n]*"access":"(?:WR|RW)"[^\n]*"varp":"(?P<label>\(\w+\))"')
LOC = re.compile(rb'"loc":"(\w+),(\d+):')
DUMPS = (".vcd", ".fst", ".lxt", ".lxt2", ".lx2", ".evcd", ".fsdb", ".vcd.gz")
READ_MODES = (b"r", b"rb")

Elaborated = namedtuple("Elaborated", "tree files read")
"""An elaborated design: its JSON, the names of files by their letter, and every file that the compiler read."""


def elaborate(arguments: list[str], folder: str, cwd: str | None = None) -> tuple[bytes, Elaborated | None]:
    """Elaborate a design: what Verilator printed, and the design, or None if it failed.

    Args:
        arguments: Verilator's, without those that build something.
        folder: A private folder for its output.
        cwd: Where it runs.
    """
    outputs = ["--json-only", "--json-only-output", f"{folder}/.tree", "--json-only-meta-output", f"{folder}/.meta"]
    command = [f"{TOOLS}/verilator", *arguments, *outputs, "--Mdir", folder]
    done = subprocess.run(command, capture_output=True, cwd=cwd)
    if done.returncode:
        return done.stderr or b"no reason", None
    try:
        with open(f"{folder}/.meta", "rb") as stream:
            entries = json.loads(stream.read().decode("utf-8", errors="surrogateescape"))["files"]
        with open(f"{folder}/.tree", "rb") as stream:
            tree = stream.read()
    except (OSError, ValueError, KeyError):
        return done.stderr or b"no elaborated design", None
    files = {letter: entry["filename"] for letter, entry in entries.items()}
    read = [os.path.join(cwd or "", name) for name in files.values() if not name.startswith("<")]
    return b"", Elaborated(tree, files, read)


def check_tree(design: Elaborated) -> tuple[list[str], list[str]]:
    """What an elaborated design would do: (violations, why it is not built)."""
    violations = [f"{_place(design, node.start())}: {CONSTRUCTS[node[0]]}" for node in OUTSIDE.finditer(design.tree)]
    refused: list[str] = []
    for node in FILE.finditer(design.tree):
        task, place = TASKS[node["task"].decode()], _place(design, node.start())
        if node["computed"] is not None:
            refused.append(f"{place}: {task} has a computed argument; a file that it opens cannot be watched")
        elif node["name"] is not None and not node["sign"]:  # other $dump tasks have signed numbers, or nothing
            digits = node["name"].decode()
            path = os.fsdecode(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)))
            mode = bytes.fromhex(node["mode"].decode()) if node["mode"] and not len(node["mode"]) % 2 else b""
            secret, reason = file_fault(task, path, reads=task == "$readmemh" or mode in READ_MODES)
            (violations if secret else refused).extend([f"{place}: {reason}"] if reason else [])
    return list(dict.fromkeys(violations)), list(dict.fromkeys(refused))


def written_inputs(design: Elaborated) -> list[str]:
    """Why a design with a hidden testbench is not built: a module writes its own input, as Verilator allows where the
    source switches its error off. In the program, that is the signal behind the port.
    """
    names = {port["label"]: port["name"].decode(errors="replace") for port in INPUT.finditer(design.tree)}
    return [
        f"{_place(design, node.start())}: the input {names[node['label']]!r} is written, and so would be the hidden "
        "testbench's signal"
        for node in WRITTEN.finditer(design.tree)
        if node["label"] in names
    ]


def _place(design: Elaborated, at: int) -> str:
    """The place of a node, as ``file:line``; `line directives can claim another."""
    line = design.tree.rfind(b"\n", 0, at)
    found = LOC.search(design.tree, line + 1)
    return f"{short(design.files.get(found[1].decode(), '?'))}:{int(found[2])}" if found else "?"


def file_fault(task: str, path: str, *, reads: bool) -> tuple[bool, str | None]:
    """Whether opening a file is a violation, and what is wrong with it; None if nothing is."""
    shown = repr(path)
    places = {os.path.normpath(os.path.join(os.getcwd(), path)), os.path.realpath(path.replace("\0", "?"))}
    secret = any(below(place, SECRET) for place in places)
    if reads:
        here = os.getcwd()
        work = (*WORK, *([here] if here != "/" and not os.path.isabs(path) else []))
        if secret or not all(below(place, work) for place in places):
            return secret, f"{task} reads {shown}, which is none of the problem's files"
        return False, None
    if secret or path.endswith(LOADED):
        return True, f"{task} opens {shown} for writing, which only the checker may"
    if task == "$dumpfile":
        waves = path.endswith(DUMPS) or "." not in os.path.basename(path)
        return False, None if waves else f"$dumpfile writes {shown}, which is no waveform file; it cannot be watched"
    return False, f"{task} opens {shown} for writing; in a program of Verilator's that cannot be watched"


def looked_up(text: bytes, design: Elaborated, arguments: list[str], folder: str) -> list[str]:
    """Why a design is not built: it has modules of the candidate that Verilator looked up by their names.

    The preprocessed text of all sources is elaborated once more, alone, where no folder of the candidate is searched.
    If that needs no other file than before, none of the candidate's was looked up.

    Args:
        text: The preprocessed text of the sources that the arguments name.
        design: What Verilator elaborated.
        arguments: Verilator's.
        folder: A private folder, without any files but this module's.
    """
    named = {os.path.realpath(word) for word in arguments if os.path.isfile(word)}
    read = {os.path.realpath(path) for path in design.read}
    own = sorted(path for path in read - named if below(path, READABLE) and os.path.isfile(path))
    if not own:
        return []
    alone = f"{folder}/.alone.sv"
    with open(alone, "wb") as stream:
        stream.write(text)
    _, again = elaborate([*_elsewhere(arguments, named), "-Wno-fatal", alone], folder, folder)
    if again is not None and {os.path.realpath(path) for path in again.read if os.path.isfile(path)} <= read | {alone}:
        return []
    return [f"{short(path)}: a module that is looked up in a folder cannot be judged; nothing is built" for path in own]


def _elsewhere(arguments: list[str], sources: set[str]) -> list[str]:
    """Arguments for another working folder, without sources and without folders of the candidate that are searched."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        if word.lstrip("-") in ("f", "F", "v", "y"):
            value = next(words, "")
            found += [word, os.path.abspath(value)] if word.lstrip("-") == "y" and _hidden(value) else []
        elif word.startswith(("-I", "+incdir+")):
            places = word.removeprefix("-I").removeprefix("+incdir+").split("+")
            found += [f"+incdir+{os.path.abspath(place)}" for place in places if _hidden(place)]
        elif os.path.realpath(word) not in sources or not os.path.isfile(word):
            found.append(word)
        elif word.endswith(".vlt"):
            found.append(os.path.abspath(word))
    return found


def _hidden(folder: str) -> bool:
    """Whether a folder that is searched is none of the candidate's, nor one that Verilator would search anyway."""
    path = os.path.realpath(folder)
    return not below(path, READABLE) and path != os.getcwd()
