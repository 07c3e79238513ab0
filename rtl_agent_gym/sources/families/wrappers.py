"""Modules around an instance of a given module. Only its file shows its ports, parameter, latency and polarity."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from . import registers
from .accumulators import EXPRESSIONS, OPERANDS, read_operand, read_operation
from .family import Fields, SpecificationLine, always, asserted, bit_range
from .looking import LOOKING_LINES, LookingFamily

FUNCTIONS = {
    "sub": "{first} - {second}",
    "floor": "{first} > {second} ? {first} - {second} : 0",
    "and": "{first} & ~{second}",
    "or": "{first} | ~{second}",
    "twice": "{first} + ({second} << 1)",
    "half": "{first} ^ ({second} >> 1)",
}
"""What a given module computes before it adds its constant. None of these is commutative."""
_INITIAL = {"zero": ("0", "0"), "ones": ("'1", "all ones")}
"""The reset value in a design and in words."""
_PORTS = ("tick", "run", "first", "second", "result")
_GIVEN = (*_PORTS, "parameter")
"""The roles of the names in the given module; for the other document's module they begin with ``other_``."""

_LINES = {
    "document": SpecificationLine(
        (
            "It uses an instance of `{document}` (`rtl/{document}.sv`).",
            "Inside is an instance of `{document}` from `rtl/{document}.sv`.",
            "Instantiate `{document}`, which is in `rtl/{document}.sv`.",
        ),
        (
            "It needs one instance of the module of `rtl/{document}.sv`.",
            "The module has one `{document}` inside, from `rtl/{document}.sv`.",
        ),
        ("instance | `{document}` from `rtl/{document}.sv`", "instantiate | `{document}` (`rtl/{document}.sv`)"),
        ("has an instance | `{document}`, see `rtl/{document}.sv`",),
    ),
    "enable": LOOKING_LINES["enable"],
    "output": LOOKING_LINES["output"],
    "first": SpecificationLine(
        (
            "The first operand is `{left}`, {operand_word}.",
            "Its first operand is the input `{left}`, {operand_word}.",
            "The input `{left}`, {operand_word}, is the first operand.",
        ),
        ("As first operand it has `{left}`, {operand_word}.", "`{left}`, {operand_word}, is the first operand."),
        ("first operand | `{left}`, {operand_word}", "input, first operand | `{left}`, {operand_word}"),
        ("operand 1 | `{left}`, {operand_word}",),
    ),
    "second": SpecificationLine(
        (
            "The second operand is `{right}`.",
            "Its second operand is the input `{right}`.",
            "`{right}` is the second operand.",
        ),
        ("As second operand it has `{right}`.", "The input `{right}` is the second operand."),
        ("second operand | `{right}`", "input, second operand | `{right}`"),
        ("operand 2 | `{right}`",),
    ),
    "width": SpecificationLine(
        ("All data has {width} bits.", "Operands, results and output have {width} bits.", "The data width is {width}."),
        ("Its data has a width of {width} bits.", "{width} is the width of all data."),
        ("data width | {width}", "width of all data | {width} bits"),
        ("bits of all data | {width}",),
    ),
    "initial": SpecificationLine(
        (
            "In reset the output is {initial_words}.",
            "The reset value is {initial_words}.",
            "It is reset to {initial_words}.",
        ),
        ("A reset sets the output to {initial_words}.", "After a reset the output is {initial_words}."),
        ("reset value | {initial_words}", "output in reset | {initial_words}"),
        ("value after a reset | {initial_words}",),
    ),
    "operation": SpecificationLine(
        ("With each result the output becomes {becomes}.", "With each result it {verb}.", "The operation is: {noun}."),
        ("The output becomes {becomes} for each result.", "For each result, it {verb}."),
        ("operation | {noun}", "with each result, output becomes | {becomes}"),
        ("for each result | {verb}",),
    ),
}


def _read_latency(fields: Fields) -> int:
    """The misread latency: one more in small designs, and one less in large ones."""
    latency: int = fields["latency"]
    return min(latency + 1, 4) if fields["width"] < 24 else max(latency - 1, 1)


def _set_parameter(fields: Fields) -> str:
    """The parameter's name, but empty (it is not set) if its default is at least half of the width."""
    return fields["parameter"] if 2 * fields["default"] < fields["width"] else ""


class Wrappers(LookingFamily):
    """The family of wrappers: problems with several modules, where the given module is known only from its file."""

    name = "wrappers"
    heading = (
        "A module around an instance of a given one. The instance's parameter is the data width. It runs in every\n"
        "cycle, in reset too. The operands at each enabled clock edge have one result. It is used at the first clock\n"
        "edge at which the instance's output has it; at all other edges the output keeps its value. Reset wins, and\n"
        "drops the results that are not used yet. Data is unsigned."
    )
    inputs = ("enable", "left", "right")
    outputs = ("output",)
    axes = LookingFamily.axes | {
        "run_level": (0, 1),
        "initial": tuple(_INITIAL),
        "operand": tuple(OPERANDS),
        "operation": tuple(EXPRESSIONS),
    }
    lines = LookingFamily.lines | _LINES
    habits = LookingFamily.habits | {
        "run": {"run_level": lambda fields: 0 if fields["run"].endswith("_n") else 1},
        "order": {  # of the ports by their names
            "first": lambda fields: min(fields["first"], fields["second"]),
            "second": lambda fields: max(fields["first"], fields["second"]),
        },
        "latency": {"latency": _read_latency},
        "default": {"parameter": _set_parameter},
        "operand": {"operand": read_operand},
        "saturation": {"operation": read_operation},
    }
    category = 5
    size = "width"
    trained_sizes = range(4, 41)
    larger_sizes = range(41, 65)
    pair = ("operand", "operation")
    document_path = "rtl/{}.sv"
    tells = ("run_level",)
    facts = ("width", "function", "latency", "offset")
    document_roles = (*_GIVEN, *(f"other_{role}" for role in _GIVEN))
    described = ("module",)

    def is_possible(self, fields: Fields) -> bool:
        """Whether the output can leave its reset value."""
        stuck = {"zero": ("and", "min", "sub_sat"), "ones": ("or", "max", "add_sat")}
        return fields["operation"] not in stuck[fields["initial"]]

    def phrases(self, fields: Fields) -> dict[str, str | int]:
        becomes, verb, noun = (words.replace("operand", "result") for words in registers.WORDS[fields["operation"]])
        words = {"operand_word": OPERANDS[fields["operand"]][2], "initial_words": _INITIAL[fields["initial"]][1]}
        return {**words, "becomes": becomes, "verb": verb, "noun": noun}

    def draw_facts(self, rng: Random, values: Fields) -> dict[str, str | int]:
        default = rng.randrange(2, values["width"])
        function, latency = rng.choice(list(FUNCTIONS)), rng.randint(1, 4)
        return {"default": default, "function": function, "latency": latency, "offset": rng.randrange(16)}

    def write(self, fields: Fields) -> str:
        """Write the design. If the parameter's name is empty, the instance keeps the default."""
        data, latency = bit_range(fields["width"]), fields["latency"]
        first = OPERANDS[fields["operand"]][0].format(data=fields["left"])
        following = EXPRESSIONS[fields["operation"]].replace("operand", "wire_result").format_map(fields)
        parameter = f"#(.{fields['parameter']}({fields['width']})) " if fields["parameter"] else ""
        driven = (fields["clock"], f"1'b{fields['run_level']}", "wire_first", fields["right"], "wire_result")
        connections = ", ".join(f".{fields[role]}({to})" for role, to in zip(_PORTS, driven, strict=True))
        return self.module(
            fields,
            {"left": data, "right": data, "output": f"reg {data}"},
            f"    wire {data}wire_first = {first};\n"
            f"    wire {data}wire_result;\n"
            f"    wire wire_enable = ({asserted(fields, 'enable')});\n"
            f"    reg {bit_range(latency)}reg_valid;\n"
            f"    {fields['document']} {parameter}the_instance ({connections});\n"
            f"    {always(fields)}\n"
            f"        if ({asserted(fields, 'reset')}) begin\n"
            f"            reg_valid <= 0;\n"
            f"            {fields['output']} <= {_INITIAL[fields['initial']][0]};\n"
            f"        end else begin\n"
            f"            reg_valid <= {{reg_valid, wire_enable}};\n"
            f"            if (reg_valid[{latency - 1}]) {fields['output']} <= {following};\n"
            f"        end\n",
        )

    def write_document(self, role: str, modules: Sequence[Fields], rng: Random) -> str:
        """The file of a given module, with its ports in random order."""
        (fields,) = modules
        names = {name: fields[name if role == "document" else f"other_{name}"] for name in _GIVEN}
        stages = range(1, fields["latency"] + 1)
        data, comments = f"[{names['parameter']}-1:0] ", {"first": " // first operand", "second": " // second operand"}
        lines = []
        order = rng.sample(_PORTS, len(_PORTS))
        for port in order:
            kind = f"{'output' if port == 'result' else 'input'} wire {'' if port in ('tick', 'run') else data}"
            comma = "," if port != order[-1] else ""
            lines.append(f"    {kind}{names[port]}{comma}{comments.get(port, '')}\n")
        computed = f"({FUNCTIONS[fields['function']].format_map(names)}) + {fields['offset']}"
        loads = "".join(f"            reg_{at} <= {f'reg_{at - 1}' if at > 1 else computed};\n" for at in stages)
        return (
            f"module {fields[role]} #(\n"
            f"    parameter {names['parameter']} = {fields['default']}\n"
            f") (\n"
            f"{''.join(lines)}"
            f");\n"
            f"    reg {data}{', '.join(f'reg_{at}' for at in stages)};\n"
            f"    assign {names['result']} = reg_{stages[-1]};\n"
            f"    always @(posedge {names['tick']})\n"
            f"        if ({'' if fields['run_level'] else '!'}{names['run']}) begin\n"
            f"{loads}"
            f"        end\n"
            f"endmodule\n"
        )

    def draw_names(self, rng: Random, held_out: bool) -> dict[str, str]:
        """As in the base class, but the given module and the other one have similar names."""
        while True:
            names = super().draw_names(rng, held_out)
            pair = [names["document"], f"{names['document']}_{rng.choice('abcdefgh')}"]
            if pair[1] not in names.values():
                names["document"], names["other_document"] = rng.sample(pair, 2)
                return names
