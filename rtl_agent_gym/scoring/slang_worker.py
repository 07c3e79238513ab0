"""A process that reads SystemVerilog with pyslang for somebody else. Standard library and pyslang only.

What it reads was written by a model: it may crash a parser, or keep it busy for ever. So it is read here, where nobody
minds (`frontend.py` starts this, limits it, and starts it anew). One JSON document a line goes in, and one comes out.

Request: ``files`` (path to text), ``sources`` (paths to read, in order, as one compilation unit), ``tops`` (names of
modules). Reply: ``errors`` ([path, line, message] of each syntax error), ``modules`` (names), ``ports`` (per found top:
[name, direction, width in bits or null] each).
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import pyslang
from pyslang import ast, syntax

MEMORY = 2 << 30
ROOT = "/code/"
MOST_ERRORS = 50


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Read the sources of one request."""
    manager = pyslang.SourceManager()
    manager.setDisableProximatePaths(True)
    buffers = {path: manager.assignText(ROOT + path, text) for path, text in request["files"].items()}
    chosen = [buffers[path] for path in request["sources"]]
    tree = syntax.SyntaxTree.fromBuffers(chosen, manager)
    engine = pyslang.DiagnosticEngine(manager)
    errors: list[list[Any]] = []
    for diagnostic in tree.diagnostics:
        if diagnostic.isError() and len(errors) < MOST_ERRORS:
            place = manager.getFullyOriginalLoc(diagnostic.location)
            file = str(manager.getFileName(place)).removeprefix(ROOT)
            errors.append([file, manager.getLineNumber(place), engine.formatMessage(diagnostic)])
    modules, ports = elaborate(tree, request["tops"]) if request["tops"] else ([], {})
    return {"errors": errors, "modules": modules, "ports": ports}


def elaborate(tree: syntax.SyntaxTree, tops: list[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """The names of the modules, and the ports of each top with its parameters at their defaults."""
    options = ast.CompilationOptions()
    options.topModules = set(tops)
    options.maxInstanceDepth = 16
    options.maxGenerateSteps = 4096
    options.maxConstexprSteps = 100_000
    compilation = ast.Compilation(pyslang.Bag([options]))
    compilation.addSyntaxTree(tree)
    names = [definition.name for definition in compilation.getDefinitions()]
    known = [instance for instance in compilation.getRoot().topInstances if instance.name in tops]
    return names, {instance.name: [describe(port) for port in instance.body.portList] for instance in known}


def describe(port: Any) -> list[Any]:
    """A port as [name, direction, width]. An interface port has no width; an erroneous type neither."""
    direction = getattr(port, "direction", None)
    kind = getattr(port, "type", None)
    width = kind.bitstreamWidth if kind is not None and not kind.isError else None
    return [port.name, direction.name.lower() if direction is not None else "interface", width or None]


def main() -> None:
    """Answer requests until there are no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # No file of this machine can be opened from here on, so an include finds what was submitted and nothing else.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    for line in sys.stdin:
        print(json.dumps(read(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
