"""Registers that combine their value with an input: names, reset, enable, width and operation."""

from __future__ import annotations

from rtl_agent_gym.sources.families.family import (
    COMMON_AXES,
    COMMON_LINES,
    RESET_HABIT,
    Family,
    Fields,
    SpecificationLine,
    always,
    asserted,
    bit_range,
    reset_phrases,
    write_module,
)

_EXPRESSIONS = {
    "load": "{data}",
    "invert": "~{data}",
    "add": "{output} + {data}",
    "add_sat": "{data} > ~{output} ? '1 : {output} + {data}",
    "sub": "{output} - {data}",
    "sub_sat": "{data} > {output} ? 0 : {output} - {data}",
    "xor": "{output} ^ {data}",
    "and": "{output} & {data}",
    "or": "{output} | {data}",
    "max": "{data} > {output} ? {data} : {output}",
    "min": "{data} < {output} ? {data} : {output}",
}
"""The next value of the output, by operation."""

_WORDS = {
    "load": ("the input", "loads the input", "load the input"),
    "invert": ("the inverted input", "loads the inverted input", "load the inverted input"),
    "add": ("output plus input, wrapping", "adds the input and wraps", "add the input, wrapping"),
    "add_sat": ("output plus input, saturating", "adds the input and saturates", "add the input, saturating"),
    "sub": ("output minus input, wrapping", "subtracts the input and wraps", "subtract the input, wrapping"),
    "sub_sat": (
        "output minus input, saturating",
        "subtracts the input and saturates",
        "subtract the input, saturating",
    ),
    "xor": ("the xor of output and input", "is xored with the input", "xor with the input"),
    "and": ("the bitwise and of output and input", "is anded with the input", "bitwise and with the input"),
    "or": ("the bitwise or of output and input", "is ored with the input", "bitwise or with the input"),
    "max": ("the larger of output and input", "keeps the maximum of the input", "maximum with the input"),
    "min": ("the smaller of output and input", "keeps the minimum of the input", "minimum with the input"),
}
"""What the output becomes, what the register does, and what the operation is."""

_LINES = {
    **COMMON_LINES,
    "value": SpecificationLine(
        ("After reset the output is {value}.", "Reset sets the output to {value}.", "The reset value is {value}."),
        ("The output is {value} after reset.", "The value that reset sets is {value}."),
        ("reset value | {value}", "output after reset | {value}"),
        ("value after reset | {value}",),
    ),
    "enable": SpecificationLine(
        (
            "The enable is `{enable}`, active {enable_word}.",
            "The enable `{enable}` is active {enable_word}.",
            "When `{enable}` is {enable_level}, it is enabled.",
        ),
        ("It has an active {enable_word} enable `{enable}`.", "It is enabled when `{enable}` is {enable_level}."),
        ("enable | `{enable}`, active {enable_word}", "enable input | `{enable}`, active {enable_word}"),
        ("active {enable_word} enable | `{enable}`",),
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
    "width": SpecificationLine(
        ("Input and output have {width} bits.", "The width is {width}.", "The data is {width} bits wide."),
        ("{width} bits is the width.", "Input and output are {width} bits wide."),
        ("width | {width}", "data width | {width} bits"),
        ("bits | {width}",),
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
    return not stuck.get(str(fields["operation"]), False)


def _phrases(fields: Fields) -> dict[str, str | int]:
    result, verb, noun = _WORDS[str(fields["operation"])]
    return {**reset_phrases(fields), "result": result, "verb": verb, "noun": noun}


def _write(fields: Fields) -> str:
    bits, output = bit_range(fields["width"]), fields["output"]
    expression = _EXPRESSIONS[str(fields["operation"])]
    return write_module(
        fields,
        [
            f"input wire {fields['enable']}",
            f"input wire {bits}{fields['data']}",
            f"output reg {bits}{output}",
        ],
        f"    {always(fields)}\n"
        f"        if ({asserted(fields, 'reset')}) {output} <= {fields['value']};\n"
        f"        else if ({asserted(fields, 'enable')}) {output} <= "
        f"{expression.format_map(fields)};\n",
    )


REGISTERS = Family(
    name="registers",
    heading="# Register\n\nReset wins over enable. Without enable the output keeps its value. Data is unsigned.",
    inputs=("enable", "data"),
    outputs=("output",),
    axes={
        **COMMON_AXES,
        "value": tuple(range(16)),
        "enable_level": (0, 1),
        "width": tuple(range(4, 17)),
        "operation": tuple(_EXPRESSIONS),
    },
    is_possible=_is_possible,
    lines=_LINES,
    phrases=_phrases,
    habits={
        "reset": RESET_HABIT,
        "value": {"value": 0},
        "enable": {"enable_level": 1},
        "width": {"width": 8},
        "output": {"output": "q"},
        "wrap": {"operation": {"add_sat": "add", "sub_sat": "sub"}},
    },
    write=_write,
)
