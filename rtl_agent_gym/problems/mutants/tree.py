"""The syntax tree of one design file, with the place of every node in the file's text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

_ROOT = "/code/"
_SKIPPED = {
    "InitialBlock", "FinalBlock", "SpecifyBlock", "ConcurrentAssertionMember", "ImmediateAssertionMember",
    "PropertyDeclaration", "SequenceDeclaration", "CovergroupDeclaration", "ParameterPortList", "AttributeInstance",
    "DelayControl", "Delay3", "TimeUnitsDeclaration", "NamedBlockClause", "ParameterValueAssignment",
}  # fmt: skip
"""Parts that no operator changes: they are no hardware, or another value of them is no fault of the design."""
_RESET = re.compile(
    r"(?:[a-z]|async|sync|soft|hard|sys|core|por?|ext|btn)?(?:rst|reset|clear|clr)[blnpz]?", re.IGNORECASE
)
"""A part of the name of a reset or a clear: ``burst`` and ``first`` have none."""
_PARTS = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")
_CLOCKED = {"AlwaysFFBlock", "AlwaysBlock"}


class Edit(NamedTuple):
    """One replacement in a text. Offsets are bytes of its UTF-8 form."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Scope:
    """Where a node is."""

    procedural: bool = False
    """Inside an always block."""
    clocked: bool = False
    """Inside an always block with a clock edge."""
    reset: bool = False
    """In the branch that a reset selects."""
    dimension: bool = False
    """Inside the bounds of a declaration, a select or a replication."""
    port: bool = False
    """Inside a port's declaration."""
    loop: bool = False
    """In the head of a loop."""
    variable: bool = False
    """Inside a declaration of variables."""
    listed: bool = False
    """A direct part of a block, which may be missing."""


class Design:
    """A file of a design, parsed.

    Args:
        files: All files of the design; the others are what this file may include.
        path: The file.
    """

    def __init__(self, files: Mapping[str, str], path: str) -> None:
        import pyslang  # takes a third of a second, and not every source of problems needs it
        from pyslang import syntax

        self._manager = pyslang.SourceManager()
        self._manager.setDisableProximatePaths(True)
        buffers = {name: self._manager.assignText(_ROOT + name, text) for name, text in files.items()}
        self._buffer = buffers[path]
        self.data = files[path].encode()
        self._tree = syntax.SyntaxTree.fromBuffers([self._buffer], self._manager)

    @property
    def broken(self) -> bool:
        """Whether the file has a syntax error, so that its tree cannot be trusted."""
        return any(diagnostic.isError() for diagnostic in self._tree.diagnostics)

    def nodes(self) -> Iterator[tuple[Any, Scope]]:
        """Every node that an operator may change, parents before their children, each with its place."""
        yield from self._below(self._tree.root, Scope())

    def span(self, node: Any) -> tuple[int, int] | None:
        """First and last byte (exclusive) of a node or token; None if a part of it comes from a macro or an include."""
        found = node.range if is_token(node) else node.sourceRange
        if found.start.buffer != self._buffer.id or found.end.buffer != self._buffer.id:
            return None
        start, end = found.start.offset, found.end.offset
        return (start, end) if start < end else None

    def text(self, node: Any) -> str | None:
        """The text of a node or token as the file has it; None as in `span`."""
        span = self.span(node)
        return None if span is None else self.data[slice(*span)].decode()

    def line(self, offset: int) -> int:
        """The 1-based line of a byte."""
        return self.data.count(b"\n", 0, offset) + 1

    def whole_lines(self, start: int, end: int) -> tuple[int, int]:
        """A span with the rest of its lines, newline included, if that is blank; otherwise as it is."""
        first = self.data.rfind(b"\n", 0, start) + 1
        last = self.data.find(b"\n", end)
        if last < 0 or self.data[first:start].strip() or self.data[end:last].strip():
            return start, end
        return first, last + 1

    def apply(self, edits: tuple[Edit, ...]) -> str:
        """The file's text with some edits, which must not overlap."""
        data = self.data
        for edit in sorted(edits, reverse=True):
            data = data[: edit.start] + edit.text.encode() + data[edit.end :]
        return data.decode()

    def _below(self, node: Any, scope: Scope) -> Iterator[tuple[Any, Scope]]:
        kind = node.kind.name
        if kind in _SKIPPED or (kind == "ParameterDeclaration" and token(node, "ParameterKeyword")):
            return
        if kind.startswith("Always"):
            clocked = kind in _CLOCKED and any(
                token(event, "PosEdgeKeyword", "NegEdgeKeyword")
                for timing in children(node, "TimingControlStatement")
                for event in descendants(children(timing)[0])
            )
            scope = replace(scope, procedural=True, clocked=clocked)
        elif kind in ("VariableDimension", "ElementSelect", "EmptyStatement"):
            scope = replace(scope, dimension=True)
        elif kind in ("ImplicitAnsiPort", "PortDeclaration"):
            scope = replace(scope, port=True)
        elif kind == "DataDeclaration":
            scope = replace(scope, variable=True)
        elif kind == "EqualsValueClause" and scope.variable:
            return  # the value of a register at power-up
        yield node, scope
        for child in children(node):
            yield from self._below(child, _inside(node, child, scope))


def is_token(part: Any) -> bool:
    """Whether a part of a node is a token, which has no parts itself."""
    return hasattr(part, "rawText")


def children(node: Any, *kinds: str) -> list[Any]:
    """The direct parts of a node that are no tokens, of some kinds if any are given."""
    parts = [part for part in node if part is not None and not is_token(part)]
    return [part for part in parts if not kinds or part.kind.name in kinds]


def token(node: Any, *kinds: str) -> Any:
    """The first direct token of a node of some kinds, or None."""
    parts = [part for part in node if part is not None and is_token(part)]
    return next((part for part in parts if part.kind.name in kinds), None)


def descendants(node: Any) -> Iterator[Any]:
    """A node and everything below it that is no token."""
    yield node
    for child in children(node):
        yield from descendants(child)


def is_reset(condition: Any) -> bool:
    """Whether a condition is a reset, by the names in it."""
    names = [str(part).strip() for part in descendants(condition) if part.kind.name == "IdentifierName"]
    return bool(names) and all(any(map(_RESET.fullmatch, _PARTS.split(name))) for name in names)


def _inside(node: Any, child: Any, scope: Scope) -> Scope:
    """The scope of a part of a node."""
    kind = node.kind.name
    scope = replace(scope, listed=kind == "SequentialBlockStatement")
    if kind == "ConditionalStatement":
        taken = child.kind.name not in ("ConditionalPredicate", "ElseClause")
        chosen = scope.clocked and taken and is_reset(children(node, "ConditionalPredicate")[0])
        return replace(scope, reset=scope.reset or chosen)
    if kind in ("ForLoopStatement", "LoopGenerate"):
        last = children(node)[-1].sourceRange.start == child.sourceRange.start
        return replace(scope, loop=scope.loop or not last)
    if kind == "MultipleConcatenationExpression" and child.kind.name != "ConcatenationExpression":
        return replace(scope, dimension=True)
    return scope
