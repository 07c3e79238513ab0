"""What a reader learns from the documents of families, each of which has facts for a module."""

from __future__ import annotations

import csv
import re
import tomllib

from research.spelled import read_table
from rtl_agent_gym.sources.families.family import Fields
from rtl_agent_gym.sources.families.looking import LookingFamily
from rtl_agent_gym.sources.families.machines import STATES
from rtl_agent_gym.sources.families.wrappers import FUNCTIONS


def read_document(family: LookingFamily, text: str, module: str) -> dict[str, str | int]:
    """The facts and names that a document's text has for a module. Raises `KeyError` if they are not there."""
    return _READERS[family.name](text, module)


def told_by(family: LookingFamily, fields: Fields, text: str) -> dict[str, str | int]:
    """A member's fields for who reads a document."""
    return {**fields, **read_document(family, text, fields["module"])}


def _read_states(text: str, module: str) -> dict[str, str | int]:
    parts = {part.split("`")[1]: part for part in text.split("# ")[1:]}
    start, header, _, *rows = [line for line in parts[module].splitlines()[1:] if line]
    cells = [[cell.strip(" `") for cell in row.strip("|\n").split("|")] for row in rows]
    names, moore = [row[0] for row in cells], "output" in header
    pairs = [[cell.replace("`", "").split(" / ") for cell in row[2 if moore else 1 :]] for row in cells]
    shown = [
        [row[1]] if moore else [pair[1] for pair in row_pairs] for row, row_pairs in zip(cells, pairs, strict=True)
    ]
    following = [["-" if pair[0] == "-" else str(names.index(pair[0])) for pair in row] for row in pairs]
    return {
        "states": len(names),
        "style": "moore" if moore else "mealy",
        "start": names.index(re.findall("`(.*)`", start)[0]),
        "bits": len(shown[0][0]),
        "table": " ".join(map("".join, following)),
        "outputs": " ".join("".join(f"{int(output, 2):x}" for output in row) for row in shown),
        **dict(zip(STATES, names, strict=False)),
    }


_FILE = re.compile(
    r"module (?P<document>\w+) #\(\s+parameter (?P<parameter>\w+) = (?P<default>\d+)\n.*"
    r"assign (?P<result>\w+) = reg_(?P<latency>\d);.*posedge (?P<tick>\w+)\)\s+if \((?P<low>!?)(?P<run>\w+)\).*"
    r"reg_1 <= \((?P<expression>[^;]*)\) \+ (?P<offset>\d+);",
    re.DOTALL,
)


def _read_module(text: str, module: str) -> dict[str, str | int]:
    """Those of the given module; `module` is the wrapper's."""
    found = _FILE.search(text)
    operands = [re.search(rf"(\w+),? // {place} operand", text) for place in ("first", "second")]
    if found is None or None in operands:
        raise KeyError(module)
    first, second = (operand[1] for operand in operands if operand)
    expressions = {form.format(first=first, second=second): name for name, form in FUNCTIONS.items()}
    return {
        **{role: found[role] for role in ("document", "tick", "run", "result", "parameter")},
        **{role: int(found[role]) for role in ("default", "latency", "offset")},
        "first": first,
        "second": second,
        "run_level": 0 if found["low"] else 1,
        "function": expressions[found["expression"]],
    }


def _read_toml(text: str, module: str) -> dict[str, str | int]:
    table = tomllib.loads(text)[module]
    almost = next(key for key in ("almost_empty", "almost_full") if key in table or key == "almost_full")
    return {"width": table["width"], "depth": table["depth"], "almost": almost, "threshold": table[almost]}


def _read_csv(text: str, module: str) -> dict[str, str | int]:
    columns = {"stages": "stages", "width": "width", "first_constant": "A", "second_constant": "B"}
    lines = {line["module"]: line for line in csv.DictReader(text.splitlines())}
    return {fact: int(lines[module][column], 0) for fact, column in columns.items()}


_READERS = {
    "accumulators": read_table,
    "machines": _read_states,
    "wrappers": _read_module,
    "fifos": _read_toml,
    "pipelines": _read_csv,
}
