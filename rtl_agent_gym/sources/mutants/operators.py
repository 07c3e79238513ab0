"""The twelve mutation operators: each makes one small change that a person could have made by mistake.

An operator is a function of a node of the syntax tree. It yields possible edits of that node, each a tuple of
replacements that are made together. Text from macros and included files is never changed, and neither are parameters,
initial values, assertions and delays.

Every node of the tree has a position in the file's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

_ROOT = "/code/"
_SKIPPED = {
    "InitialBlock", "FinalBlock", "SpecifyBlock", "ConcurrentAssertionMember", "ImmediateAssertionMember",
    "PropertyDeclaration", "SequenceDeclaration", "CovergroupDeclaration", "ParameterPortList", "AttributeInstance",
    "DelayControl", "Delay3", "TimeUnitsDeclaration", "NamedBlockClause", "ParameterValueAssignment",
}  # fmt: skip
"""Parts that no operator changes: they are not hardware, or another value would not be a fault of the design."""
_RESET = re.compile(
    r"(?:[a-z]|async|sync|soft|hard|sys|core|por?|ext|btn)?(?:rst|reset|clear|clr)[blnpz]?", re.IGNORECASE
)
"""Matches a word of a name that means reset or clear; ``burst`` and ``first`` do not match."""
_PARTS = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")


class Edit(NamedTuple):
    """One replacement in a text. Offsets are in bytes of its UTF-8 encoding."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Scope:
    """The surroundings of a node."""

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
    """A direct part of a block, so it may be removed without replacement."""


class Design:
    """The parsed file `path` of a design. It may include the other files."""

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
        """Every node that an operator may change, parents before their children, each with its scope."""
        yield from self._below(self._tree.root, Scope())

    def span(self, node: Any) -> tuple[int, int] | None:
        """Start and end (exclusive) of a node or token, in bytes; None if any part is from a macro or an include."""
        found = node.range if is_token(node) else node.sourceRange
        if found.start.buffer != self._buffer.id or found.end.buffer != self._buffer.id:
            return None
        start, end = found.start.offset, found.end.offset
        return (start, end) if start < end else None

    def text(self, node: Any) -> str | None:
        """The text of a node or token in the file; None as in `span`."""
        span = self.span(node)
        return None if span is None else self.data[slice(*span)].decode()

    def line(self, offset: int) -> int:
        """The 1-based line of a byte."""
        return self.data.count(b"\n", 0, offset) + 1

    def whole_lines(self, start: int, end: int) -> tuple[int, int]:
        """The span extended to whole lines, newline included, if the rest of these lines is blank; else unchanged."""
        first = self.data.rfind(b"\n", 0, start) + 1
        last = self.data.find(b"\n", end)
        if last < 0 or self.data[first:start].strip() or self.data[end:last].strip():
            return start, end
        return first, last + 1

    def apply(self, edits: tuple[Edit, ...]) -> str:
        """The file's text after some edits, which must not overlap."""
        data = self.data
        for edit in sorted(edits, reverse=True):
            data = data[: edit.start] + edit.text.encode() + data[edit.end :]
        return data.decode()

    def _below(self, node: Any, scope: Scope) -> Iterator[tuple[Any, Scope]]:
        kind = node.kind.name
        if kind in _SKIPPED or (kind == "ParameterDeclaration" and token(node, "ParameterKeyword")):
            return
        if kind.startswith("Always"):
            clocked = kind in ("AlwaysFFBlock", "AlwaysBlock") and any(
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
    """Whether a part of a node is a token, which has no parts."""
    return hasattr(part, "rawText")


def children(node: Any, *kinds: str) -> list[Any]:
    """The direct parts of a node that are not tokens, restricted to `kinds` if any are given."""
    parts = [part for part in node if part is not None and not is_token(part)]
    return [part for part in parts if not kinds or part.kind.name in kinds]


def token(node: Any, *kinds: str) -> Any:
    """The first token among a node's direct parts that has one of these kinds, or None."""
    return next((part for part in node if part is not None and is_token(part) and part.kind.name in kinds), None)


def descendants(node: Any) -> Iterator[Any]:
    """A node and all nodes below it, without tokens."""
    yield node
    for child in children(node):
        yield from descendants(child)


def is_reset(condition: Any) -> bool:
    """Whether a condition is a reset, judged by the names in it."""
    names = [str(part).strip() for part in descendants(condition) if part.kind.name == "IdentifierName"]
    return bool(names) and all(any(map(_RESET.fullmatch, _PARTS.split(name))) for name in names)


def _inside(node: Any, child: Any, scope: Scope) -> Scope:
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


Edits = tuple[Edit, ...]
Operator = Callable[[Design, Any, Scope], Iterator[Edits]]

_NUMBER = re.compile(r"(?P<head>(?P<width>\d*)\s*'\s*[sS]?(?P<base>[bBoOdDhH])\s*)?(?P<digits>[0-9a-fA-F_]+)")
_BASES = {"b": 2, "o": 8, "d": 10, "h": 16}
_FORMATS = {2: "b", 8: "o", 10: "d", 16: "x"}
_LITERALS = ("IntegerLiteralExpression", "IntegerVectorExpression")
_SUMS = ("AddExpression", "SubtractExpression")
_RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_COMPARISONS = (
    "EqualityExpression", "InequalityExpression", "LessThanExpression", "LessThanEqualExpression",
    "GreaterThanExpression", "GreaterThanEqualExpression",
)  # fmt: skip
_EQUALITIES = {"==": "!=", "!=": "==", "===": "!==", "!==": "==="}
_BINARY = {
    "+": "-", "-": "+", "*": "+", "&": "|", "|": "&", "^": "~^", "~^": "^", "^~": "^", "&&": "||", "||": "&&",
    "<<": ">>", ">>": "<<", "<<<": ">>>", ">>>": ">>",
}  # fmt: skip
_ASSIGNMENTS = ("AssignmentExpression", "NonblockingAssignmentExpression")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_MINUS = re.compile(r"(.*-\s*)(\d+)", re.DOTALL)
_EDGES = {"posedge": "negedge", "negedge": "posedge"}


def constant(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """Another value of a literal."""
    if scope.dimension or scope.loop or scope.reset:
        return
    if node.kind.name in (*_SUMS, *_COMPARISONS, *_LITERALS):
        return  # a literal is handled with its parent; literals in sums and comparisons belong to `off_by_one`
    for part in children(node):
        yield from _other_value(design, part)


def condition(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """The opposite of a condition."""
    if node.kind.name == "ConditionalPredicate" and (text := design.text(node)):
        if text.startswith("!") and _NAME.fullmatch(text[1:]):
            yield from _rewritten(design, node, text[1:])
        elif _NAME.fullmatch(text) or _is_enclosed(text):
            yield from _rewritten(design, node, f"!{text}")
        else:
            yield from _rewritten(design, node, f"!({text})")


def off_by_one(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """A bound included instead of excluded or the reverse, or a literal in a sum or a comparison off by one."""
    if scope.dimension or scope.loop:
        return
    kind = node.kind.name
    if kind in _COMPARISONS:
        yield from _exchanged(design, node, _RELATIONS)
    if kind in (*_SUMS, *_COMPARISONS):
        for part in children(node, *_LITERALS):
            yield from _other_value(design, part)


def edge(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """The other edge of a clock."""
    if node.kind.name == "SignalEventExpression" and not is_reset(node):
        yield from _exchanged(design, node, _EDGES)


def reset(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """Another reset value, a register that is not reset, the other edge of a reset, or a reset made synchronous."""
    kind = node.kind.name
    if kind == "BinaryEventExpression":
        events = children(node)
        kept = [event for event in events if not is_reset(event)]
        if len(events) == 2 and len(kept) == 1 and (text := design.text(kept[0])):
            yield from _rewritten(design, node, text)
    elif kind == "SignalEventExpression" and is_reset(node):
        yield from _exchanged(design, node, _EDGES)
    elif scope.reset and kind == "ExpressionStatement":
        yield from _removed(design, node, scope.listed)
    elif scope.reset and not scope.dimension and not scope.loop and kind in _ASSIGNMENTS:
        for part in children(node)[1:]:
            yield from _other_value(design, part)


def width(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """A signal or a part select that is one bit narrower."""
    if node.kind.name != "SimpleRangeSelect" or scope.port:
        return
    left, right = (design.text(part) for part in children(node))
    if not left or left == right or right is None:
        return
    narrower = f"{left} - 1"
    if left.isdigit():
        if int(left) == 0 or (right.isdigit() and int(left) < int(right)):
            return
        narrower = str(int(left) - 1)
    elif match := _MINUS.fullmatch(left):
        narrower = f"{match[1]}{int(match[2]) + 1}"
    yield from _rewritten(design, children(node)[0], narrower)


def assignment(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """A blocking assignment made non-blocking, or the opposite."""
    if node.kind.name == "ExpressionStatement" and scope.procedural:
        for part in children(node, *_ASSIGNMENTS):
            yield from _exchanged(design, part, {"=": "<=", "<=": "="})


def ports(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """Two neighbouring connections of an instance, exchanged."""
    if node.kind.name != "HierarchicalInstance":
        return
    given = [
        children(part)[-1]
        for part in _flat(node)
        if part.kind.name in ("NamedPortConnection", "OrderedPortConnection") and children(part)
    ]
    for first, second in pairwise(given):
        spans, texts = (design.span(first), design.span(second)), (design.text(first), design.text(second))
        if spans[0] and spans[1] and texts[0] and texts[1] and texts[0] != texts[1]:
            yield (Edit(*spans[0], texts[1]), Edit(*spans[1], texts[0]))


def branch(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """A branch removed: an else, an if without an else, or an item of a case."""
    kind = node.kind.name
    if kind == "ElseClause" or (kind == "StandardCaseItem" and scope.procedural):
        yield from _removed(design, node, listed=True)
    elif kind == "ConditionalStatement" and not children(node, "ElseClause"):
        yield from _removed(design, node, scope.listed)


def stuck(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """A signal that is always assigned 0."""
    if scope.loop or scope.reset or node.kind.name not in _ASSIGNMENTS:
        return
    right = children(node)[-1]
    if right.kind.name not in (*_LITERALS, "UnbasedUnsizedLiteralExpression"):
        yield from _rewritten(design, right, "0")


def operator(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """Another arithmetic, bitwise, logical or shift operator."""
    if not scope.dimension and not scope.loop and node.kind.name.endswith("Expression") and len(children(node)) == 2:
        yield from _exchanged(design, node, _BINARY)


def equality(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """``==`` instead of ``!=``, or the opposite."""
    kinds = ("EqualityExpression", "InequalityExpression")
    if not scope.dimension and not scope.loop and node.kind.name.endswith(kinds):
        yield from _exchanged(design, node, _EQUALITIES)


OPERATORS: dict[str, Operator] = {
    made.__name__: made
    for made in (
        constant, condition, off_by_one, edge, reset, width, assignment, ports, branch, stuck, operator, equality
    )
}  # fmt: skip
"""The operators by name. A change that several of them could make is attributed to the first."""


def _flat(node: Any) -> list[Any]:
    """The parts of a node, with lists replaced by their parts."""
    parts: list[Any] = []
    for part in children(node):
        parts += _flat(part) if part.kind.name in ("SeparatedList", "SyntaxList") else [part]
    return parts


def _rewritten(design: Design, node: Any, text: str) -> Iterator[Edits]:
    if span := design.span(node):
        yield (Edit(*span, text),)


def _removed(design: Design, node: Any, listed: bool) -> Iterator[Edits]:
    """Remove the node, with its lines if they are otherwise blank; or leave an empty statement if one is required."""
    span = design.span(node)
    if span and listed:
        yield (Edit(*design.whole_lines(*span), ""),)
    elif span:
        yield (Edit(*span, ";"),)


def _is_enclosed(text: str) -> bool:
    """Whether one pair of parentheses encloses the whole text."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text.startswith("(") and at == len(text) - 1
    return False


def _exchanged(design: Design, node: Any, pairs: dict[str, str]) -> Iterator[Edits]:
    """Replace a direct token of the node by another one, as given by `pairs`; one edit per token."""
    for part in node:
        if part is not None and is_token(part) and (text := design.text(part)) and text in pairs:
            yield from _rewritten(design, part, pairs[text])


def _other_value(design: Design, node: Any) -> Iterator[Edits]:
    """Replace a literal by one with the next value, or the previous value if the next does not fit."""
    text = design.text(node)
    if node.kind.name == "UnbasedUnsizedLiteralExpression" and text in ("'0", "'1"):
        yield from _rewritten(design, node, "'1" if text == "'0" else "'0")
    if not text or node.kind.name not in _LITERALS or not (match := _NUMBER.fullmatch(text)):
        return
    base = _BASES[match["base"].lower()] if match["base"] else 10
    digits = match["digits"].replace("_", "")
    try:
        value = int(digits, base)
    except ValueError:
        return
    bits = int(match["width"]) if match["width"] else 32
    value = value + 1 if value + 1 < 1 << bits else value - 1
    if value >= 0:
        yield from _rewritten(design, node, f"{match['head'] or ''}{_in_style(value, base, match['digits'])}")


def _in_style(value: int, base: int, model: str) -> str:
    """A number's digits in the style of another literal: same length, case and places of underscores."""
    digits = format(value, _FORMATS[base])
    digits = digits if base == 10 else digits.zfill(len(model.replace("_", "")))
    digits = digits.upper() if model != model.lower() else digits
    for place in [at for at, letter in enumerate(reversed(model)) if letter == "_"]:
        if place < len(digits):
            digits = f"{digits[:-place]}_{digits[-place:]}" if place else digits
    return digits
