"""The files in an answer of one completion.

Code stands in fenced blocks, with or without a language, or, where the model forgot the fence, between ``module`` and
``endmodule`` in the text. Which target file a block is for is taken, in this order, from a file name in the fence's
info string, in the first comment of the code or alone on the line above, and from the names of the modules it defines.
Of several blocks for one file the last counts: models draft first and settle later.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markdown_it import MarkdownIt

from ..problems import Problem, editable

_markdown = MarkdownIt("commonmark", {"html": False})

_PATH = r"(?:\.{0,2}/)?[\w./+-]*\w\.(?:svh|sv|vh|v|md|txt|py)"
_NAMED = re.compile(
    rf"^[\s#>*`_/\\(\[-]*(?:file\s*(?:name|path)?|path|name|title)?[\s:=*`_]*(?P<path>{_PATH})[\s:*`_)\]]*(?:\*/)?\s*$",
    re.IGNORECASE,
)
_IN_INFO = re.compile(rf"(?<![\w./+-]){_PATH}(?![\w.])")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DESIGN_UNIT = re.compile(
    r"^[ \t]*(?:macro)?(?P<kind>module|interface|package|program)\s+(?:(?:automatic|static)\s+)?(?P<name>\w+)"
    r"(?=\s*(?:[(#;]|import\b)).*?\bend(?P=kind)\b(?:[ \t]*:[ \t]*\w+)?",
    re.DOTALL | re.MULTILINE,
)
_DIRECTIVES = re.compile(
    r"(?:^[ \t]*`(?:timescale|default_nettype|include|define|resetall)\b[^\n]*\n\s*)+\Z", re.MULTILINE
)
_OTHER_LANGUAGES = re.compile(
    r"bash|sh|shell|console|zsh|powershell|python|py|json|ya?ml|toml|ini|make|makefile|tcl|xdc|sdc|c|cpp|c\+\+|java|rust"
    r"|vhdl|mermaid|wavedrom|csv|diff|patch|html|xml|latex"
)
_HEADERS = (".vh", ".svh")


class _Unit(NamedTuple):
    """A module, interface, package or program in a code, and where it stands."""

    name: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Block:
    """A run of code in an answer."""

    code: str
    language: str = ""
    """The fence's first word, in lower case."""
    name: str = ""
    """The file name it came with; empty where there was none."""

    @property
    def units(self) -> dict[str, str]:
        """The modules, interfaces, packages and programs it defines, by name."""
        return {unit.name: unit.text for unit in _units(self.code)}


@dataclass
class Answer:
    """What was found."""

    files: dict[str, str] = field(default_factory=dict)
    """Text by path relative to the work folder."""
    found: tuple[str, ...] = ()
    """The target files among them."""


def read_answer(text: str, problem: Problem) -> Answer:
    """The files that an answer gives for a problem.

    Args:
        text: What the model said, its thinking left out.
        problem: Its targets say what to look for.
    """
    blocks = [block for block in read_blocks(text) if block.code.strip()]
    files: dict[str, str] = {}
    spare: list[Block] = []
    for block in blocks:
        placed = _place(block, problem)
        if placed:
            files |= placed
        elif not _OTHER_LANGUAGES.fullmatch(block.language):
            spare.append(block)
    _place_last_resort(files, spare, problem)
    _add_helpers(files, spare, problem)
    files = {path: code if code.endswith("\n") else code + "\n" for path, code in files.items()}
    return Answer(files, tuple(target for target in problem.targets if files.get(target, "").strip()))


def read_blocks(text: str) -> list[Block]:
    """The blocks of code in a text: fenced ones, then design units outside any fence, in their order."""
    lines = text.splitlines(keepends=True)
    blocks: list[Block] = []
    outside = list(lines)
    for token in _markdown.parse(text):
        if token.type != "fence" or token.map is None:
            continue
        start, end = token.map
        outside[start:end] = ["\n"] * (end - start)
        language = re.sub(r"[^\w+#-].*", "", token.info.strip(), flags=re.DOTALL).lower()
        if language in ("markdown", "md") and "```" in token.content:
            blocks += read_blocks(token.content)
            continue
        blocks.append(Block(token.content, language, _name(token.info, token.content, lines[:start])))
    loose = "".join(outside)
    last = 0
    for unit in _units(loose):
        lead = _DIRECTIVES.search(loose[last : unit.start])
        last = unit.end
        blocks.append(Block((lead[0] if lead else "") + unit.text + "\n"))
    return blocks


def _units(code: str) -> Iterator[_Unit]:
    """The design units of a code. Comments are not read, but stay in the text."""
    blank = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), code)
    for match in _DESIGN_UNIT.finditer(blank):
        yield _Unit(match["name"], code[match.start() : match.end()], match.start(), match.end())


def _name(info: str, code: str, before: Sequence[str]) -> str:
    """The file name that a fence came with."""
    in_info = _IN_INFO.search(info.replace(":", " "))
    if in_info:
        return in_info[0]
    for line in code.splitlines()[:5]:
        if not line.strip().startswith(("//", "/*", "*", "#", "--")):
            break
        named = _NAMED.match(line.strip().removeprefix("--"))
        if named:
            return named["path"]
    above = next((line for line in reversed(before) if line.strip()), "")
    named = _NAMED.match(above)
    return named["path"] if named else ""


def _place(block: Block, problem: Problem) -> dict[str, str]:
    """The files that a block is for; empty when that cannot be said of it alone."""
    path = _path(block.name, problem)
    if path:
        return {path: block.code}
    units = block.units
    wanted = {name: target for target in problem.targets for name in _modules_of(target, problem) if name in units}
    targets = list(dict.fromkeys(wanted.values()))
    if len(targets) <= 1:
        return dict.fromkeys(targets, block.code)
    files = dict.fromkeys(targets, "")
    lead = _leading_directives(block.code)
    for name, text in units.items():
        files[wanted.get(name, targets[0])] += f"{text}\n\n"
    return {target: lead + text for target, text in files.items()}


def _path(name: str, problem: Problem) -> str:
    """The path that a given name means; empty when it is none that counts."""
    name = name.removeprefix("/code/")
    while name.startswith("./"):
        name = name[2:]
    if name in problem.targets:
        return name
    alike = [target for target in problem.targets if posixpath.basename(target) == posixpath.basename(name)]
    if name and len(alike) == 1:
        return alike[0]
    return name if name and "/" in name and editable(problem, name) else ""


def _modules_of(target: str, problem: Problem) -> list[str]:
    """The module names that speak for a target: the file's own, and those that the given file defines."""
    stem = posixpath.basename(target).rpartition(".")[0]
    given = [unit.name for unit in _units(problem.context.get(target, ""))]
    return list(dict.fromkeys([stem, *given]))


def _leading_directives(code: str) -> str:
    first = next(iter(_units(code)), None)
    lead = _DIRECTIVES.search(code[: first.start]) if first is not None else None
    return lead[0] if lead else ""


def _place_last_resort(files: dict[str, str], spare: list[Block], problem: Problem) -> None:
    """Where one target alone has no code yet, a block that could only be meant for it is its code."""
    missing = [target for target in problem.targets if target not in files]
    if len(missing) != 1:
        return
    (target,) = missing
    known = {name for text in files.values() for name in Block(text).units}
    for block in reversed(spare):
        if (target.endswith(_HEADERS) and len(spare) == 1) or (block.units and not known & set(block.units)):
            files[target] = block.code
            spare.remove(block)
            return


def _add_helpers(files: dict[str, str], spare: Sequence[Block], problem: Problem) -> None:
    """Modules that belong to no file, but that a file uses, are put behind it."""
    defined = {name for text in [*files.values(), *problem.context.values()] for name in Block(text).units}
    helpers = {name: text for block in spare for name, text in block.units.items() if name not in defined}
    added = True
    while added:
        added = False
        for name in list(helpers):
            user = next((path for path in problem.targets if re.search(rf"\b{name}\b", files.get(path, ""))), None)
            if user is not None:
                files[user] = f"{files[user].rstrip()}\n\n{helpers.pop(name)}\n"
                added = True
