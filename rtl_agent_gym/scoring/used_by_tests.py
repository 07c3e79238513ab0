"""Which files a problem's hidden tests run or read themselves, without a compiler that the guard watches, and which
inputs they drive.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

from ..problems.model import Problem

LOADED_UNASKED = re.compile(
    r"(?:conftest|sitecustomize|usercustomize|cocotb\w*|pytest\w*|_pytest|harness_library)\.py[cod]?"
    r"|.+\.(?:pth|pyc|pyo|vpi|vpl|vvp|so)|\.?pytest\.(?:ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml|\.coveragerc|modelsim\.ini"
    r"|docker-compose\.ya?ml|Dockerfile|\.env\w*"
)
"""Names of files that Python, pytest, the simulator or the runner load automatically."""
_PROGRAM = re.compile(
    r".+\.(?:py|pyw|sh|bash|pl|pm|rb|tcl|mk|make|cmake|js|c|cc|cpp|cxx|h|hpp|so|a|o)|(?:GNU)?[Mm]akefile.*|CMakeLists\.txt"
    rf"|configure|{LOADED_UNASKED.pattern}"
)
"""Names of a problem's files that hidden tests may run; a changed one would run with the tests' rights. Scripts with
other names are recognised by ``#!``."""
_C_FUNCTION = re.compile(r'"DPI(?:-C)?"')
"""What begins the import of a C function. Yosys calls such functions, of any library, while it reads a design."""
_IMPORT = re.compile(r"\bimport\b|``")
"""Any import, also of a word that a macro puts together. Yosys knows no others than those of C functions."""
_TEXT_MARK = '`"'
"""With this mark, Yosys makes a text of what macros have in it, such as ``DPI-C`` or the name of a file."""
_INCLUDE = re.compile(r'`include\s*(?:"([^"\n]*)"|`["\w\\])')
"""A file that Yosys includes; without a group, a macro has its name."""
_STRING = re.compile(r'"([^"\n]*)"')
_HIDDEN = re.compile(r"(?:/|\.\./)+(?:code/)?(?:src|proc)/")
_DRIVEN = re.compile(
    r"\bdut\.([A-Za-z]\w*)(?:\[[^\]\n]*\])*\.(?:value(?=(?:\s*,\s*[\w.]+\.value)+\s*=[^=])"
    r"|(?:value\s*=(?!=)|setimmediatevalue\()(?!\s*0\s*(?:[#)\n]|\Z)))"
    r"|(?<!Edge)(?<!Change)[(,=:\[{]\s*(?:\w+\.)?dut\.([A-Za-z]\w*)(?=\s*(?:[,)\]}#;\n]|\Z))"
)
"""A signal that a test drives with more than 0, by which tests initialise outputs, too, or that it hands to a function
or a variable, by which it may be driven.
"""
_BY_NAME = re.compile(r"""(?:getattr\((\w+),\s*|\b(\w+)\[)["']([A-Za-z]\w*)["'][)\]]""")
"""A signal whose name is a string."""
_COMPUTED = re.compile(
    r"(?:getattr\(\w+,\s*[A-Za-z_]\w*\)|\bdut\[[A-Za-z_]\w*\])(?:\[[^\]\n]*\])*\.(?:value\s*=(?!=)|setimmediatevalue\()"
)
_QUOTED = re.compile(r"""["']([A-Za-z]\w*)["']""")
"""A test that drives a signal whose name is in a variable, and what the name may be."""
_HANDLE = re.compile(r"^@cocotb\.(?:test|parametrize)\b.*?^(?:async\s+)?def\s+\w+\(\s*(\w+)", re.MULTILINE | re.DOTALL)
"""What a test calls the design; others are all called ``dut``."""
_WAY = re.compile(r"\b(in|out|inout)(?:puts?\b|(?<=inout)\b)", re.IGNORECASE)
"""A word that says which way a port goes."""
_INPUTS = re.compile(
    r"\binputs?(?:\s+(?:ports?|signals?|pins?|interfaces?|bus|data|sides?))*\W*(?:\([^()]*\)\W*)?$", re.IGNORECASE
)
"""The end of a heading of a list of inputs; others, such as "Input handling", may be above a list of outputs."""
_DECLARATION = re.compile(r"\s*(?:[-*]\s*)?`?\s*(?:module\b.*\(|input\b|output\b|inout\b)", re.IGNORECASE)
"""The beginning of a line of Verilog that declares ports."""
_DECLARED = r"[\s`*]*\b(?!(?:in|out)put\b|inout\b)[A-Za-z]\w*[`*]*(?:\s*\[[^\]]*\])*"
_PORTS = re.compile(
    r"\b(in|out|inout)(?:put)?\b(?::|(?:\s+(?:wire|reg|logic|var|bit|integer|int|byte|(?:un)?signed|tri\w*)\b)*"
    rf"(?:\s+[\w:]+(?=\s+[\w\[]))?)(?:\s*\[[^\]]*\])*({_DECLARED}(?:\s*,{_DECLARED})*)",
    re.IGNORECASE,
)
"""One or more ports in such a line, after their type, which may have any name."""
_LIST_ITEM = re.compile(r"\s*(?:[-*|`]|\d+[.)])[\W\d]*(\w+)(.*)")
_FIELD = re.compile(
    r"(?:\A[^A-Za-z]*\(|\|)(?:[^A-Za-z|]|\bbits?\b)*(in|out|inout)(?:puts?\b|(?=\W*(?:[|,)]|\Z)|\s*/))",
    re.IGNORECASE,
)
"""A field of a list's item that says which way a port goes: a table's, or the first one in parentheses."""
_NAMES = re.compile(r"\[[^\]]*\]|`\w[^`|]*`")
"""Widths and names in a list's item."""
_BOTH = re.compile(
    r"\bbi-?directional\b|(?:\A|[|(:])\W*(?:in(?:put)?\s*(?:/|and|or|&)\s*out(?:put)?|I/?O)\b", re.IGNORECASE
)
"""An item that says that a port goes both ways."""
_DESCRIBED = re.compile(r"\b(?:(in|out)put|(inout))\b", re.IGNORECASE)
"""A word of a description that may say which way a port goes."""
_CLAUSE = re.compile(
    r"\b(?:of|the|from|to|when|whether|if|for|both|all|each|any|on|over|with|between|after|that|than|is|are)\b",
    re.IGNORECASE,
)
"""A word after which "input" is part of a description, such as "sum of both inputs"."""
_HEADING = re.compile(r"\s*(?:(#+)|[-*\d.)\s]*(\*\*)[^*]*\*\*:?\s*$|.*:\s*$)")
"""A line of a text that may say which way the ports of the list below it go."""
_PROSE = (".md", ".txt", ".rst", ".py")
"""Endings of files that Yosys reads only where a source names them."""


def is_program(path: str, content: str | bytes) -> bool:
    """Whether a file may be a program, or loaded by one, by its name or its first line."""
    begins = content.startswith("#!") if isinstance(content, str) else content.startswith(b"#!")
    return begins or _PROGRAM.fullmatch(posixpath.basename(path)) is not None


def is_header(problem: Problem, path: str) -> bool:
    """Whether a file may be a header of Verilog, and not of C: where the problem is no repository, which has both."""
    return path.endswith(".h") and not problem.checkout


def is_the_tests(problem: Problem, path: str) -> bool:
    """Whether a given file is no target, and the hidden tests may run it, or read it: they name it, and it is not in
    ``rtl/``.
    """
    if path in problem.targets:
        return False
    if is_program(path, problem.context[path]):
        return not is_header(problem, path)
    if problem.checkout or path.startswith("rtl/"):
        return False
    name = posixpath.basename(path)
    named = re.compile(rf"(?<![\w.-]){re.escape(name)}(?!\.?[\w-])")
    return "." in name and any(map(named.search, problem.harness.values()))


class ReadByYosys:
    """What a submission makes Yosys do while it reads, which no guard watches, if the problem's harness runs Yosys."""

    def __init__(self, problem: Problem, files: Mapping[str, str | bytes]) -> None:
        self._problem = problem
        used = any("yosys" in text for text in problem.harness.values())
        contents = {**problem.context, **files} if used else {}
        # Yosys leaves out carriage returns.
        texts = {
            path: (content if isinstance(content, str) else content.decode("latin-1")).replace("\r", "")
            for path, content in contents.items()
        }
        strings = {path: _STRING.findall(text) for path, text in texts.items()}
        named = {posixpath.basename(name) for names in strings.values() for name in names}
        self._texts = {p: text for p, text in texts.items() if not p.endswith(_PROSE) or posixpath.basename(p) in named}
        self._makes_texts = any(_TEXT_MARK in text for text in self._texts.values())
        self._macros = self._makes_texts or any(self._hidden(path, strings[path]) for path in self._texts)
        """Whether a macro could have the name of a hidden file."""

    def fault(self, path: str) -> str | None:
        """Why a file that was not given attacks the grader; None if it does not."""
        text = self._texts.get(path, "")
        if _C_FUNCTION.search(text) or (self._makes_texts and _IMPORT.search(text)):
            return "imports a C function, which Yosys would call"
        names = [match[1] for match in _INCLUDE.finditer(text)]
        hidden = self._hidden(path, filter(None, names)) or (None in names and self._macros)
        return "includes a file that is none of the problem's" if hidden else None

    def _hidden(self, path: str, names: Iterable[str]) -> bool:
        """Whether one of the names that occur in a file may lead to a hidden one."""
        for name in names:
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) in self._texts
            place = posixpath.normpath(name)
            hidden = _HIDDEN.match(place) or not {place, f"src/{place}"}.isdisjoint(self._problem.harness)
            if hidden and not beside:
                return True
        return False


def inputs_of_tests(problem: Problem) -> list[str]:
    """Signals that the hidden Python tests drive, or hand to a function, and that the task calls inputs wherever it
    lists or declares them.

    A test may read such an input back, and expect what belongs to it, whatever direction the design gives the port.
    """
    texts = [text for path, text in problem.harness.items() if path.endswith(".py")]
    names = {first or second for text in map(_with_plain_handles, texts) for first, second in _DRIVEN.findall(text)}
    names.update(name for text in filter(_COMPUTED.search, texts) for name in _QUOTED.findall(text))
    ways: dict[str, set[str]] = {name: set() for name in names}
    for text in (problem.prompt, *problem.context.values()) if names else ():
        heading, level = "", 0
        for line in text.splitlines():
            item = _LIST_ITEM.match(line)
            if _DECLARATION.match(line) and not names.isdisjoint(re.findall(r"\w+", line)):
                for ports in _PORTS.finditer(line):
                    for name in names.intersection(re.findall(r"\w+", ports[2])):
                        ways[name].add(ports[1].lower())
            elif item and item[1] in names:
                ways[item[1]] |= _ways(item[2], heading)
            elif (head := _HEADING.match(line)) and ((way := _of_list(line)) or _level(head) <= level):
                heading, level = way.strip(), _level(head)
    return sorted(name for name, found in ways.items() if found - {""} == {"in"})


def _with_plain_handles(text: str) -> str:
    """A test's text in which each signal of the design is ``dut.name``."""
    text = _BY_NAME.sub(r"\1\2.\3", text)
    handles = "|".join({"dut", *_HANDLE.findall(text)})
    return re.sub(rf"\b(?:{handles})\.(?=[A-Za-z])", "dut.", text)


def _of_list(heading: str) -> str:
    """Which way ports go that are listed below this heading; a space if it names several ways."""
    ways = {way.lower() for way in _WAY.findall(heading)}
    return "" if not ways else "in" if _INPUTS.search(heading) and ways == {"in"} else "out" if ways == {"out"} else " "


def _level(heading: re.Match[str]) -> int:
    """The level of a heading: a lower one ends the part of the text that a higher one begins."""
    return len(heading[1]) if heading[1] else 7 if heading[2] else 8


def _ways(item: str, heading: str) -> set[str]:
    """Which ways a port may go that has this text in a list below the heading.

    A description may name inputs although the port is an output, so only a field of its own outweighs the heading.
    """
    if _BOTH.search(item):
        return {"inout"}
    if field := _FIELD.search(_NAMES.sub("", item)):
        return {field[1].lower()}
    found = _DESCRIBED.search(item)
    if found is None or (not heading and _CLAUSE.search(item, 0, found.start())):
        return {heading}
    way = (found[1] or found[2]).lower()
    return {heading or way, way}
