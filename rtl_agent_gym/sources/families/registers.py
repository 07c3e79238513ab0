"""Registers that combine their value with an input; they vary in names, reset, enable, width and operation."""

from __future__ import annotations

from .family import Exchange, Family, Fields, SpecificationLine, always, asserted, bit_range, data_line, level_line

EXPRESSIONS = {
    "load": "operand",
    "invert": "~operand",
    "add": "{output} + operand",
    "add_sat": "operand > ~{output} ? '1 : {output} + operand",
    "sub": "{output} - operand",
    "sub_sat": "operand > {output} ? 0 : {output} - operand",
    "xor": "{output} ^ operand",
    "and": "{output} & operand",
    "or": "{output} | operand",
    "max": "operand > {output} ? operand : {output}",
    "min": "operand < {output} ? operand : {output}",
}
"""The next value of the output, by operation. The operand of a register is its input."""

WORDS = {
    "load": ("the operand", "loads the operand", "load the operand"),
    "invert": ("the inverted operand", "loads the inverted operand", "load the inverted operand"),
    "add": ("output plus operand, wrapping", "adds the operand and wraps", "add the operand, wrapping"),
    "add_sat": ("output plus operand, saturating", "adds the operand and saturates", "add the operand, saturating"),
    "sub": ("output minus operand, wrapping", "subtracts the operand and wraps", "subtract the operand, wrapping"),
    "sub_sat": (
        "output minus operand, saturating",
        "subtracts the operand and saturates",
        "subtract the operand, saturating",
    ),
    "xor": ("the xor of output and operand", "is xored with the operand", "xor with the operand"),
    "and": ("the bitwise and of output and operand", "is anded with the operand", "bitwise and with the operand"),
    "or": ("the bitwise or of output and operand", "is ored with the operand", "bitwise or with the operand"),
    "max": ("the larger of output and operand", "keeps the maximum of the operand", "maximum with the operand"),
    "min": ("the smaller of output and operand", "keeps the minimum of the operand", "minimum with the operand"),
}
"""Three wordings: what the output becomes, what the register does, and the operation's name."""

OPERATION_LINE = SpecificationLine(
    ("When enabled, the output becomes {result}.", "Each enabled cycle it {verb}.", "The operation is: {noun}."),
    ("The output becomes {result} when enabled.", "When enabled, it {verb}."),
    ("operation | {noun}", "output becomes | {result}"),
    ("when enabled | {verb}",),
)
_LINES = {
    "value": SpecificationLine(
        ("After reset the output is {value}.", "Reset sets the output to {value}.", "The reset value is {value}."),
        ("The output is {value} after reset.", "The value that reset sets is {value}."),
        ("reset value | {value}", "output after reset | {value}"),
        ("value after reset | {value}",),
    ),
    "enable": level_line("enable", "enable", "is enabled"),
    "data": data_line("data", "input"),
    "output": data_line("output", "output"),
    "width": SpecificationLine(
        ("Input and output have {width} bits.", "The width is {width}.", "The data is {width} bits wide."),
        ("{width} bits is the width.", "Input and output are {width} bits wide."),
        ("width | {width}", "data width | {width} bits"),
        ("bits | {width}",),
    ),
    "operation": OPERATION_LINE,
}


WRAPPING: Exchange = {"add_sat": "add", "sub_sat": "sub"}
SATURATING: Exchange = {"add": "add_sat", "sub": "sub_sat"}
"""Habits that replace saturating operations by wrapping ones, and the reverse."""


def stuck(fields: Fields) -> dict[str, bool]:
    """For each operation that can hold the output at its reset value forever, whether it does so with this value."""
    lowest, highest = fields["value"] == 0, fields["value"] == 2 ** fields["width"] - 1
    return {"and": lowest, "min": lowest, "sub_sat": lowest, "or": highest, "max": highest, "add_sat": highest}


class Registers(Family):
    """The family of registers."""

    name = "registers"
    heading = "# Register\n\nReset wins over enable. Without enable the output keeps its value. Data is unsigned."
    inputs = ("enable", "data")
    outputs = ("output",)
    axes = Family.axes | {
        "value": tuple(range(16)),
        "enable_level": (0, 1),
        "width": tuple(range(4, 17)),
        "operation": tuple(EXPRESSIONS),
    }
    lines = Family.lines | _LINES
    habits = Family.habits | {
        "value": {"value": 0},
        "enable": {"enable_level": 1},
        "width": {"width": 8},
        "output": {"output": "q"},
        "wrap": {"operation": WRAPPING},
    }

    def is_possible(self, fields: Fields) -> bool:
        """Whether the output can leave its reset value."""
        return not stuck(fields).get(fields["operation"], False)

    def phrases(self, fields: Fields) -> dict[str, str | int]:
        result, verb, noun = (words.replace("operand", "input") for words in WORDS[fields["operation"]])
        return {"result": result, "verb": verb, "noun": noun}

    def write(self, fields: Fields) -> str:
        bits, output = bit_range(fields["width"]), fields["output"]
        expression = EXPRESSIONS[fields["operation"]].replace("operand", "{data}")
        return self.module(
            fields,
            {"data": bits, "output": f"reg {bits}"},
            f"    {always(fields)}\n"
            f"        if ({asserted(fields, 'reset')}) {output} <= {fields['value']};\n"
            f"        else if ({asserted(fields, 'enable')}) {output} <= "
            f"{expression.format_map(fields)};\n",
        )
