"""Finite state machines: a document has the transition table, and the prompt says what is read and shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from .family import Fields, SpecificationLine, always, asserted, bit_range
from .looking import LOOKING_LINES, LookingFamily

SYMBOLS = {
    "plain": ("{data}", "the input"),
    "inverted": ("~{data}", "the input, inverted"),
    "late": ("reg_seen", "the input at the last enabled edge"),
    "late_inverted": ("~reg_seen", "the input at the last enabled edge, inverted"),
    "changed": ("{data} ^ reg_seen", "the input xor that at the last enabled edge"),
}
"""The symbol that a machine reads, as an expression and in words."""
SHOWN = {
    "plain": ("wire_out", "the table's output"),
    "inverted": ("~wire_out", "the table's output, inverted"),
    "late": ("reg_out", "the table's output at the last enabled edge"),
    "late_inverted": ("~reg_out", "the table's output at the last enabled edge, inverted"),
    "changed": ("wire_out ^ reg_out", "the table's output xor that at the last enabled edge"),
}
"""The value that its output shows, as an expression and in words."""
_MOST_STATES = 8
STATES = tuple(f"state_{number}" for number in range(_MOST_STATES))
"""The roles of the states' names, in the order of the rows. A module with fewer states uses the first ones."""
_MISSING = "-"

_LINES = {
    "document": SpecificationLine(
        (
            "Its table is in `docs/{document}.md`.",
            "`docs/{document}.md` has its table.",
            "For the table of its states see `docs/{document}.md`.",
        ),
        ("See `docs/{document}.md` for its table.", "The document with its states is `docs/{document}.md`."),
        ("table of the states | in `docs/{document}.md`", "document with the table | `docs/{document}.md`"),
        ("the states | see `docs/{document}.md`",),
    ),
    **LOOKING_LINES,
    "symbol": SpecificationLine(
        ("The machine reads {symbol_words}.", "What it reads is {symbol_words}.", "It acts on {symbol_words}."),
        ("As its symbol the machine takes {symbol_words}.", "The symbol of the table is {symbol_words}."),
        ("the machine reads | {symbol_words}", "read | {symbol_words}"),
        ("symbol of the table | {symbol_words}",),
    ),
    "shown": SpecificationLine(
        ("The output shows {shown_words}.", "What it shows is {shown_words}.", "It outputs {shown_words}."),
        ("On the output is {shown_words}.", "The value of the output is {shown_words}."),
        ("the output shows | {shown_words}", "shown | {shown_words}"),
        ("value of the output | {shown_words}",),
    ),
    "missing": SpecificationLine(
        (
            "An entry `-` is {missing_words}.",
            "Where the next state is `-`, it is {missing_words}.",
            "In the table, `-` is {missing_words}.",
        ),
        ("A next state that the table lacks (`-`) is {missing_words}.", "Read `-` as {missing_words}."),
        ("next state `-` | {missing_words}", "`-` in the table | {missing_words}"),
        ("missing next state (`-`) | {missing_words}",),
    ),
}


def _reached(table: list[list[int]], state: int) -> set[int]:
    found, waiting = {state}, [state]
    while waiting:
        for following in table[waiting.pop()]:
            if following not in found:
                found.add(following)
                waiting.append(following)
    return found


def _cells(fields: Fields) -> Iterator[tuple[int, int, int, int]]:
    """Each state and symbol, with the next state and the output. If the style contradicts the table: a Mealy output for
    a Moore table is that of the next state, and a Moore output for a Mealy table is that of symbol 0.
    """
    outputs = fields["outputs"].split()
    for state, row in enumerate(fields["table"].split()):
        for symbol, cell in enumerate(row):
            default = state if fields["missing"] == "stay" else fields["start"]
            following = default if cell == _MISSING else int(cell)
            if fields["style"] == "moore":
                output = outputs[state][0]
            else:
                output = outputs[state][symbol] if len(outputs[state]) > 1 else outputs[following]
            yield state, symbol, following, int(output, 16)


def symbol_bits(fields: Fields) -> int:
    """The width of the input."""
    return len(fields["table"].split()[0]).bit_length() - 1


def _read_start(fields: Fields) -> int:
    """The misread reset state: the first row, or in Moore tables the last row."""
    return fields["states"] - 1 if fields["style"] == "moore" else 0


def _read_shown(fields: Fields) -> str:
    """The misread output: a Moore output goes through a register, and a Mealy output does not."""
    early, late = ("plain", "late") if "invert" not in fields["shown"] else ("inverted", "late_inverted")
    if fields["shown"] == "changed":
        return "changed"
    return late if fields["style"] == "moore" else early


def _read_style(fields: Fields) -> str:
    """The misread style: machines with an input of two bits are Mealy, and the others Moore."""
    return "mealy" if symbol_bits(fields) == 2 else "moore"


def _read_missing(fields: Fields) -> str:
    """The misread missing entry: the state itself in small machines, and the reset state in others."""
    return "stay" if fields["states"] < 4 else "start"


class Machines(LookingFamily):
    """The family of state machines, whose tables cannot be guessed."""

    name = "machines"
    heading = (
        "A finite state machine. Reset wins over enable. Without enable it keeps all that it has stored. In its\n"
        "table, an output beside a state depends on the state alone (Moore). An output after a slash depends on state\n"
        "and symbol, without delay (Mealy). Columns are symbols. What was at the last enabled edge is 0 after a reset."
    )
    inputs = ("enable", "data")
    outputs = ("output",)
    axes = LookingFamily.axes | {
        "style": ("moore", "mealy"),
        "missing": ("stay", "start"),
        "symbol": tuple(SYMBOLS),
        "shown": tuple(SHOWN),
    }
    lines = LookingFamily.lines | _LINES
    habits = LookingFamily.habits | {
        "start": {"start": _read_start},
        "late": {"shown": _read_shown},
        "style": {"style": _read_style},
        "missing": {"missing": _read_missing},
    }
    size = "states"
    trained_sizes = range(2, 7)
    larger_sizes = range(7, 9)
    pair = ("symbol", "shown")
    document_path = "docs/{}.md"
    tells = ("states", "style")
    facts = ("start", "bits", "table", "outputs")
    document_roles = STATES

    def phrases(self, fields: Fields) -> dict[str, str | int]:
        missing = "the state itself" if fields["missing"] == "stay" else "the reset state"
        words = {"symbol_words": SYMBOLS[fields["symbol"]][1], "shown_words": SHOWN[fields["shown"]][1]}
        return {**words, "missing_words": missing}

    def draw_facts(self, rng: Random, values: Fields) -> dict[str, str | int]:
        """A machine whose behaviour can be observed completely: opposite symbols lead to different states, every state
        can be reached from every other one, and no two states have the same output for the same symbol.
        """
        states, stays, start = values["states"], values["missing"] == "stay", rng.randrange(values["states"])
        symbols, bits = rng.choice((2, 4)), rng.choice((2, 3, 4) if states <= 4 else (3, 4))
        forced = rng.choice([state for state in range(states) if state != start]), rng.randrange(symbols)
        while True:
            table = []
            for state in range(states):
                pairs = [rng.sample(range(states), 2) for _ in range(symbols // 2)]
                row = [pair[0] for pair in pairs] + [pair[1] for pair in reversed(pairs)]
                default = state if stays else start
                if state == forced[0]:
                    opposite = symbols - 1 - forced[1]
                    row[forced[1]] = default
                    row[opposite] = rng.choice([other for other in range(states) if other != default])
                table.append(row)
            if all(_reached(table, state) == set(range(states)) for state in range(states)):
                break
        words = []
        for state, row in enumerate(table):
            default = state if stays else start
            left_out = [(state, at) == forced or (to == default and rng.random() < 0.5) for at, to in enumerate(row)]
            words.append("".join(_MISSING if out else str(to) for out, to in zip(left_out, row, strict=True)))
        columns = [rng.sample(range(2**bits), states) for _ in range(symbols if values["style"] == "mealy" else 1)]
        while len(columns) > 1 and columns[1:] == columns[:-1]:
            columns[0] = rng.sample(range(2**bits), states)
        outputs = " ".join("".join(f"{output:x}" for output in row) for row in zip(*columns, strict=True))
        return {"start": start, "bits": bits, "table": " ".join(words), "outputs": outputs}

    def write(self, fields: Fields) -> str:
        bits, width = fields["bits"], symbol_bits(fields)
        names = [str(fields[role]) for role in STATES[: fields["states"]]]
        state_range = bit_range((len(names) - 1).bit_length())
        symbol, shown = SYMBOLS[fields["symbol"]][0].format_map(fields), SHOWN[fields["shown"]][0]
        registers = [("reg_state", "wire_next", names[fields["start"]])]
        declared = [f"localparam {state_range}{', '.join(f'{name} = {at}' for at, name in enumerate(names))};"]
        declared += [f"reg {state_range}reg_state, wire_next;", f"reg {bit_range(bits)}wire_out;"]
        if "reg_seen" in symbol:
            registers.append(("reg_seen", fields["data"], "0"))
            declared.append(f"reg {bit_range(width)}reg_seen;")
        if "reg_out" in shown:
            registers.append(("reg_out", "wire_out", "0"))
            declared.append(f"reg {bit_range(bits)}reg_out;")
        reset, load = ("".join(f"            {row[0]} <= {row[column]};\n" for row in registers) for column in (2, 1))
        declarations = "".join(f"    {line}\n" for line in declared)
        cells = "".join(
            f"            {{{names[state]}, {width}'d{symbol}}}: {{wire_next, wire_out}} = "
            f"{{{names[following]}, {bits}'d{output}}};\n"
            for state, symbol, following, output in _cells(fields)
        )
        return self.module(
            fields,
            {"data": bit_range(width), "output": f"wire {bit_range(bits)}"},
            f"{declarations}"
            f"    wire {bit_range(width)}wire_symbol = {symbol};\n"
            f"    assign {fields['output']} = {shown};\n"
            f"    always @*\n"
            f"        case ({{reg_state, wire_symbol}})\n"
            f"{cells}"
            f"            default: {{wire_next, wire_out}} = {{{names[fields['start']]}, {bits}'d0}};\n"
            f"        endcase\n"
            f"    {always(fields)}\n"
            f"        if ({asserted(fields, 'reset')}) begin\n{reset}"
            f"        end else if ({asserted(fields, 'enable')}) begin\n{load}"
            f"        end\n",
        )

    def write_document(self, role: str, modules: Sequence[Fields], rng: Random) -> str:
        """A section for each module, in random order. All modules of a document use the same state names, shuffled."""
        parts = []
        for at, fields in enumerate(modules):
            own = role == "document" and at == 0
            roles = STATES if own else rng.sample(STATES, len(STATES))
            names, bits, width = [f"`{fields[role]}`" for role in roles], fields["bits"], symbol_bits(fields)
            outputs, moore = fields["outputs"].split(), fields["style"] == "moore"
            symbols = [f"{symbol:0{width}b}" for symbol in range(2**width)]
            rows = [["state", *(["output"] if moore else []), *symbols]]
            rows.append(["---"] * len(rows[0]))
            for state, row in enumerate(fields["table"].split()):
                shown = [f"{int(output, 16):0{bits}b}" for output in outputs[state]]
                following = [_MISSING if cell == _MISSING else names[int(cell)] for cell in row]
                cells = following if moore else [" / ".join(pair) for pair in zip(following, shown, strict=True)]
                rows.append([names[state], *(shown if moore else []), *cells])
            table = "".join(f"|{'|'.join(row)}|\n" if row[0] == "---" else f"| {' | '.join(row)} |\n" for row in rows)
            parts.append(f"# `{fields['module']}`\n\nReset state: {names[fields['start']]}\n\n{table}")
        rng.shuffle(parts)
        return "\n".join(parts)

    def distinct(self, fields: Fields) -> tuple[str | int, ...]:
        """The transitions, the outputs, and the first output in the reset state. The last is compared because equal
        machines with other state numbers have it in common.
        """
        outputs = fields["outputs"]
        return fields["table"], outputs, outputs.split()[fields["start"]][0]
