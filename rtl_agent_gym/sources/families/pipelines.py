"""Pipelines of two operations. A table has the number of stages, the width and the operations' constants."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from .family import Exchange, Fields, SpecificationLine, always, asserted, bit_range
from .looking import LOOKING_LINES, LookingFamily
from .registers import SATURATING, WRAPPING

OPERATIONS = {
    "add": ("{value} + {constant}", "{value} plus {constant}, wrapping"),
    "add_sat": ("{value} > ~{constant} ? '1 : {value} + {constant}", "{value} plus {constant}, saturating"),
    "sub": ("{value} - {constant}", "{value} minus {constant}, wrapping"),
    "sub_sat": ("{value} > {constant} ? {value} - {constant} : 0", "{value} minus {constant}, saturating"),
    "from": ("{constant} - {value}", "{constant} minus {value}, wrapping"),
    "xor": ("{value} ^ {constant}", "{value} xor {constant}"),
    "mul": ("{value} * {constant}", "{value} times {constant}, wrapping"),
    "max": ("{value} > {constant} ? {value} : {constant}", "the larger of {value} and {constant}"),
}
"""Each of the two operations, as an expression and in words."""
CONTROLS = {
    "stall": "nothing changes",
    "block": "no data is taken",
    "flush": "no data is taken, and all results on their way are dropped",
}
"""What happens at a clock edge while ready is inactive."""
IDLE = {"hold": ("0", "the last result"), "zero": ("0", "0"), "ones": ("'1", "all ones")}
"""The output without a result: its value after a reset, and in words."""
_COLUMNS = {"stages": "stages", "width": "width", "first_constant": "A", "second_constant": "B"}
_FEWEST, _MOST = 2, 6

_LINES = {
    "document": SpecificationLine(
        (
            "Its stages, its width, A and B are in `docs/{document}.csv`.",
            "`docs/{document}.csv` has its stages, its width, A and B.",
            "For its stages, its width, A and B see `docs/{document}.csv`.",
        ),
        (
            "See `docs/{document}.csv` for A, B, its width and its stages.",
            "The file with A, B, its width and its stages is `docs/{document}.csv`.",
        ),
        ("stages, width, A and B | in `docs/{document}.csv`", "file of parameters | `docs/{document}.csv`"),
        ("A, B, width and stages | see `docs/{document}.csv`",),
    ),
    **LOOKING_LINES,
    "ready": SpecificationLine(
        (
            "The ready input is `{ready}`, active {ready_word}: without it, {control_words}.",
            "When `{ready}`, which is active {ready_word}, is not, {control_words}.",
            "Unless the ready input `{ready}` is {ready_level}, {control_words}.",
        ),
        (
            "It has the ready input `{ready}`: unless it is {ready_level}, {control_words}.",
            "If the active {ready_word} ready input `{ready}` is not active, {control_words}.",
        ),
        (
            "without ready (`{ready}`, active {ready_word}) | {control_words}",
            "unless `{ready}` is {ready_level} | {control_words}",
        ),
        ("ready | `{ready}`, active {ready_word}; without it, {control_words}",),
    ),
    "valid": SpecificationLine(
        (
            "The valid output `{valid}` is active {valid_word}.",
            "When there is a result, `{valid}` is {valid_level}.",
            "Valid is `{valid}`, active {valid_word}.",
        ),
        ("It has an active {valid_word} valid output `{valid}`.", "`{valid}` is {valid_level} when there is a result."),
        ("valid output | `{valid}`, active {valid_word}", "shows a result | `{valid}`, active {valid_word}"),
        ("active {valid_word} valid output | `{valid}`",),
    ),
    "idle": SpecificationLine(
        (
            "Without a result the output is {idle_words}.",
            "The output is {idle_words} when there is no result.",
            "When not valid, the output is {idle_words}.",
        ),
        ("If there is no result, the output is {idle_words}.", "While it is not valid the output is {idle_words}."),
        ("output without a result | {idle_words}", "output when not valid | {idle_words}"),
        ("no result: output is | {idle_words}",),
    ),
    "first": SpecificationLine(
        (
            "The first value is {first_words}.",
            "First it computes {first_words}.",
            "From the input it makes the first value: {first_words}.",
        ),
        ("As first value it computes {first_words}.", "Its first value is {first_words}."),
        ("first value | {first_words}", "first operation | {first_words}"),
        ("the first value is | {first_words}",),
    ),
    "second": SpecificationLine(
        ("The result is {second_words}.", "Then it computes {second_words}.", "Its result: {second_words}."),
        ("As result it has {second_words}.", "From the first value it computes {second_words}."),
        ("result | {second_words}", "second operation | {second_words}"),
        ("the result is | {second_words}",),
    ),
}


def _read_stages(fields: Fields) -> int:
    """The misread number of stages: one more for narrow data, and one less for wide data."""
    stages: int = fields["stages"]
    return min(stages + 1, _MOST) if fields["width"] < 16 else max(stages - 1, _FEWEST)


def _read_minuend(other: str) -> Exchange:
    """The misread subtraction: ``sub`` becomes ``from`` if the other operation is bounded, otherwise the reverse."""
    return {"sub": "from"} if other in ("add_sat", "sub_sat", "max") else {"from": "sub"}


def _read_saturation(fields: Fields) -> Exchange:
    """The misread second operation: saturating after ``mul``, ``xor``, ``from`` and ``sub``, wrapping after others."""
    return SATURATING if fields["first"] in ("mul", "xor", "from", "sub") else WRAPPING


def _read_idle(fields: Fields) -> str | Exchange:
    """The misread idle output: a pipeline that stalls holds its last result, and no other pipeline does."""
    return "hold" if fields["control"] == "stall" else {"hold": "zero"}


def _read_control(fields: Fields) -> Exchange:
    """The misread control: long pipelines never stall, and short ones always do."""
    return {"stall": "block"} if fields["stages"] > 3 else {"block": "stall", "flush": "stall"}


class Pipelines(LookingFamily):
    """The family of pipelines: two composed operations, and a valid bit that travels with the data."""

    name = "pipelines"
    heading = (
        "A pipeline of two operations with the constants A and B. At a clock edge with enable it takes data. After as\n"
        "many edges as it has stages, the one that takes the data included, the result is on the output, and valid.\n"
        "Reset wins, and drops all results on their way; after it, the last result counts as 0. Data is unsigned."
    )
    inputs = ("enable", "ready", "data")
    outputs = ("output", "valid")
    axes = LookingFamily.axes | {
        "ready_level": (0, 1),
        "valid_level": (0, 1),
        "control": tuple(CONTROLS),
        "idle": tuple(IDLE),
        "first": tuple(OPERATIONS),
        "second": tuple(OPERATIONS),
    }
    lines = LookingFamily.lines | _LINES
    habits = LookingFamily.habits | {
        "stages": {"stages": _read_stages},
        "minuend": {
            "first": lambda fields: _read_minuend(fields["second"]),
            "second": lambda fields: _read_minuend(fields["first"]),
        },
        "saturation": {"second": _read_saturation},
        "idle": {"idle": _read_idle},
        "control": {"control": _read_control},
    }
    size = "width"
    trained_sizes = range(8, 25)
    larger_sizes = range(25, 41)
    pair = ("first", "second")
    document_path = "docs/{}.csv"
    tells = ("width",)
    facts = tuple(_COLUMNS)

    def is_possible(self, fields: Fields) -> bool:
        """Whether both operations and constants can be observed: saturation or a maximum must be reachable, and must
        not hide the other constant. With this, and with constants between an eighth and a quarter of the range, every
        other operation gives other results.
        """
        pair, larger = (fields["first"], fields["second"]), fields["second_constant"] > fields["first_constant"]
        if pair in (("max", "max"), ("max", "sub_sat")):
            return False
        bounded = {"sub_sat": ("add", "add_sat")} | dict.fromkeys(("add_sat", "max"), ("sub", "sub_sat", "max"))
        return larger or fields["second"] not in bounded.get(fields["first"], ())

    def phrases(self, fields: Fields) -> dict[str, str | int]:
        return {
            "first_words": OPERATIONS[fields["first"]][1].format(value="the input", constant="A"),
            "second_words": OPERATIONS[fields["second"]][1].format(value="the first value", constant="B"),
            "control_words": CONTROLS[fields["control"]],
            "idle_words": IDLE[fields["idle"]][1],
        }

    def draw_facts(self, rng: Random, values: Fields) -> dict[str, str | int]:
        eighth = 2 ** (values["width"] - 3)
        constants = {name: rng.randrange(eighth + 1, 2 * eighth, 2) for name in ("first_constant", "second_constant")}
        return {"stages": rng.randint(_FEWEST, _MOST), **constants}

    def write(self, fields: Fields) -> str:
        width, stages, control = fields["width"], fields["stages"], fields["control"]
        data, output = bit_range(width), fields["output"]
        values = [fields["data"], f"reg_{stages - 1}" if stages > 1 else "wire_first"]
        first, second = (
            OPERATIONS[fields[name]][0].format(value=value, constant=f"{width}'d{fields[f'{name}_constant']}")
            for name, value in zip(("first", "second"), values, strict=True)
        )
        valid = "{reg_valid, wire_enable && wire_ready}" if control == "block" else "{reg_valid, wire_enable}"
        following = f"wire_ready ? {valid} : 0" if control == "flush" else valid
        initial = IDLE[fields["idle"]][0]
        kept = output if fields["idle"] == "hold" else initial
        registers = [f"reg_{stage}" for stage in range(1, stages)]
        declared = f"    reg {data}{', '.join(registers)};\n" if registers else ""
        loads = "".join(
            f"            {register} <= {value};\n"
            for register, value in zip(registers, ["wire_first", *registers], strict=False)
        )
        return self.module(
            fields,
            {"data": data, "output": f"reg {data}"},
            f"{declared}"
            f"    reg {bit_range(stages)}reg_valid;\n"
            f"    wire wire_enable = ({asserted(fields, 'enable')});\n"
            f"    wire wire_ready = ({asserted(fields, 'ready')});\n"
            f"    wire {data}wire_first = {first};\n"
            f"    wire {data}wire_second = {second};\n"
            f"    wire {bit_range(stages + 1)}wire_valid = {following};\n"
            f"    assign {fields['valid']} = {'' if fields['valid_level'] else '!'}reg_valid[{stages - 1}];\n"
            f"    {always(fields)}\n"
            f"        if ({asserted(fields, 'reset')}) begin\n"
            f"            reg_valid <= 0;\n"
            f"            {output} <= {initial};\n"
            f"        end else {'if (wire_ready) ' if control == 'stall' else ''}begin\n"
            f"            reg_valid <= wire_valid;\n"
            f"{loads}"
            f"            {output} <= wire_valid[{stages - 1}] ? wire_second : {kept};\n"
            f"        end\n",
        )

    def write_document(self, role: str, modules: Sequence[Fields], rng: Random) -> str:
        """A CSV table with a line for each module, its lines and columns in random order. Constants are hexadecimal."""
        facts = rng.sample(list(_COLUMNS), len(_COLUMNS))
        lines = []
        for fields in modules:
            cells = [f"0x{fields[fact]:X}" if fact.endswith("constant") else str(fields[fact]) for fact in facts]
            lines.append(",".join([fields["module"], *cells]) + "\n")
        rng.shuffle(lines)
        return ",".join(["module", *(_COLUMNS[fact] for fact in facts)]) + "\n" + "".join(lines)
