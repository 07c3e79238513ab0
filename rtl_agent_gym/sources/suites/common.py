"""What the suites share: reading their files, and the heads of modules in a text."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.paths import expand_home
from rtl_agent_gym.problems.registry import Located
from rtl_agent_gym.problems.rows import Place

LARGEST_FILE = 4 << 20
"""Bytes of a benchmark's file; the published ones have a few thousand."""

_PLAIN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|\(\*(?!\s*\)).*?\*\)', re.DOTALL)
_MODULE = re.compile(r"\b(?:macromodule|module)\s+(?:automatic\s+|static\s+)?([A-Za-z_][\w$]*)")
_INSTANCE = re.compile(
    r"(?:^|(?<=[;)])|\b(?:end|begin|else|endtask|endfunction|generate|endgenerate)\b)\s*([A-Za-z_][\w$]*)"
    r"(?:\s*#\s*\((?:[^()]|\([^()]*\))*\)\s*|\s+)([A-Za-z_][\w$]*)\s*(?:\[[^\]]*\]\s*)?\(",
    re.MULTILINE,
)
_NO_TYPES = {"module", "macromodule", "task", "function", "if", "else", "begin", "end", "return", "assign", "case"}
_NO_TYPES |= {"initial", "always", "final", "forever", "assert", "assume", "cover", "automatic", "static", "void"}


def read_text(path: Path, problem_id: str | None = None) -> str:
    """The text of a file; what is not UTF-8 is read as Latin-1. Line ends stay as they are.

    Raises:
        ProblemError: The file cannot be read, is no regular file, is larger than `LARGEST_FILE`, or is not text.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait
            raise ProblemError("expected a regular file", source=str(path), problem_id=problem_id)
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        message = f"the file cannot be read: {error.strerror or error}; check the copy of the benchmark"
        raise ProblemError(message, source=str(path), problem_id=problem_id) from error
    if len(data) > LARGEST_FILE:
        message = f"the file has more than {LARGEST_FILE >> 20} MiB; check the copy of the benchmark"
        raise ProblemError(message, source=str(path), problem_id=problem_id)
    if b"\0" in data:
        message = "the file is not text: it contains a zero byte, as binary data and UTF-16 do; save it as UTF-8"
        raise ProblemError(message, source=str(path), problem_id=problem_id)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def read_task(path: Path, problem_id: str) -> str:
    """The task's text. Raises `ProblemError` like `read_text`, and if it is empty."""
    text = read_text(path, problem_id)
    if not text.strip():
        raise ProblemError("the file is empty; expected the task's text", source=str(path), problem_id=problem_id)
    return text


def open_folder(source: str, prefix: str, holds: str) -> Path:
    """The folder of a source such as ``rtllm:FOLDER``.

    Raises:
        UsageError: There is no such folder; `holds` says what it would hold.
    """
    name = source.removeprefix(prefix)
    path = expand_home(name)
    if not name or not os.path.isdir(path):  # unlike `Path.is_dir`, False for names that are too long, too
        raise UsageError(f"{source!r}: there is no folder {name!r}; give {prefix}FOLDER, {holds}")
    return path


def read_each(
    found: Iterable[Path], read: Callable[[Path], Problem], source: str, path: Path, holds: str
) -> Iterator[Located]:
    """The problem of each path in order, or its error.

    Raises:
        UsageError: Nothing was found.
    """
    empty = True
    for entry in found:
        empty = False
        place = Place(str(entry))
        try:
            yield read(entry), place
        except ProblemError as error:
            where = error.source or str(entry)
            yield ProblemError(error.message, source=where, problem_id=error.problem_id, field=error.field), place
    if empty:
        raise UsageError(f"{source!r}: the folder {path} holds none of the benchmark's problems; expected {holds}")


def plain(text: str) -> str:
    """Verilog without its comments, strings and attributes."""
    return _PLAIN.sub(" ", text)


def module_names(text: str) -> list[str]:
    """The modules that a text declares, in order."""
    return list(dict.fromkeys(_MODULE.findall(plain(text))))


def instantiated(text: str) -> list[str]:
    """The kinds of modules that a text instantiates, in order."""
    return list(dict.fromkeys(kind for kind, _ in _INSTANCE.findall(plain(text)) if kind not in _NO_TYPES))


def root_modules(text: str) -> list[str]:
    """The modules of a text that none of its modules instantiates."""
    used = set(instantiated(text))
    return [name for name in module_names(text) if name not in used]


@dataclass(frozen=True)
class DesignPort:
    """A port of a module."""

    name: str
    direction: str
    """``input``, ``output`` or ``inout``."""
    width: int
    """Bits, at the defaults of the parameters."""


def ports(text: str) -> dict[str, tuple[DesignPort, ...]]:
    """The ports of each module that a text's designs use, in their order; only plain ports of bits."""
    import pyslang  # takes a third of a second, and not every source of problems needs it

    ast = pyslang.ast
    compilation = ast.Compilation()
    compilation.addSyntaxTree(pyslang.syntax.SyntaxTree.fromText(text))
    ways = {
        ast.ArgumentDirection.In: "input",
        ast.ArgumentDirection.Out: "output",
        ast.ArgumentDirection.InOut: "inout",
    }
    found: dict[str, tuple[DesignPort, ...]] = {}

    def note(symbol: object) -> None:
        if isinstance(symbol, ast.InstanceSymbol) and symbol.isModule:
            plain = [
                port for port in symbol.body.portList if isinstance(port, ast.PortSymbol) and port.direction in ways
            ]
            found[symbol.definition.name] = tuple(
                DesignPort(port.name, ways[port.direction], port.type.bitWidth) for port in plain
            )

    compilation.getRoot().visit(note)
    return found


def rename(text: str, old: str, new: str) -> str:
    """A text with one name replaced wherever it is a complete word."""
    return text if old == new else re.sub(rf"(?<![\w$]){re.escape(old)}(?![\w$])", lambda _: new, text)


@cache
def harness_file(name: str, package: str = __package__) -> str:
    """The text of a file in a package's folder ``harness``."""
    return resources.files(package).joinpath("harness", name).read_text(encoding="utf-8")
