"""A family of problems: random parameters give a specification, hidden tests, a reference and designs with habits."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel

from ...problems.model import Problem
from ..suites.common import harness_file, json_digest

_STEMS = """
amber anchor apple arrow aspen badge basin birch blaze bloom brook cabin cedar chalk cider cliff cloud coral crane delta
drift eagle ember fable fern flint frost gale glade grove harbor hazel heron iris jade kettle lagoon lantern lark lemon
linen lotus maple marble meadow mint moss nectar olive onyx orchid otter pearl pebble pine plume quartz raven reed ridge
river saddle
"""
_HELD_OUT_STEMS = """
bramble copper dune sable shale sierra slate spruce stone summit swan teal thistle timber tulip umber velvet violet
walnut wharf willow yarrow zephyr zinnia
"""
STEMS = tuple(_STEMS.split())
HELD_OUT_STEMS = tuple(_HELD_OUT_STEMS.split())
"""Used only by the split ``names``."""

_SUFFIXES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "module": (("unit", "block", "core"), ("cell", "stage")),
    "clock": (("clk", "clock", "ck"), ("osc", "tick")),
    "reset": (("rst", "reset", "clear"), ("init", "zero")),
}
_INPUT = (("in", "a", "line"), ("src", "port"))
_OUTPUT = (("out", "y", "reg"), ("dst", "pin"))


def suffixes(role: str, held_out: bool, is_output: bool) -> tuple[str, ...]:
    """The suffixes of a role's names: those of training, or those of the split ``names``."""
    return _SUFFIXES.get(role, _OUTPUT if is_output else _INPUT)[held_out]


Split = Literal["train", "combinations", "wordings", "names", "sizes", "operations"]
"""``train``, and held-out splits with something that ``train`` never contains: combinations of values, wordings, parts
of names, larger sizes, or pairs of operations. Not every family has the last two."""
Layout = Literal["list", "prose", "table"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

SPECIFICATION = "docs/specification.md"
TARGET = "rtl/design.sv"
PROMPT = f"Read the specification in `{SPECIFICATION}`. Write the module that it describes to `{TARGET}`."
"""The task of every member."""

_HELD_OUT_SHARE = 4  # a quarter of all combinations of values is held out from training

Fields = Mapping[str, Any]
"""A member's names by role and values by axis: strings and integers."""


class Parameters(BaseModel, frozen=True, extra="forbid"):
    """One member of a family. Equal parameters give identical problems, byte for byte."""

    family: str
    split: Split
    names: dict[str, str]
    """A name for each role."""
    values: dict[str, str | int]
    """A value for each axis."""
    layout: Layout
    lines: tuple[tuple[str, int], ...]
    """The specification's lines in order: each line's key, and the index of its wording."""

    @property
    def fields(self) -> dict[str, str | int]:
        """Names and values together."""
        return {**self.names, **self.values}

    @property
    def digest(self) -> str:
        """The first twelve hexadecimal digits of a hash of all parameters."""
        return json_digest(self.model_dump(mode="json"))[:12]


@dataclass(frozen=True)
class SpecificationLine:
    """The possible wordings of one line of a specification: format strings over a member's fields and phrases."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    """Wordings that only the split ``wordings`` uses."""
    rows: tuple[str, ...]
    """The training wordings as table rows."""
    held_out_rows: tuple[str, ...]

    def wordings(self, layout: Layout) -> tuple[str, ...]:
        """All wordings for a layout, those of training first."""
        return self.rows + self.held_out_rows if layout == "table" else self.train + self.held_out

    def draw(self, rng: Random, layout: Layout, held_out: bool) -> int:
        """The index of a random wording."""
        trained = len(self.rows if layout == "table" else self.train)
        return rng.randrange(trained, len(self.wordings(layout))) if held_out else rng.randrange(trained)


Exchange = Mapping[str | int, str | int]
"""Replacements of some values; other values stay."""
Change = str | int | Exchange | Callable[[Fields], str | int | Exchange]
"""How a habit replaces a field: by a value, by an `Exchange`, or by either of these as a function of all fields."""

_COMMON_LINES = {
    "module": SpecificationLine(
        ("The module is called `{module}`.", "Name the module `{module}`.", "The module has the name `{module}`."),
        ("Call it `{module}`.", "`{module}` is the module's name."),
        ("module | `{module}`", "module name | `{module}`"),
        ("name of the module | `{module}`",),
    ),
    "clock": SpecificationLine(
        ("The clock is `{clock}`.", "It is clocked by the rising edge of `{clock}`.", "`{clock}` is the clock."),
        ("It has the clock `{clock}`.", "Its clock is the rising edge of `{clock}`."),
        ("clock | `{clock}`", "clock input | `{clock}`, rising edge"),
        ("rising edge of the clock | `{clock}`",),
    ),
    "reset": SpecificationLine(
        (
            "The reset is `{reset}`, active {reset_word}, {kind}.",
            "The {kind} reset `{reset}` is active {reset_word}.",
            "When `{reset}` is {reset_level}, it is reset ({kind}).",
        ),
        (
            "It has an active {reset_word} reset `{reset}`, which is {kind}.",
            "Reset is {kind}: `{reset}` is {reset_level}.",
        ),
        ("reset | `{reset}`, active {reset_word}, {kind}", "{kind} reset | `{reset}`, active {reset_word}"),
        ("active {reset_word} reset | `{reset}` ({kind})",),
    ),
}


class Family(ABC):
    """A family of problems. Each adds its own axes, lines and habits to the common ones below."""

    splits: ClassVar[tuple[Split, ...]] = ("train", "combinations", "wordings", "names")
    name: str
    heading: str
    """The specification's first lines, the same for every member."""
    inputs: tuple[str, ...]
    """The roles of the input ports, without clock and reset."""
    outputs: tuple[str, ...]
    """The roles of the output ports."""
    axes: ClassVar[dict[str, tuple[str | int, ...]]] = {"reset_level": (0, 1), "reset_kind": ("sync", "async")}
    lines = _COMMON_LINES
    habits: ClassVar[dict[str, Mapping[str, Change]]] = {
        "reset": {"reset": "rst_n", "reset_level": 0, "reset_kind": "async"}
    }
    """For each textbook habit, the fields that it changes, whatever the specification says."""
    tests = ""
    """The name of the family whose hidden tests are used; empty if this family has its own."""
    facts: tuple[str, ...] = ()
    """Values that the hidden tests need in addition to the axes."""
    category = 3
    """CVDP's category number."""

    def is_possible(self, fields: Fields) -> bool:
        """Whether every part of a combination of values can be observed at the ports."""
        return True

    @abstractmethod
    def phrases(self, fields: Fields) -> dict[str, str | int]:
        """Words for a member's values, which the lines may use in addition to its fields. `specification` adds
        ``kind`` for the reset, and for each axis ``x_level`` an ``x_word``, ``low`` or ``high``.
        """

    @abstractmethod
    def write(self, fields: Fields) -> str:
        """The design for some fields, in its canonical form."""

    def module(self, fields: Fields, ranges: Mapping[str, str], body: str, parameters: str = "") -> str:
        """A module with the family's ports, and optionally `parameters` (``#(…) ``).

        `ranges` has, by role, the text before the port's name, with a space at the end: for an input its range, for an
        output also ``reg`` or ``wire``. Other ports are wires of one bit.
        """
        ports = [f"input wire {ranges.get(role, '')}{fields[role]}" for role in ("clock", "reset", *self.inputs)]
        ports += [f"output {ranges.get(role, 'wire ')}{fields[role]}" for role in self.outputs]
        return f"module {fields['module']} {parameters}(\n    " + ",\n    ".join(ports) + f"\n);\n{body}endmodule\n"

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that have a name: module and ports."""
        return ("module", "clock", "reset", *self.inputs, *self.outputs)

    def draw(self, rng: Random, split: Split = "train") -> Parameters:
        """A random member of a split."""
        values = self._draw_values(rng, split)
        layout = rng.choice(LAYOUTS)
        order = rng.sample(list(self.lines), len(self.lines))
        return Parameters(
            family=self.name,
            split=split,
            names=self.draw_names(rng, split == "names"),
            values=values,
            layout=layout,
            lines=tuple((key, self.lines[key].draw(rng, layout, split == "wordings")) for key in order),
        )

    def _draw_values(self, rng: Random, split: Split) -> dict[str, str | int]:
        while True:
            values = {axis: rng.choice(values) for axis, values in self.axes.items()}
            if self.is_possible(values) and is_held_out(values) == (split == "combinations"):
                return values

    def draw_names(self, rng: Random, held_out: bool) -> dict[str, str]:
        """A name for each role, for training or for the split ``names``; no two names share a stem."""
        names = {}
        stems = rng.sample(HELD_OUT_STEMS if held_out else STEMS, len(self.roles))
        for role, stem in zip(self.roles, stems, strict=True):
            suffix = rng.choice(suffixes(role, held_out, role in self.outputs))
            names[role] = f"{stem}_{suffix}" if rng.random() < 0.5 else stem
        return names

    def specification(self, parameters: Parameters) -> str:
        """The text of `SPECIFICATION`."""
        fields = parameters.fields
        levels = {axis.removesuffix("_level"): value for axis, value in fields.items() if axis.endswith("_level")}
        words = {**fields, **{f"{name}_word": "high" if value else "low" for name, value in levels.items()}}
        words["kind"] = "asynchronous" if fields["reset_kind"] == "async" else "synchronous"
        words |= self.phrases(fields)
        lines = [
            self.lines[key].wordings(parameters.layout)[number].format_map(words) for key, number in parameters.lines
        ]
        if parameters.layout == "prose":
            body = " ".join(lines)
        elif parameters.layout == "list":
            body = "\n".join(f"- {line}" for line in lines)
        else:
            body = "\n".join(["| item | value |", "|---|---|", *(f"| {line} |" for line in lines)])
        return f"{self.heading}\n\n{body}\n"

    def habits_of(self, parameters: Parameters) -> tuple[str, ...]:
        """The habits that contradict the member's specification."""
        fields = parameters.fields
        return tuple(habit for habit in self.habits if self.with_habit(fields, habit) != fields)

    def with_habit(self, fields: Fields, habit: str) -> dict[str, str | int]:
        """The fields of a design that follows a habit."""
        changed = dict(fields)
        for field, change in self.habits[habit].items():
            new: str | int | Exchange = change(fields) if callable(change) else change
            changed[field] = new.get(fields[field], fields[field]) if isinstance(new, Mapping) else new
        return changed

    def design(self, parameters: Parameters, habits: Collection[str] = ()) -> dict[str, str]:
        """The reference solution, or a design that follows some habits and otherwise the specification."""
        fields = parameters.fields
        for habit in habits:
            fields = self.with_habit(fields, habit)
        return {TARGET: self.write(fields)}

    def problem(self, parameters: Parameters) -> Problem:
        """The member as a problem in CVDP's agentic format."""
        case = {
            "names": {role: parameters.names[role] for role in self.roles},
            "outputs": self.outputs,
            "values": {key: parameters.values[key] for key in (*self.axes, *self.facts)},
        }
        environment = harness_file("env").replace("DESIGN_FILE", TARGET).replace("TOP_NAME", parameters.names["module"])
        return Problem(
            id=f"cvdp_agentic_rtlgym_{self.name}_{parameters.split}_{parameters.digest}_0001",
            category=self.category,
            difficulty="easy",
            prompt=PROMPT,
            context={SPECIFICATION: self.specification(parameters)},
            targets=(TARGET,),
            harness={
                "docker-compose.yml": harness_file("docker-compose.yml").replace("-s ", "-s --log-cli-level=INFO "),
                "src/.env": environment + "MODULE          = test_design\n",
                "src/case.json": json.dumps(case, indent=1) + "\n",
                "src/bench.py": template("bench.py"),
                "src/test_design.py": template(f"test_{self.tests or self.name}.py"),
                "src/test_runner.py": template("test_runner.py"),
            },
            golden=self.design(parameters),
        )


def is_held_out(values: Mapping[str, str | int], share: int = _HELD_OUT_SHARE) -> bool:
    """Whether a combination of values is held out: about one in `share`, selected by a hash."""
    return int(json_digest(values)[:8], 16) % share == 0


template = partial(harness_file, package=__package__)
"""The text of a file of ``harness``."""


def level_line(role: str, name: str, acts: str) -> SpecificationLine:
    """The line of an input with a polarity: what it is called (`name`), and what the design does while it is active."""
    port, word, level = f"`{{{role}}}`", f"{{{role}_word}}", f"{{{role}_level}}"
    return SpecificationLine(
        (
            f"The {name} is {port}, active {word}.",
            f"The {name} {port} is active {word}.",
            f"When {port} is {level}, it {acts}.",
        ),
        (f"It has an active {word} {name} {port}.", f"It {acts} when {port} is {level}."),
        (f"{name} | {port}, active {word}", f"{name} input | {port}, active {word}"),
        (f"active {word} {name} | {port}",),
    )


def data_line(role: str, name: str) -> SpecificationLine:
    """The line of a data input or output."""
    port = f"`{{{role}}}`"
    return SpecificationLine(
        (f"The {name} is {port}.", f"The data {name} is {port}.", f"{port} is the {name}."),
        (f"It has the {name} {port}.", f"As {name} it has {port}."),
        (f"{name} | {port}", f"data {name} | {port}"),
        (f"{name} of data | {port}",),
    )


def asserted(fields: Fields, role: str) -> str:
    """The condition that the input of a role is at its active level."""
    return f"{fields[role]}" if fields[f"{role}_level"] else f"!{fields[role]}"


def idle(fields: Fields, role: str) -> str:
    """The opposite of `asserted`."""
    return f"!{fields[role]}" if fields[f"{role}_level"] else f"{fields[role]}"


def always(fields: Fields) -> str:
    """The first line of the always block that updates the state."""
    edge = f" or {'posedge' if fields['reset_level'] else 'negedge'} {fields['reset']}"
    return f"always @(posedge {fields['clock']}{edge if fields['reset_kind'] == 'async' else ''})"


def bit_range(width: int) -> str:
    """The range of a vector of some width, with a trailing space."""
    return f"[{width - 1}:0] "
