"""Judges a compiled design: what its calls of system tasks could do to the world outside of the simulation.

The design under test runs in the checker's own process, so what a Verilog design may call, it may do to the checker.
Icarus writes every such call, with the file and line it stands in, into the compiled `.vvp`: nothing else of the design
can act on the world, however it was spelled in the source. Which tasks are called is judged here; which files they open
is decided when they do (`wall.c`).
"""

from __future__ import annotations

import os
import re
from collections import namedtuple

from tasks import HARMLESS, HOSTILE, METHODS, READS, WRITES

READABLE = ("/code/rtl", "/code/verif", "/code/docs", "/code/rundir")
"""Folders whose files a design may include."""
WORK = ("/code", "/rundir")
"""Folders whose files a design may read while it runs, beside the one it runs in; what is secret in them apart."""
SECRET = ("/src", "/code/src", "/proc", "/sys", "/etc", "/opt", "/venv")
"""Folders of the checker's and the machine's: a design that asks for a file there reaches for the checker."""
LOADED = (".xml", ".py", ".pyc", ".pth", ".so", ".vpi", ".vpl", ".vvp", ".ini", ".cfg", ".toml", ".env", ".json")
"""Endings of names that a checker reads or loads: a design that would write such a file reaches for the checker."""
LIBRARIES = ("/usr", "/opt", "/venv", "/src")
"""Folders from which the simulator may load modules of code: the image's own, and the harness's."""

WALL = f"{':'.join(SECRET)}|{':'.join(WORK)}|{':'.join(LOADED)}"
"""The policy for `wall.c`, which decides when a file is opened."""

STRING = rb'"((?:[^"\\]|\\[^\n])*)"'
TOKEN = re.compile(
    rb"(?P<string>" + STRING + rb")|(?P<odd>\\[\"';#])|(?P<comment>[;#][^\n]*)"
    rb"|(?P<call>%vpi_(?:call|func)[/a-z]*|(?<![\w.$\\/])\.sfunc(?:/e)?(?![\w.$\\/]))"
    rb"|(?P<module>^:vpi_module)|(?P<names>^:file_names)",
    re.MULTILINE,
)
CALL = re.compile(rb"[ \t]+(\d+)[ \t]+(\d+)[ \t]+" + STRING)
MODULE = re.compile(rb"[ \t]*" + STRING)
OPERANDS = re.compile(rb"(?:" + STRING.replace(b"(", b"(?:", 1) + rb'|[^";\n])*')
OPERAND = re.compile(rb'[ \t]*("(?:[^"\\]|\\[^\n])*"|[^",;{]+)[ \t]*')
PARAMETER = re.compile(rb'^(P_0x[0-9a-f]+) \.param/(?:str|l) "(?:[^"\\]|\\[^\n])*" [^,\n]*, (.*);', re.MULTILINE)


class Unreadable(Exception):
    """The compiled file has a form that this check does not know."""


Call = namedtuple("Call", "name place operands continuous", defaults=[False])
"""One call of a system task or function in a compiled design: its name, ``file:line`` as the compiler names it, its
arguments as they stand in the compiled file, and whether it is made anew whenever one of them changes."""


def calls(text: bytes) -> list[Call]:
    """Every call of a system task or function in a compiled design.

    The grammar is the simulator's own (`vvp/lexor.lex`): outside of strings and comments, a quotation mark begins a
    string unless a backslash stands before it, which no compiler writes there and which is refused.
    """
    found, names, at = [], None, 0
    while match := TOKEN.search(text, at):
        at = match.end()
        kind = match.lastgroup
        if kind == "odd":
            raise Unreadable("a backslash before a mark, outside of any string")
        if kind == "module" and MODULE.match(text, at) is None:
            raise Unreadable(":vpi_module without a name right behind it")
        if kind == "names":
            names = [_text(raw) for raw in re.findall(rb"^\s*" + STRING + rb";", text[at:], re.MULTILINE)]
            break
        if kind == "call":
            head = CALL.match(text, at)
            if head is None:
                raise Unreadable(f"{match.group().decode()} without file, line and name")
            tail = OPERANDS.match(text, head.end())
            rest = tail.group() if tail else b""
            found.append((head, rest, match.group().startswith(b".sfunc")))
            at = head.end() + len(rest)
    if found and names is None:
        raise Unreadable("no list of source files")
    result = []
    for head, rest, continuous in found:
        number, line = int(head[1]), int(head[2])
        file = names[number] if names and number < len(names) else "?"
        result.append(Call(_text(head[3]), f"{short(file)}:{line}", _operands(rest), continuous))
    return result


def _operands(rest: bytes) -> list[bytes]:
    """The arguments after a call's name. A function's result width stands before the first comma and is none."""
    comma = rest.find(b",")
    found: list[bytes] = []
    while comma >= 0:
        match = OPERAND.match(rest, comma + 1)
        if match is None:
            break
        found.append(match[1].strip())
        comma = match.end() if rest[match.end() : match.end() + 1] == b"," else -1
    return found


def _text(raw: bytes) -> str:
    """What a string of the compiled file stands for."""
    plain = re.sub(rb'\\([0-7]{3}|["\\])', lambda m: bytes([int(m[1], 8) & 255]) if len(m[1]) == 3 else m[1], raw)
    return plain.decode("utf-8", errors="surrogateescape")


def _bits(operand: bytes) -> str | None:
    """The text in a constant vector, or None for anything else."""
    match = re.fullmatch(rb"\+?C4<([01]+)>|\d+'s?b([01]+)", operand)
    if match is None:
        return None
    digits = match[1] or match[2]
    return int(digits, 2).to_bytes((len(digits) + 7) // 8, "big").lstrip(b"\0").decode("latin-1")


def constants(text: bytes) -> dict[bytes, str]:
    """The texts of string parameters by their label."""
    found = {}
    for label, value in PARAMETER.findall(text):
        string = re.fullmatch(STRING, value.strip())
        known = _text(string[1]) if string else _bits(value.strip())
        if known is not None:
            found[label] = known
    return found


def constant(operand: bytes, known: dict[bytes, str]) -> str | None:
    """The text of an argument when it is the same at every call; None when it is computed at run time."""
    string = re.fullmatch(STRING, operand)
    if string:
        return _text(string[1])
    return known.get(operand, _bits(operand))


def below(path: str, folders: tuple[str, ...]) -> bool:
    """Whether a path is one of the folders or lies below one."""
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def check_vvp(path: str) -> tuple[list[str], list[str], bool]:
    """What a compiled design would do: (violations, unknown calls, whether its waveforms can be left out).

    Files are no matter here: the wall decides when they are opened.
    """
    with open(path, "rb") as stream:
        text = stream.read()
    violations, unknown, silent, computed = [], [], True, False
    known = constants(text)
    try:
        for call in calls(text):
            if call.name in HOSTILE:
                violations.append(f"{call.place}: {call.name} reaches out of the simulation")
            elif call.name not in HARMLESS | READS | WRITES and not call.name.startswith(METHODS):
                unknown.append(f"{call.place}: {call.name} is no task or function of this simulator")
            elif call.name == "$dumpfile" and call.operands:
                name = constant(call.operands[0], known)
                # Where a file cannot be made the simulator stops, and so it must here. A computed name is never tried.
                silent, computed = silent and _could_write(name), computed or name is None
    except Unreadable as error:
        violations.append(f"{path}: the compiled design cannot be judged ({error})")
    for raw in re.findall(rb"^:vpi_module[ \t]*" + STRING, text, re.MULTILINE):
        if not below(os.path.realpath(_text(raw)), LIBRARIES):
            violations.append(f"{path}: loads {_text(raw)!r} into the simulator")
    return violations, unknown, silent or computed


def _could_write(path: str | None) -> bool:
    """Whether a waveform file could be made there."""
    return path is None or "\0" in path or os.access(os.path.dirname(path) or ".", os.W_OK)


def short(path: str) -> str:
    """A path as the problem names it."""
    return path.removeprefix("/code/")
