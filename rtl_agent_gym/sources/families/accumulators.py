"""Accumulators: two operations, one after the other, with names, numbers and documents of every kind."""

from __future__ import annotations

from rtl_agent_gym.sources.families.family import (
    COMMON_AXES,
    COMMON_LINES,
    Fields,
    SpecificationLine,
    always,
    asserted,
    reset_phrases,
)
from rtl_agent_gym.sources.families.looking import BASES, LOOKING_LINES, LookingFamily, digits

_OPERANDS = {
    "plain": ("{data}", "the input", "as it is"),
    "invert": ("~{data}", "the inverted input", "inverted"),
    "negate": ("-{data}", "the negated input", "negated"),
    "left": ("{data} << 1", "the input shifted left by one", "shifted left by one"),
    "right": ("{data} >> 1", "the input shifted right by one", "shifted right by one"),
    "next": ("{data} + 1", "the input plus one", "plus one"),
}
"""The expression of the operand, and its words."""

_EXPRESSIONS = {
    "load": "operand",
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
"""The next value of the output, by operation."""

_WORDS = {
    "load": ("the operand", "loads the operand", "load the operand"),
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
"""What the output becomes, what the module does, and what the operation is."""

_LINES = {
    **COMMON_LINES,
    **LOOKING_LINES,
    "enable": SpecificationLine(
        (
            "The enable is `{enable}`; the smoke test knows its polarity.",
            "`{enable}` is the enable, of a polarity that the smoke test tells.",
            "The smoke test tells the polarity of the enable `{enable}`.",
        ),
        (
            "The polarity of the enable `{enable}` is known to the smoke test.",
            "It has the enable `{enable}`, and the smoke test tells its polarity.",
        ),
        ("enable | `{enable}`, polarity by the smoke test", "enable input | `{enable}`, see the smoke test"),
        ("enable, with the polarity of the smoke test | `{enable}`",),
    ),
    "data": SpecificationLine(
        ("The input is `{data}`.", "The data input is `{data}`.", "`{data}` is the input."),
        ("It has the input `{data}`.", "As input it has `{data}`."),
        ("input | `{data}`", "data input | `{data}`"),
        ("input of data | `{data}`",),
    ),
    "output": SpecificationLine(
        ("The output is `{output}`.", "The data output is `{output}`.", "`{output}` is the output."),
        ("It has the output `{output}`.", "As output it has `{output}`."),
        ("output | `{output}`", "data output | `{output}`"),
        ("output of data | `{output}`",),
    ),
    "operand": SpecificationLine(
        ("The operand is {operand_noun}.", "Its operand is {operand_noun}.", "{operand_first} is the operand."),
        ("As operand it has {operand_noun}.", "The input is the operand, {operand_word}."),
        ("operand | {operand_noun}", "the operand is | {operand_noun}"),
        ("operand: the input | {operand_word}",),
    ),
    "operation": SpecificationLine(
        ("When enabled, the output becomes {result}.", "Each enabled cycle it {verb}.", "The operation is: {noun}."),
        ("The output becomes {result} when enabled.", "When enabled, it {verb}."),
        ("operation | {noun}", "output becomes | {result}"),
        ("when enabled | {verb}",),
    ),
}


def _is_possible(fields: Fields) -> bool:
    """Whether the output can leave its reset value."""
    lowest, highest = fields["value"] == 0, fields["value"] == 2 ** int(fields["width"]) - 1
    stuck = {"and": lowest, "min": lowest, "sub_sat": lowest, "or": highest, "max": highest, "add_sat": highest}
    value, width = int(fields["value"]), int(fields["width"])
    if fields["operand"] == "left":  # the operand is even
        stuck["max"] = stuck["or"] = value >= 2**width - 2
    if fields["operand"] == "right":  # its highest bit is 0
        stuck["max"] = value >= 2 ** (width - 1) - 1
        stuck["or"] = highest or value == 2 ** (width - 1) - 1
    return not stuck.get(str(fields["operation"]), False)


def _phrases(fields: Fields) -> dict[str, str | int]:
    result, verb, noun = _WORDS[str(fields["operation"])]
    _, operand, word = _OPERANDS[str(fields["operand"])]
    first = operand[0].upper() + operand[1:]
    operands = {"operand_noun": operand, "operand_word": word, "operand_first": first}
    return {**reset_phrases(fields), **operands, "result": result, "verb": verb, "noun": noun}


def _write(fields: Fields) -> str:
    output, value = fields["output"], BASES[str(fields["base"])][1] + digits(fields)
    operand = _OPERANDS[str(fields["operand"])][0].format_map(fields)
    following = _EXPRESSIONS[str(fields["operation"])].format_map(fields)
    return (
        f"module {fields['module']} #(\n"
        f"    parameter W = {fields['width']},\n"
        f"    parameter INIT = {value}\n"
        f") (\n"
        f"    input wire {fields['clock']},\n"
        f"    input wire {fields['reset']},\n"
        f"    input wire {fields['enable']},\n"
        f"    input wire [W-1:0] {fields['data']},\n"
        f"    output reg [W-1:0] {output}\n"
        f");\n"
        f"    wire [W-1:0] operand = {operand};\n"
        f"    {always(fields)}\n"
        f"        if ({asserted(fields, 'reset')}) {output} <= INIT;\n"
        f"        else if ({asserted(fields, 'enable')}) {output} <= {following};\n"
        f"endmodule\n"
    )


_RADIX = {"decimal": 10, "hexadecimal": 16, "binary": 2}


def _read_level(fields: Fields) -> int:
    """The level of an asynchronous reset for who believes its name instead of the specification."""
    if fields["reset_kind"] == "sync":
        return int(fields["reset_level"])
    return 0 if str(fields["reset"]).endswith("_n") else 1


def _read_base(fields: Fields) -> str:
    """The base for who takes digits that could be decimal for decimal in small designs, and long decimal numbers for
    hexadecimal in large ones.
    """
    text, base = digits(fields), str(fields["base"])
    read, small = base, int(fields["width"]) < 24
    if small and ((base == "hexadecimal" and text.isdecimal()) or (base == "binary" and len(text) > 3)):
        read = "decimal"
    elif not small and base == "decimal" and len(text) > 1:
        read = "hexadecimal"
    same = (int(text, _RADIX[read]) - int(fields["value"])) % 2 ** int(fields["width"]) == 0
    return base if same else read


def _read_value(fields: Fields) -> int:
    """The value of the same digits in that base."""
    return int(digits(fields), _RADIX[_read_base(fields)])


def _read_operand(fields: Fields) -> str:
    """The operand for who shifts to the left with what makes the output larger, and to the right with the rest."""
    operand, operation = fields["operand"], fields["operation"]
    if operand == "left" and operation in ("sub", "sub_sat", "and", "min", "xor"):
        return "right"
    if operand == "right" and operation in ("add", "add_sat", "or", "max", "load"):
        return "left"
    return str(operand)


def _read_operation(fields: Fields) -> str:
    """The operation for who lets only changed inputs saturate."""
    operation = str(fields["operation"])
    if operation in ("add", "sub") and fields["operand"] in ("left", "right", "negate", "next"):
        return f"{operation}_sat"
    if operation in ("add_sat", "sub_sat") and fields["operand"] in ("plain", "invert"):
        return operation.removesuffix("_sat")
    return operation


ACCUMULATORS = LookingFamily(
    name="accumulators",
    heading="Reset wins over enable. Without enable the output keeps its value. Data is unsigned.",
    inputs=("enable", "data"),
    outputs=("output",),
    axes={
        **COMMON_AXES,
        "enable_level": (0, 1),
        "base": tuple(BASES),
        "operand": tuple(_OPERANDS),
        "operation": tuple(_EXPRESSIONS),
    },
    is_possible=_is_possible,
    lines=_LINES,
    phrases=_phrases,
    habits={
        "reset": {"reset_level": _read_level},
        "kind": {"reset_kind": lambda fields: "async" if str(fields["reset"]).endswith("_n") else "sync"},
        "base": {"base": _read_base, "value": _read_value},
        "operand": {"operand": _read_operand},
        "saturation": {"operation": _read_operation},
    },
    write=_write,
)
"""A family of problems whose habits depend on what the specification says, in both directions."""
