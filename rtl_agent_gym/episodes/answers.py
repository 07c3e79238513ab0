"""Finds the files in an answer.

Code is in fenced blocks, with or without a language; without a fence, it is the text from ``module`` to ``endmodule``.
The target file of a block is the one named in the fence's info string, otherwise in the first comment of the code,
otherwise alone on the line above. Without a name, the modules in the block determine it. If several blocks are for the
same file, the last one counts, since models draft first and decide later. Diffs are ignored. A block of shell commands
is for a file only if its info string names it; from others, such as ``cat > x.sv << EOF``, only modules are taken.
"""

from __future__ import annotations

import json
import posixpath
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from markdown_it import MarkdownIt

from ..problems import Problem, editable

_markdown = MarkdownIt("commonmark", {"html": False}).disable(["inline", "reference"])

# Sampled text can be anything, such as one line repeated for a hundred thousand characters. So everything below takes
# linear time: patterns for names are tried on short lines only, and units are paired in one pass.
_LONGEST_NAME_LINE = 300
_MOST_NESTED = 2
"""Maximum nesting of Markdown in blocks of Markdown that is searched."""
_PATH = r"(?:\.{0,2}/)?[\w./+-]*\w\.(?:svh|sv|vh|v|md|txt|py)"
_DIFF = re.compile(r"\s*(?:diff --git |--- .*\n\+\+\+ )")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_UNIT_START = re.compile(
    r"^[ \t]*(?:macro)?(?P<kind>module|interface|package|program)\s+(?:(?:automatic|static)\s+)?(?P<name>\w+)"
    r"(?=\s*(?:[(#;]|import\b))",
    re.MULTILINE,
)
_UNIT_END = re.compile(r"\bend(?P<kind>module|interface|package|program)\b(?:[ \t]*:[ \t]*\w+)?")
_DIRECTIVE = re.compile(r"[ \t]*`(?:timescale|default_nettype|include|define|resetall)\b")
_SHELLS = ("bash", "sh", "shell", "console", "zsh", "powershell")
_OTHER_LANGUAGES = re.compile(
    rf"{'|'.join(_SHELLS)}|python|py|json|ya?ml|toml|ini|make|makefile|tcl|xdc|sdc|c|cpp|c\+\+|java|rust"
    r"|vhdl|mermaid|wavedrom|csv|html|xml|latex"
)
_HEADERS = (".vh", ".svh")


class _Unit(NamedTuple):
    name: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Block:
    """A block of code in an answer."""

    code: str
    language: str = ""
    """The fence's first word, in lower case."""
    name: str = ""
    """The file name given with the block; empty if there was none."""

    @property
    def units(self) -> dict[str, str]:
        """The source of each module, interface, package and program in it, by name."""
        return {unit.name: unit.text for unit in _units(self.code)}


@dataclass
class Answer:
    """The files found in an answer."""

    files: dict[str, str] = field(default_factory=dict)
    """Text by path relative to the work folder."""
    found: tuple[str, ...] = ()
    """The target files among `files`."""


def read_text(text: str) -> str:
    """An answer that is text: the string in the official form ``{"response": "…"}``, otherwise the whole text."""
    try:
        value = json.loads(text[text.find("{") : text.rfind("}") + 1], strict=False)
    except (ValueError, RecursionError):
        return text.strip()
    if isinstance(value, dict) and isinstance(value.get("response"), str):
        return str(value["response"]).encode(errors="replace").decode()  # a lone surrogate is not valid text
    return text.strip()


def read_answer(text: str, problem: Problem) -> Answer:
    """The files in an answer, without its thinking: a problem's targets, and other files that may be changed."""
    blocks = [block for block in read_blocks(text, problem) if block.code.strip()]
    owners = {name: target for target in problem.targets for name in _modules_of(target, problem)}
    files: dict[str, str] = {}
    spare: list[Block] = []
    for block in blocks:
        placed = _place(block, problem, owners)
        if placed:
            files |= placed
        elif not _OTHER_LANGUAGES.fullmatch(block.language):
            spare.append(block)
    _place_last_resort(files, spare, problem)
    _add_helpers(files, spare, problem)
    files = {path: code if code.endswith("\n") else code + "\n" for path, code in files.items()}
    return Answer(files, tuple(target for target in problem.targets if files.get(target, "").strip()))


def read_blocks(text: str, problem: Problem, levels: int = _MOST_NESTED) -> list[Block]:
    """The blocks of code in a text, in order: fenced ones without diffs, and design units in shell commands and prose.

    A block of Markdown is searched for further blocks, down to `levels` levels, unless its info string names the
    Markdown file that it is for.
    """
    in_info, alone = _patterns(problem.targets)
    lines = re.sub(r"\r\n?", "\n", text).split("\n")
    placed: list[tuple[int, Block]] = []
    outside = list(lines)
    for token in _markdown.parse("\n".join(lines)):
        if token.type != "fence" or token.map is None:
            continue
        start, end = token.map
        language = re.sub(r"[^\w+#-].*", "", token.info.strip(), flags=re.DOTALL).lower()
        named = in_info.search(token.info[:_LONGEST_NAME_LINE].replace(":", " "))
        name = named[0] if named else ""
        if language in _SHELLS and not name:
            continue
        outside[start:end] = [""] * (end - start)
        if language in ("diff", "patch") or _DIFF.match(token.content):
            continue
        outer = language in ("markdown", "md") and not _path(name, problem).endswith(".md")
        if levels and outer and "```" in token.content:
            placed += [(start, block) for block in read_blocks(token.content, problem, levels - 1)]
            continue
        placed.append((start, Block(token.content, language, name or _name(token.content, lines, start, alone))))
    loose = "\n".join(outside)
    last = line = counted = 0
    for unit in _units(loose):
        line += loose.count("\n", counted, unit.start)
        counted = unit.start
        placed.append((line, Block(f"{_directives_above(loose[last : unit.start])}{unit.text}\n")))
        last = unit.end
    return [block for _, block in sorted(placed, key=lambda item: item[0])]


def _units(code: str) -> Iterator[_Unit]:
    """The design units in some code. Comments are skipped in the search, but stay in the text."""
    blank = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), code)
    ends: dict[str, list[re.Match[str]]] = {}
    for match in _UNIT_END.finditer(blank):
        ends.setdefault(match["kind"], []).append(match)
    position = 0
    for start in _UNIT_START.finditer(blank):
        candidates = ends.get(start["kind"], [])
        index = bisect_left(candidates, start.end(), key=lambda match: match.start())
        if start.start() < position or index == len(candidates):
            continue
        position = candidates[index].end()
        yield _Unit(start["name"], code[start.start() : position], start.start(), position)


def _directives_above(code: str) -> str:
    lines = code.splitlines(keepends=True)
    first = len(lines)
    for index in reversed(range(len(lines))):
        if _DIRECTIVE.match(lines[index]):
            first = index
        elif lines[index].strip():
            break
    return "".join(lines[first:])


@lru_cache
def _patterns(targets: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns for a path in an info string, and for a line that is a path; targets may have any extension."""
    names = sorted(map(posixpath.basename, targets), key=len, reverse=True)
    path = "|".join([*(rf"(?:[\w./+-]*/)?{re.escape(name)}" for name in names), _PATH])
    alone = (
        r"^[\s#>*`_/\\(\[-]*+(?:(?:file\s*(?:name|path)?|path|name|title)(?!_*[^\W_]|[./+-]))?[\s:=*`_]*+"
        rf"(?P<path>{path})(?:[\s:`_)\]]|\*(?!/))*+(?:\*/)?\s*$"
    )
    return re.compile(rf"(?<![\w./+-])(?:{path})(?![\w.])"), re.compile(alone, re.IGNORECASE)


def _name(code: str, lines: Sequence[str], start: int, alone: re.Pattern[str]) -> str:
    """The file name in the first comment of the code, or above its fence at line `start`; empty if there is none."""
    for line in code[: 5 * _LONGEST_NAME_LINE].split("\n")[:5]:
        if not line.strip().startswith(("//", "/*", "*", "#", "--")):
            break
        if named := _named(line.strip().removeprefix("--"), alone):
            return named
    above = (lines[i] for i in range(start - 1, max(-1, start - 4), -1) if lines[i].strip())
    return _named(next(above, ""), alone)


def _named(line: str, alone: re.Pattern[str]) -> str:
    """The path that a line consists of; empty if it consists of anything else."""
    named = alone.match(line) if len(line) <= _LONGEST_NAME_LINE else None
    return named["path"] if named else ""


def _place(block: Block, problem: Problem, owners: Mapping[str, str]) -> dict[str, str]:
    """The files that a block is for; empty if it alone does not determine them. `owners` maps modules to targets."""
    path = _path(block.name, problem)
    if path:
        return {path: block.code}
    units = block.units
    wanted = {name: target for name, target in owners.items() if name in units}
    targets = list(dict.fromkeys(wanted.values()))
    if len(targets) <= 1:
        return dict.fromkeys(targets, block.code)
    files = dict.fromkeys(targets, "")
    lead = _directives_above(block.code[: next(_units(block.code)).start])
    for name, text in units.items():
        files[wanted.get(name, targets[0])] += f"{text}\n\n"
    return {target: lead + text for target, text in files.items()}


def _path(name: str, problem: Problem) -> str:
    """The file that a name refers to; empty if it is neither a target nor another file that may be written."""
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
    """The module names that identify a target: the file's name, and the modules in the file as given."""
    stem = posixpath.basename(target).rpartition(".")[0]
    given = [unit.name for unit in _units(problem.context.get(target, ""))]
    return list(dict.fromkeys([stem, *given]))


def _place_last_resort(files: dict[str, str], spare: list[Block], problem: Problem) -> None:
    """If exactly one target has no code yet, take a block that can only be meant for it."""
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
    """Append each module that is in no file yet to the file that uses it."""
    defined = {name for text in [*files.values(), *problem.context.values()] for name in Block(text).units}
    helpers = {name: text for block in spare for name, text in block.units.items() if name not in defined}
    for path in problem.targets:
        unread = [files.get(path, "")]
        while unread and helpers:
            words = dict.fromkeys(re.findall(r"\w+", unread.pop()))
            used = [helpers.pop(name) for name in words if name in helpers]
            if used:
                files[path] = "\n\n".join([files[path].rstrip(), *used]) + "\n"
                unread += used
