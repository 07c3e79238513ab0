"""Accumulators: two consecutive operations; names, number formats and documents vary widely."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from . import registers
from .family import Exchange, Fields, SpecificationLine, always, asserted
from .looking import LOOKING_LINES, LookingFamily

BASES = {"decimal": ("", "", "d", 10), "hexadecimal": ("0x", "'h", "X", 16), "binary": ("0b", "'b", "b", 2)}
"""For each base: the prefix of numbers in documents and in designs, the format of the digits, and the base itself."""


def digits(fields: Fields) -> str:
    """The reset value's digits in its base, without a prefix."""
    return format(fields["value"], BASES[fields["base"]][2])


OPERANDS = {
    "plain": ("{data}", "the input", "as it is"),
    "invert": ("~{data}", "the inverted input", "inverted"),
    "negate": ("-{data}", "the negated input", "negated"),
    "left": ("{data} << 1", "the input shifted left by one", "shifted left by one"),
    "right": ("{data} >> 1", "the input shifted right by one", "shifted right by one"),
    "next": ("{data} + 1", "the input plus one", "plus one"),
}
"""The operand, as an expression and in words."""

EXPRESSIONS = {name: expression for name, expression in registers.EXPRESSIONS.items() if name != "invert"}
"""The next value of the output, by operation. `OPERANDS` covers inversion, so there is no operation for it."""

_LINES = {
    "document": SpecificationLine(
        (
            "Width and reset value are in `docs/{document}.md`.",
            "`docs/{document}.md` has the width and the reset value.",
            "For the width and the reset value see `docs/{document}.md`.",
            "Take the width and the reset value from `docs/{document}.md`.",
        ),
        (
            "See `docs/{document}.md` for the reset value and the width.",
            "The document with the width and the reset value is `docs/{document}.md`.",
        ),
        (
            "width and reset value | in `docs/{document}.md`",
            "document with width and reset value | `docs/{document}.md`",
        ),
        ("reset value and width | see `docs/{document}.md`",),
    ),
    **LOOKING_LINES,
    "operand": SpecificationLine(
        ("The operand is {operand_noun}.", "Its operand is {operand_noun}.", "{operand_first} is the operand."),
        ("As operand it has {operand_noun}.", "The input is the operand, {operand_word}."),
        ("operand | {operand_noun}", "the operand is | {operand_noun}"),
        ("operand: the input | {operand_word}",),
    ),
    "operation": registers.OPERATION_LINE,
}


def _read_base(fields: Fields) -> str:
    """The misread base: in small designs, digits that could be decimal are read as decimal; in large designs, decimal
    numbers of several digits are read as hexadecimal. The base stays if the value would not change.
    """
    text, base, small = digits(fields), str(fields["base"]), fields["width"] < 24
    read = base
    if small and ((base == "hexadecimal" and text.isdecimal()) or (base == "binary" and len(text) > 3)):
        read = "decimal"
    elif not small and base == "decimal" and len(text) > 1:
        read = "hexadecimal"
    same = (int(text, BASES[read][3]) - fields["value"]) % 2 ** fields["width"] == 0
    return base if same else read


def read_operand(fields: Fields) -> Exchange:
    """The misread operand: shifts go left with operations such as ``add`` and ``or``, and right with the others."""
    return {"right": "left"} if fields["operation"] in ("add", "add_sat", "or", "max", "load") else {"left": "right"}


def read_operation(fields: Fields) -> Exchange:
    """The misread operation: plain and inverted inputs wrap, and all others saturate."""
    return registers.WRAPPING if fields["operand"] in ("plain", "invert") else registers.SATURATING


class Accumulators(LookingFamily):
    """The family of accumulators. Whether a habit changes a value, and how, depends on other values."""

    name = "accumulators"
    heading = "Reset wins over enable. Without enable the output keeps its value. Data is unsigned."
    inputs = ("enable", "data")
    outputs = ("output",)
    axes = LookingFamily.axes | {
        "base": tuple(BASES),
        "operand": tuple(OPERANDS),
        "operation": tuple(EXPRESSIONS),
    }
    lines = LookingFamily.lines | _LINES
    habits = LookingFamily.habits | {
        "base": {"base": _read_base, "value": lambda fields: int(digits(fields), BASES[_read_base(fields)][3])},
        "operand": {"operand": read_operand},
        "saturation": {"operation": read_operation},
    }
    tests = "registers"
    size = "width"
    trained_sizes = range(4, 41)
    larger_sizes = range(41, 65)
    pair = ("operand", "operation")
    document_path = "docs/{}.md"
    tells = ("width", "base")
    facts = ("width", "value")
    smoke_template = "smoke.sv"

    def is_possible(self, fields: Fields) -> bool:
        """Whether the output can leave its reset value."""
        value, width, stuck = fields["value"], fields["width"], registers.stuck(fields)
        if fields["operand"] == "left":  # the operand is even
            stuck["max"] = stuck["or"] = value >= 2**width - 2
        if fields["operand"] == "right":  # its highest bit is 0
            stuck["max"] = value >= 2 ** (width - 1) - 1
            stuck["or"] |= value == 2 ** (width - 1) - 1
        return not stuck.get(fields["operation"], False)

    def phrases(self, fields: Fields) -> dict[str, str | int]:
        result, verb, noun = registers.WORDS[fields["operation"]]
        _, operand, word = OPERANDS[fields["operand"]]
        first = operand[0].upper() + operand[1:]
        operands = {"operand_noun": operand, "operand_word": word, "operand_first": first}
        return {**operands, "result": result, "verb": verb, "noun": noun}

    def draw_facts(self, rng: Random, values: Fields) -> dict[str, str | int]:
        """A random reset value that fits the width, with a random number of digits in its base."""
        top = 2 ** values["width"]
        first, last = {
            "decimal": rng.choice(((0, 9), (10, 99), (100, 999))),
            "hexadecimal": (16, 255),
            "binary": (2, 15),
        }[values["base"]]
        last = min(last, top - 1)
        return {"value": rng.randint(min(first, last), last)}

    def write(self, fields: Fields) -> str:
        output, value = fields["output"], BASES[fields["base"]][1] + digits(fields)
        operand = OPERANDS[fields["operand"]][0].format_map(fields)
        following = EXPRESSIONS[fields["operation"]].format_map(fields)
        return self.module(
            fields,
            {"data": "[W-1:0] ", "output": "reg [W-1:0] "},
            f"    wire [W-1:0] operand = {operand};\n"
            f"    {always(fields)}\n"
            f"        if ({asserted(fields, 'reset')}) {output} <= INIT;\n"
            f"        else if ({asserted(fields, 'enable')}) {output} <= {following};\n",
            f"#(\n    parameter W = {fields['width']},\n    parameter INIT = {value}\n) ",
        )

    def write_document(self, role: str, modules: Sequence[Fields], rng: Random) -> str:
        rows = []
        for one in modules:
            rows.append(f"| `{one['module']}` | width | {one['width']} |\n")
            rows.append(f"| `{one['module']}` | reset value | {BASES[one['base']][0]}{digits(one)} |\n")
        rng.shuffle(rows)
        return f"| module | property | value |\n|---|---|---|\n{''.join(rows)}"


ACCUMULATORS = Accumulators()
