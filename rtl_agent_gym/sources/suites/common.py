"""Code shared by sources: modules and ports in a text, files of harnesses, and digests."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

_PLAIN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?(?:\*/|\Z)|\(\*(?!\s*\)).*?(?:\*\)|\Z)', re.DOTALL)
_MODULE = re.compile(r"\b(?:macromodule|module)\s+(?:automatic\s+|static\s+)?([A-Za-z_][\w$]*)")
_INSTANCE = re.compile(
    r"(?:^|(?<=[;)])|\b(?:end|begin|else|endtask|endfunction|generate|endgenerate)\b)\s*([A-Za-z_][\w$]*)"
    r"(?:\s*#\s*\((?:[^()]|\([^()]*\))*\)\s*|\s+)([A-Za-z_][\w$]*)\s*(?:\[[^\]]*\]\s*)?\(",
    re.MULTILINE,
)
_NO_TYPES = {"module", "macromodule", "task", "function", "if", "else", "begin", "end", "return", "assign", "case"}
_NO_TYPES |= {"initial", "always", "final", "forever", "assert", "assume", "cover", "automatic", "static", "void"}


def plain(text: str) -> str:
    """Verilog without its comments, strings and attributes."""
    return _PLAIN.sub(" ", text)


def module_names(text: str) -> list[str]:
    """The modules that a text declares, in order."""
    return list(dict.fromkeys(_MODULE.findall(plain(text))))


def instantiated(text: str) -> list[str]:
    """The names of the modules that a text instantiates, in order."""
    return list(dict.fromkeys(kind for kind, _ in _INSTANCE.findall(plain(text)) if kind not in _NO_TYPES))


def root_modules(text: str) -> list[str]:
    """The modules of a text that none of its modules instantiates."""
    used = set(instantiated(text))
    return [name for name in module_names(text) if name not in used]


class DesignPort(NamedTuple):
    """A port of a module; a list in JSON."""

    name: str
    direction: str
    """``input``, ``output`` or ``inout``."""
    width: int
    """Bits, with the default parameters."""


def ports(text: str) -> dict[str, tuple[DesignPort, ...]]:
    """The ports, in order, of each module that is elaborated from a text; without interface ports and ``ref`` ports."""
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
            found[symbol.definition.name] = tuple(
                DesignPort(port.name, ways[port.direction], port.type.bitWidth)
                for port in symbol.body.portList
                if isinstance(port, ast.PortSymbol) and port.direction in ways
            )

    compilation.getRoot().visit(note)
    return found


def rename(text: str, old: str, new: str) -> str:
    """Replace a name in a text wherever it is a complete word."""
    return text if old == new else re.sub(rf"(?<![\w$]){re.escape(old)}(?![\w$])", lambda _: new, text)


@cache
def harness_file(name: str, package: str = __package__) -> str:
    """The text of a file in a package's folder ``harness``."""
    return resources.files(package).joinpath("harness", name).read_text(encoding="utf-8")


def json_digest(value: object) -> str:
    """The hexadecimal SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
