"""Families whose problems cannot be solved from the prompt alone.

The prompt describes a module. Its width and its reset value are in one of two documents, among those of others; the
polarity of its enable is in neither: a smoke test, which the agent can run, tells whether the design has it right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Literal

from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.sources.families.family import (
    LAYOUTS,
    TARGET,
    Family,
    Fields,
    Parameters,
    SpecificationLine,
    Split,
    is_held_out,
    template,
)
from rtl_agent_gym.sources.families.identifiers import draw_identifier

SMOKE = "verif/smoke.sv"
"""The smoke test."""
RUN_SMOKE = "iverilog -g2012 -o rundir/smoke rtl/*.sv verif/*.sv && vvp -n rundir/smoke"
PASSED = "PASS\n"
"""What `RUN_SMOKE` prints of a design that is right as far as it looks."""

Lie = Literal["documents", "smoke"]
"""Files that do not tell the truth, for controls."""

_TRAINED_WIDTHS, _WIDTHS = range(4, 41), range(4, 65)
"""Widths of all splits but ``sizes``, and all widths."""
_PAIRS_HELD_OUT = 5
"""One in so many pairs of operations belongs to the split ``operations``."""

BASES = {"decimal": ("", ""), "hexadecimal": ("0x", "'h"), "binary": ("0b", "'b")}
"""What stands before a number's digits in a document, and in a design."""


def digits(fields: Fields) -> str:
    """The digits of the reset value in its base."""
    return f"{int(fields['value']):{ {'decimal': 'd', 'hexadecimal': 'X', 'binary': 'b'}[str(fields['base'])] }}"


@dataclass(frozen=True)
class LookingFamily(Family):
    """A family of such problems. A design's parameter ``W`` is the width."""

    hidden_roles: tuple[str, ...] = ("document", "other_document", "row_1", "row_2")
    """What has a name, beside the module and its ports."""

    @property
    def splits(self) -> tuple[Split, ...]:
        """See `Family.splits`."""
        return (*super().splits, "sizes", "operations")

    def draw(self, rng: Random, split: Split = "train") -> Parameters:
        while True:
            values = {axis: rng.choice(choices) for axis, choices in self.axes.items()}
            values["width"] = rng.choice(_WIDTHS[len(_TRAINED_WIDTHS) :] if split == "sizes" else _TRAINED_WIDTHS)
            fits = is_held_out(values) == (split == "combinations")
            if fits and is_held_out_pair(values) == (split == "operations"):
                values |= {"value": _draw_value(rng, values), "tables": rng.getrandbits(24)}
                if self.is_possible(values):
                    break
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

    def draw_names(self, rng: Random, held_out: bool) -> dict[str, str]:
        """A name for each role; half of the resets and enables end in ``_n``, whatever their polarity."""
        names: dict[str, str] = {}
        for role in (*self.roles, *self.hidden_roles):
            while not names.get(role) or list(names.values()).count(names[role]) > 1:
                name = draw_identifier(rng, held_out)
                names[role] = f"{name}_n" if role in ("reset", "enable") and rng.random() < 0.5 else name
        return names

    def documents(self, parameters: Parameters) -> dict[str, str]:
        """The documents by path. Both have rows for the module; only those of one count."""
        fields, rng = parameters.fields, Random(int(parameters.values["tables"]))
        found = {}
        for role in ("document", "other_document"):
            rows = []
            for name in (fields["module"], fields["row_1"], fields["row_2"]):
                row = dict(fields)
                while role != "document" or name != fields["module"]:
                    row["width"], row["base"] = rng.choice(_TRAINED_WIDTHS), rng.choice(list(BASES))
                    row["value"] = _draw_value(rng, row)
                    if all(row[key] != fields[key] for key in ("width", "value")):
                        break
                rows.append(f"| `{name}` | width | {row['width']} |\n")
                rows.append(f"| `{name}` | reset value | {BASES[str(row['base'])][0]}{digits(row)} |\n")
            rng.shuffle(rows)
            found[f"docs/{fields[role]}.md"] = f"| module | property | value |\n|---|---|---|\n{''.join(rows)}"
        return dict(sorted(found.items()))

    def task(self, parameters: Parameters) -> str:
        """The prompt."""
        return f"Write the module that this describes to `{TARGET}`.\n\n{self.specification(parameters)}"

    def smoke(self, parameters: Parameters) -> str:
        """The text of `SMOKE`."""
        fields = parameters.fields
        words = {key.upper(): fields[key] for key in ("module", "clock", "reset", "enable", "data", "output")}
        words |= {"RESET_LEVEL": fields["reset_level"], "ENABLE_LEVEL": fields["enable_level"]}
        text = template("smoke.sv")
        for key in sorted(words, key=len, reverse=True):
            text = text.replace(f"<{key}>", str(words[key]))
        return text

    def smoke_output(self, parameters: Parameters, level: int, enable_level: int) -> str:
        """What `RUN_SMOKE` prints of a design with these polarities of its reset and its enable."""
        wrong = [
            role
            for role, used in (("reset", level), ("enable", enable_level))
            if used != parameters.values[f"{role}_level"]
        ]
        return f"FAIL: {wrong[0]}\n" if wrong else PASSED

    def tested_values(self, parameters: Parameters) -> dict[str, str | int]:
        return {key: parameters.values[key] for key in (*self.axes, "width", "value")}

    def guess(self, parameters: Parameters) -> dict[str, str]:
        """The design of who has read everything and has not run the smoke test: its enable is active high."""
        return {TARGET: self.write(parameters.fields | {"enable_level": 1})}

    def problem(self, parameters: Parameters) -> Problem:
        return self.lying_problem(parameters)

    def lying_problem(self, parameters: Parameters, lie: Lie | None = None) -> Problem:
        """The member as a problem with files that do not tell the truth; the hidden tests stay those of the member.

        Args:
            parameters: The member.
            lie: ``documents``: both documents have the rows of another width and reset value. ``smoke``: the smoke test
                wants polarities of the reset and the enable that are drawn by chance. None: everything is true.
        """
        told, rng, digest = parameters, Random(f"{parameters.digest} {lie}"), parameters.digest
        if lie is not None:
            digest = sha256(f"{digest} {lie}".encode()).hexdigest()[:12]
        if lie == "documents":
            values = dict(parameters.values)
            while any(values[key] == parameters.values[key] for key in ("width", "value")):
                values["width"], values["base"] = rng.choice(_TRAINED_WIDTHS), rng.choice(list(BASES))
                values["value"] = _draw_value(rng, values)
            told = parameters.model_copy(update={"values": values})
        elif lie == "smoke":
            levels = {f"{role}_level": rng.randrange(2) for role in ("reset", "enable")}
            told = parameters.model_copy(update={"values": {**parameters.values, **levels}})
        return (
            super()
            .problem(parameters)
            .model_copy(
                update={
                    "id": f"cvdp_agentic_rtlgym_{self.name}_{parameters.split}_{digest}_0001",
                    "prompt": self.task(parameters),
                    "context": {**self.documents(told), SMOKE: self.smoke(told)},
                }
            )
        )


def read_rows(document: str, module: str) -> dict[str, str | int]:
    """The values that a module's rows of a document have. Raises `KeyError` if one of them is not there."""
    width = re.search(rf"\| `{module}` \| width \| (\d+) \|", document)
    value = re.search(rf"\| `{module}` \| reset value \| (0x|0b)?(\w+) \|", document)
    if width is None or value is None:
        raise KeyError(module)
    prefix, number = value.groups()
    base = next(name for name, (before, _) in BASES.items() if before == (prefix or ""))
    return {"width": int(width[1]), "base": base, "value": int(number, {"0x": 16, "0b": 2}.get(prefix, 10))}


def is_held_out_pair(values: Fields) -> bool:
    """Whether the two operations of a design occur together in the split ``operations`` alone."""
    return is_held_out({"pair": f"{values['operand']} {values['operation']}"}, _PAIRS_HELD_OUT)


def _draw_value(rng: Random, values: Fields) -> int:
    """A reset value that fits the width, of some digits in its base."""
    top = 2 ** int(values["width"])
    first, last = {
        "decimal": rng.choice(((0, 9), (10, 99), (100, 999))),
        "hexadecimal": (16, 255),
        "binary": (2, 15),
    }[str(values["base"])]
    last = min(last, top - 1)
    return rng.randint(min(first, last), last)


LOOKING_LINES = {
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
}
