"""The twelve operators: each makes one small change that a person could have made by mistake.

An operator is a function of a node of the syntax tree. It yields its edits of that node, each a tuple of replacements
that are made together. What a macro or an included file contributes is never changed, and neither are parameters,
initial values, assertions and delays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from rtl_agent_gym.problems.mutants.tree import Design, Edit, Scope, children, is_reset, is_token

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
_NEGATED = re.compile(r"![A-Za-z_][\w.]*")
_MINUS = re.compile(r"(.*-\s*)(\d+)", re.DOTALL)
_EDGES = {"posedge": "negedge", "negedge": "posedge"}


def constant(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """Another value of a literal."""
    if scope.dimension or scope.loop or scope.reset:
        return
    if node.kind.name in (*_SUMS, *_COMPARISONS, *_LITERALS):
        return  # its parent yields a literal; those of sums and comparisons belong to `off_by_one`
    for part in children(node):
        yield from _other_value(design, part)


def condition(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """The opposite of a condition."""
    if node.kind.name == "ConditionalPredicate" and (text := design.text(node)):
        if _NEGATED.fullmatch(text):
            yield from _rewritten(design, node, text[1:])
        elif _NAME.fullmatch(text) or _is_enclosed(text):
            yield from _rewritten(design, node, f"!{text}")
        else:
            yield from _rewritten(design, node, f"!({text})")


def off_by_one(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """A bound that is included instead of excluded, or one more or less in a sum or a comparison."""
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
    """Another reset value, a register that is not reset, or a reset that is no longer asynchronous."""
    kind = node.kind.name
    if kind == "BinaryEventExpression":
        events, span = children(node), design.span(node)
        kept = [event for event in events if not is_reset(event)]
        if len(events) == 2 and len(kept) == 1 and span and (text := design.text(kept[0])):
            yield (Edit(*span, text),)
    elif kind == "SignalEventExpression" and is_reset(node):
        yield from _exchanged(design, node, _EDGES)
    elif scope.reset and kind == "ExpressionStatement":
        yield from _removed(design, node, scope)
    elif scope.reset and not scope.dimension and not scope.loop and kind in _ASSIGNMENTS:
        for part in children(node)[1:]:
            yield from _other_value(design, part)


def width(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """A signal or a part select that is one bit narrower."""
    if node.kind.name != "SimpleRangeSelect" or scope.port:
        return
    left, right = (design.text(part) for part in children(node))
    span = design.span(children(node)[0])
    if not left or not span or left == right or right is None:
        return
    if left.isdigit():
        if int(left) > 0 and not (right.isdigit() and int(left) < int(right)):
            yield (Edit(*span, str(int(left) - 1)),)
    elif match := _MINUS.fullmatch(left):
        yield (Edit(*span, f"{match[1]}{int(match[2]) + 1}"),)
    else:
        yield (Edit(*span, f"{left} - 1"),)


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
    """A branch that is missing: an else, the statement of an if, an item of a case."""
    kind = node.kind.name
    if kind == "ElseClause" or (kind == "StandardCaseItem" and scope.procedural):
        yield from _removed(design, node, Scope(listed=True))
    elif kind == "ConditionalStatement" and not children(node, "ElseClause"):
        yield from _removed(design, node, scope)


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
    """``==`` for ``!=``, or the opposite."""
    if (
        not scope.dimension
        and not scope.loop
        and node.kind.name.endswith(("EqualityExpression", "InequalityExpression"))
    ):
        yield from _exchanged(design, node, _EQUALITIES)


OPERATORS: dict[str, Operator] = {
    made.__name__: made
    for made in (
        constant, condition, off_by_one, edge, reset, width, assignment, ports, branch, stuck, operator, equality
    )
}  # fmt: skip
"""The operators by name. The order decides which one gets a change that two of them could make."""


def _flat(node: Any) -> list[Any]:
    """The parts of a node, with those of the lists in it."""
    parts: list[Any] = []
    for part in children(node):
        parts += _flat(part) if part.kind.name in ("SeparatedList", "SyntaxList") else [part]
    return parts


def _rewritten(design: Design, node: Any, text: str) -> Iterator[Edits]:
    """Another text for a node."""
    if span := design.span(node):
        yield (Edit(*span, text),)


def _removed(design: Design, node: Any, scope: Scope) -> Iterator[Edits]:
    """The node removed, with its lines if there is nothing else in them; an empty statement where one is needed."""
    span = design.span(node)
    if span and scope.listed:
        yield (Edit(*design.whole_lines(*span), ""),)
    elif span:
        yield (Edit(*span, ";"),)


def _is_enclosed(text: str) -> bool:
    """Whether one pair of parentheses holds all of a text."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text.startswith("(") and at == len(text) - 1
    return False


def _exchanged(design: Design, node: Any, pairs: dict[str, str]) -> Iterator[Edits]:
    """Each direct token of the node that is a key, replaced by its value."""
    for part in node:
        if part is None or not is_token(part):
            continue
        span, text = design.span(part), design.text(part)
        if span and text in pairs:
            yield (Edit(*span, pairs[text]),)


def _other_value(design: Design, node: Any) -> Iterator[Edits]:
    """A literal with the next value, or the one before if the next does not fit."""
    span, text = design.span(node), design.text(node)
    if span and text and node.kind.name == "UnbasedUnsizedLiteralExpression" and text in ("'0", "'1"):
        yield (Edit(*span, "'1" if text == "'0" else "'0"),)
    if not span or not text or node.kind.name not in _LITERALS or not (match := _NUMBER.fullmatch(text)):
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
        yield (Edit(*span, f"{match['head'] or ''}{_in_style(value, base, match['digits'])}"),)


def _in_style(value: int, base: int, model: str) -> str:
    """A number's digits, written as in another literal: as many, in its case, with underscores in the same places."""
    digits = format(value, _FORMATS[base])
    digits = digits if base == 10 else digits.zfill(len(model.replace("_", "")))
    digits = digits.upper() if model != model.lower() else digits
    for place in [at for at, letter in enumerate(reversed(model)) if letter == "_"]:
        if place < len(digits):
            digits = f"{digits[:-place]}_{digits[-place:]}" if place else digits
    return digits
