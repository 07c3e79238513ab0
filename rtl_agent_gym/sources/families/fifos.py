"""Synchronous FIFOs. A parameter file has the width, the depth and the threshold of a flag."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from .family import Exchange, Fields, SpecificationLine, always, asserted, bit_range, level_line
from .looking import LOOKING_LINES, LookingFamily, enable_line

STYLES = {"ahead": "the oldest word, without a read", "registered": "what the last read gave"}
"""The output, in words: with and without first-word fall-through."""
OVERFLOWS = {
    "drop": ("reg_level <= {depth};", "is dropped"),
    "oldest": (
        "begin reg_words[reg_head] <= {data}; reg_head <= wire_second; reg_level <= {depth}; end",
        "drops the oldest word and is stored",
    ),
    "newest": (
        "begin reg_words[(reg_head + {depth} - 1) % {depth}] <= {data}; reg_level <= {depth}; end",
        "replaces the newest word",
    ),
    "only": ("begin reg_words[reg_head] <= {data}; reg_level <= 1; end", "drops all words and is stored"),
    "clear": ("reg_level <= 0;", "drops all words and is not stored"),
}
"""What a write to a full FIFO does, in a design and in words."""
MISSING = {
    "zero": ("0", "0"),
    "ones": ("'1", "all ones"),
    "last": ("reg_last", "the word read last"),
    "inverted": ("~reg_last", "the word read last, inverted"),
    "next": ("reg_last + 1", "the word read last, plus one"),
}
"""What replaces the oldest word of an empty FIFO, as an expression and in words."""

_FLAGS = ("full", "empty", "almost")


def _flag_line(flag: str) -> SpecificationLine:
    name = f"`{{{flag}_flag}}`"
    return SpecificationLine(
        (f"The {flag} flag is {name}.", f"{name} is the {flag} flag.", f"Its {flag} flag is {name}."),
        (f"It has the {flag} flag {name}.", f"As {flag} flag it has {name}."),
        (f"{flag} flag | {name}", f"{flag} | {name}"),
        (f"flag, {flag} | {name}",),
    )


_LINES = {
    "document": SpecificationLine(
        (
            "Its width, depth and threshold are in `docs/{document}.toml`.",
            "`docs/{document}.toml` has width, depth and threshold.",
            "For width, depth and threshold see `docs/{document}.toml`.",
        ),
        (
            "See `docs/{document}.toml` for threshold, depth and width.",
            "The file with depth, width and threshold is `docs/{document}.toml`.",
        ),
        ("width, depth, threshold | in `docs/{document}.toml`", "file of parameters | `docs/{document}.toml`"),
        ("threshold, depth and width | see `docs/{document}.toml`",),
    ),
    "enable": enable_line("write enable"),
    "pop": level_line("pop", "read", "is read"),
    "data": LOOKING_LINES["data"],
    "output": SpecificationLine(
        (
            "The output `{output}` is {style_words}.",
            "On `{output}` is {style_words}.",
            "The output is `{output}`: {style_words}.",
        ),
        ("It has the output `{output}`, which is {style_words}.", "`{output}`, the output, is {style_words}."),
        ("output | `{output}`, {style_words}", "data output | `{output}`: {style_words}"),
        ("output of data | `{output}`, {style_words}",),
    ),
    **{f"{flag}_flag": _flag_line(flag) for flag in _FLAGS},
    "overflow": SpecificationLine(
        (
            "A write when full {overflow_words}.",
            "When full, a write {overflow_words}.",
            "A write into the full FIFO {overflow_words}.",
        ),
        ("A write that finds it full {overflow_words}.", "If it is full, a write {overflow_words}."),
        ("a write when full | {overflow_words}", "when full, a write | {overflow_words}"),
        ("write into the full FIFO | {overflow_words}",),
    ),
    "missing": SpecificationLine(
        ("A missing word is {missing_words}.", "The missing word is {missing_words}.", "Missing is {missing_words}."),
        ("As missing word it takes {missing_words}.", "In place of a missing word is {missing_words}."),
        ("missing word | {missing_words}", "a missing word is | {missing_words}"),
        ("in place of a missing word | {missing_words}",),
    ),
}


def _read_depth(fields: Fields) -> int:
    """The misread depth, a power of two: rounded up for narrow words, and down for wide ones."""
    depth: int = fields["depth"]
    above = 1 << (depth - 1).bit_length()
    return above if above == depth or fields["width"] < 16 else above // 2


def _read_threshold(fields: Fields) -> int:
    """The misread threshold: with narrow words, the flag begins beyond the threshold, not at it."""
    beyond = 1 if fields["almost"] == "almost_full" else -1
    return int(fields["threshold"]) + (beyond if fields["width"] < 16 else 0)


def _read_style(fields: Fields) -> str:
    """The misread style: a deep memory has an output register, and a shallow one has none."""
    return "registered" if fields["depth"] > 8 else "ahead"


def _read_overflow(fields: Fields) -> Exchange:
    """The misread overflow: when full, a registered FIFO does not store the word, and any other FIFO does."""
    return {"drop": "oldest", "clear": "only"} if fields["style"] == "ahead" else {"oldest": "drop", "only": "clear"}


def _read_missing(fields: Fields) -> Exchange:
    """The misread missing word: a registered output keeps its word when the FIFO is empty; any other becomes 0."""
    return {"zero": "last"} if fields["style"] == "registered" else {"last": "zero"}


class Fifos(LookingFamily):
    """The family of FIFOs. Corner cases matter: full, empty, both operations at once, and a threshold from a file."""

    name = "fifos"
    heading = (
        "A synchronous FIFO. It is read before it is written, so it can be both at one edge when full. A read gives\n"
        "and removes the oldest word. In an empty one, the missing word stands for it, and is no word that was read.\n"
        "Almost full is from the threshold up, almost empty from the threshold down. Flags are active high. Reset\n"
        "wins, empties it, and makes the word read last and what the last read gave 0. Data is unsigned."
    )
    inputs = ("enable", "pop", "data")
    outputs = ("output", *(f"{flag}_flag" for flag in _FLAGS))
    axes = LookingFamily.axes | {
        "pop_level": (0, 1),
        "style": tuple(STYLES),
        "almost": ("almost_full", "almost_empty"),
        "overflow": tuple(OVERFLOWS),
        "missing": tuple(MISSING),
    }
    lines = LookingFamily.lines | _LINES
    habits = LookingFamily.habits | {
        "depth": {"depth": _read_depth},
        "threshold": {"threshold": _read_threshold},
        "style": {"style": _read_style},
        "overflow": {"overflow": _read_overflow},
        "missing": {"missing": _read_missing},
    }
    size = "depth"
    trained_sizes = range(2, 17)
    larger_sizes = range(17, 33)
    pair = ("overflow", "missing")
    document_path = "docs/{}.toml"
    tells = ("depth", "almost")
    facts = ("depth", "width", "threshold")

    def phrases(self, fields: Fields) -> dict[str, str | int]:
        return {
            "style_words": STYLES[fields["style"]],
            "overflow_words": OVERFLOWS[fields["overflow"]][1],
            "missing_words": MISSING[fields["missing"]][1],
        }

    def draw_facts(self, rng: Random, values: Fields) -> dict[str, str | int]:
        return {"width": rng.randint(2, 32), "threshold": rng.randrange(1, values["depth"])}

    def write(self, fields: Fields) -> str:
        depth, ahead = fields["depth"], fields["style"] == "ahead"
        data, output = bit_range(fields["width"]), fields["output"]
        shown = f"    assign {output} = wire_word;\n" if ahead else ""
        cleared = "" if ahead else f"            {output} <= 0;\n"
        loaded = "" if ahead else f"            if (wire_read) {output} <= wire_word;\n"
        missing = MISSING[fields["missing"]][0]
        compared = "<=" if fields["almost"] == "almost_empty" else ">="
        return self.module(
            fields,
            {"data": data, "output": f"{'wire' if ahead else 'reg'} {data}"},
            f"    reg {data}reg_words [0:{depth - 1}];\n"
            f"    reg {data}reg_last;\n"
            f"    reg {bit_range((depth - 1).bit_length())}reg_head;\n"
            f"    reg {bit_range(depth.bit_length())}reg_level;\n"
            f"    wire wire_write = ({asserted(fields, 'enable')});\n"
            f"    wire wire_read = ({asserted(fields, 'pop')});\n"
            f"    wire wire_taken = wire_read && !{fields['empty_flag']};\n"
            f"    wire [31:0] wire_free = (reg_head + reg_level) % {depth}, wire_second = (reg_head + 1) % {depth};\n"
            f"    wire {data}wire_word = {fields['empty_flag']} ? {missing} : reg_words[reg_head];\n"
            f"{shown}"
            f"    assign {fields['full_flag']} = reg_level == {depth};\n"
            f"    assign {fields['empty_flag']} = reg_level == 0;\n"
            f"    assign {fields['almost_flag']} = reg_level {compared} {fields['threshold']};\n"
            f"    {always(fields)}\n"
            f"        if ({asserted(fields, 'reset')}) begin\n"
            f"            reg_head <= 0;\n"
            f"            reg_level <= 0;\n"
            f"            reg_last <= 0;\n"
            f"{cleared}"
            f"        end else begin\n"
            f"{loaded}"
            f"            if (wire_taken) begin reg_last <= wire_word; reg_head <= wire_second; end\n"
            f"            reg_level <= reg_level + wire_write - wire_taken;\n"
            f"            if (wire_write && {fields['full_flag']} && !wire_read)\n"
            f"                {OVERFLOWS[fields['overflow']][0].format_map(fields)}\n"
            f"            else if (wire_write) reg_words[wire_free] <= {fields['data']};\n"
            f"        end\n",
        )

    def write_document(self, role: str, modules: Sequence[Fields], rng: Random) -> str:
        """A TOML table for each module; the tables and their keys are in random order."""
        tables = []
        for fields in modules:
            rows = [("width", "width"), ("depth", "depth"), (fields["almost"], "threshold")]
            lines = [f"{key} = {fields[fact]}\n" for key, fact in rng.sample(rows, len(rows))]
            tables.append(f"[{fields['module']}]\n{''.join(lines)}")
        rng.shuffle(tables)
        return "\n".join(tables)
