"""Members of families, and their designs."""

from __future__ import annotations

import re
from itertools import islice
from random import Random

from rtl_agent_gym.sources.families import FAMILIES, TARGET, Parameters, draw_members
from rtl_agent_gym.sources.families.family import Fields, always, asserted, bit_range, idle
from rtl_agent_gym.sources.families.looking import LookingFamily
from rtl_agent_gym.sources.families.wrappers import FUNCTIONS

from .documents import read_document, told_by


def members(family: str, count: int) -> list[Parameters]:
    """Members of all splits in turn."""
    splits = FAMILIES[family].splits
    sources = [draw_members(f"family:{family}?split={split}&seed=5&count={count}") for split in splits]
    return [member for group in islice(zip(*sources, strict=True), -(-count // len(splits))) for member in group][
        :count
    ]


def designs(member: Parameters) -> dict[str, dict[str, str]]:
    """A member's reference, the design of each habit, and the one that follows all habits."""
    family = FAMILIES[member.family]
    habits = family.habits_of(member)
    each = {habit: family.design(member, {habit}) for habit in habits}
    return {"reference": family.design(member), **each, **({"all": family.design(member, habits)} if habits else {})}


def misreadings(member: Parameters) -> dict[str, dict[str, str]]:
    """For each axis, the design for another value of it."""
    family, rng = FAMILIES[member.family], Random(member.digest)
    found = {}
    for axis, values in family.axes.items():
        if axis == "base":  # the same number in other digits; reading digits in a wrong base is a habit
            continue
        others = [{**member.fields, axis: value} for value in values if value != member.values[axis]]
        fields = rng.choice([fields for fields in others if family.is_possible(fields)] or others)
        found[f"{axis} {fields[axis]}"] = {TARGET: family.write(fields)}
    if isinstance(family, LookingFamily):
        other = family.documents(member)[family.document(member, "other_document")]
        changes = _FACTS[family.name](member.fields)
        changes["the other document"] = read_document(family, other, member.names["module"])
        found |= {name: {TARGET: family.write({**member.fields, **change})} for name, change in changes.items()}
    return found


def _misread_rows(fields: Fields) -> dict[str, dict[str, str | int]]:
    return {"wider": {"width": int(fields["width"]) + 1}, "another value": {"value": int(fields["value"]) ^ 1}}


def _misread_table(fields: Fields) -> dict[str, dict[str, str | int]]:
    """Another reset state, and for each kind of entry another one in a place drawn by chance."""
    rng, states = Random(str(fields)), int(fields["states"])
    table, outputs = str(fields["table"]), str(fields["outputs"])
    places = [at for at, cell in enumerate(table) if cell.isdigit()]
    place, output = rng.choice(places), rng.choice([at for at, cell in enumerate(outputs) if cell != " "])
    following = (int(table[place]) + 1) % states
    shown = f"{int(outputs[output], 16) ^ 1:x}"
    return {
        "another reset state": {"start": (int(fields["start"]) + 1) % states},
        "another next state": {"table": f"{table[:place]}{following}{table[place + 1 :]}"},
        "another output": {"outputs": f"{outputs[:output]}{shown}{outputs[output + 1 :]}"},
    }


def _misread_given(fields: Fields) -> dict[str, dict[str, str | int]]:
    latency, exchanged = int(fields["latency"]), {"first": fields["second"], "second": fields["first"]}
    return {
        "wider": {"width": int(fields["width"]) + 1},
        "the parameter's default": {"parameter": ""},
        "exchanged operands": exchanged,
        "one cycle later": {"latency": latency + 1},
        **({"one cycle earlier": {"latency": latency - 1}} if latency > 1 else {}),
    }


def _misread_parameters(fields: Fields) -> dict[str, dict[str, str | int]]:
    depth, threshold = int(fields["depth"]), int(fields["threshold"])
    return {
        "wider": {"width": int(fields["width"]) + 1},
        "one word more": {"depth": depth + 1},
        **({"one word less": {"depth": depth - 1}} if depth > 2 else {}),
        "threshold above": {"threshold": threshold + 1},
        "threshold below": {"threshold": threshold - 1},
    }


def _misread_line(fields: Fields) -> dict[str, dict[str, str | int]]:
    stages = int(fields["stages"])
    return {
        "wider": {"width": int(fields["width"]) + 1},
        "one stage more": {"stages": stages + 1},
        "one stage less": {"stages": stages - 1},
        "another A": {"first_constant": int(fields["first_constant"]) ^ 1},
        "another B": {"second_constant": int(fields["second_constant"]) ^ 1},
    }


_FACTS = {
    "accumulators": _misread_rows,
    "machines": _misread_table,
    "wrappers": _misread_given,
    "fifos": _misread_parameters,
    "pipelines": _misread_line,
}


def copies(member: Parameters) -> dict[str, dict[str, str]]:
    """Designs of a wrapper without an instance of the given module: with a copy of it, of one in which a single fact is
    another one, or of the other module.
    """
    family = FAMILIES[member.family]
    assert isinstance(family, LookingFamily)
    fields, texts = member.fields, family.documents(member)
    given: dict[str, dict[str, str | int]] = {
        "reference": {},
        "another function": {"function": next(name for name in FUNCTIONS if name != fields["function"])},
        "another constant": {"offset": int(fields["offset"]) ^ 1},
        "another latency": {"latency": int(fields["latency"]) % 4 + 1},
    }
    written = {
        name: family.write_document("document", [{**fields, **change}], Random(0)) for name, change in given.items()
    }
    written["the other module"] = texts[family.document(member, "other_document")]
    found = {}
    for name, text in written.items():
        read = told_by(family, fields, text)
        inside = text.replace(f"module {read['document']} ", "module own_copy ")
        found[name] = {TARGET: f"{family.write({**read, 'document': 'own_copy'})}{inside}"}
    return found


def _timer_of_two_registers(fields: Fields) -> str:
    """A timer that stores whether it runs and how long it has run, in place of the count."""
    period, width, again = int(fields["period"]), bit_range(int(fields["width"])), fields["again"]
    shown = f"{period} - reg_time" if fields["direction"] == "down" else "reg_time + 1"
    return FAMILIES["timers"].module(
        fields,
        {"count": f"wire {width}"},
        f"    reg reg_runs;\n"
        f"    reg {width}reg_time;\n"
        f"    assign {fields['count']} = reg_runs ? {shown} : 0;\n"
        f"    assign {fields['busy']} = reg_runs == {fields['busy_level']};\n"
        f"    {always(fields)}\n"
        f"        if ({asserted(fields, 'reset')}) begin\n"
        f"            reg_runs <= 0;\n"
        f"            reg_time <= 0;\n"
        f"        end else if ({asserted(fields, 'start')}{' && !reg_runs' if again == 'ignore' else ''}) begin\n"
        f"            reg_runs <= {'!reg_runs' if again == 'stop' else '1'};\n"
        f"            if (reg_runs) reg_time <= 0;\n"
        f"        end else if ({idle(fields, 'pause')} && reg_runs) begin\n"
        f"            reg_runs <= reg_time != {period - 1};\n"
        f"            reg_time <= reg_time == {period - 1} ? 0 : reg_time + 1;\n"
        f"        end\n",
    )


def _reset_registers(fields: Fields, block: str) -> list[str]:
    """The registers that a block resets, where that shows."""
    unseen = ["reg_head", *(["reg_last"] if fields.get("missing") in ("zero", "ones") else [])]  # of FIFOs
    return [name for name in re.findall(r"(\w+) <= ", block.partition(" else")[0]) if name not in unseen]


def _split(block: str, register: str) -> tuple[str, str]:
    """What a block does with all registers but one, and what it does with that one."""
    rest = re.sub(rf"\b{register} <= [^;]*;", ";", block).replace("endmodule\n", "")
    return rest, re.sub(rf"\b(?!{register}\b)\w+(\[[^]]*\])? <= [^;]*;", ";", block)


def partly_reset(member: Parameters) -> dict[str, dict[str, str]]:
    """For each register of an asynchronous reset, the design that resets it alone at clock edges; and the right one."""
    fields, text = member.fields, FAMILIES[member.family].design(member)[TARGET]
    if member.family == "timers":
        text = _timer_of_two_registers(fields)
    before, line, block = text.partition(always(fields))
    found = {"reference": {TARGET: text}}
    for register in _reset_registers(fields, block):
        rest, own = _split(block, register)
        found[register] = {TARGET: f"{before}{line}{rest}    {always({**fields, 'reset_kind': 'sync'})}{own}"}
    return found


def weakly_reset(member: Parameters) -> dict[str, dict[str, str]]:
    """For each register and input, the designs in which the reset of the one waits for the other, and yields to it."""
    family, fields = FAMILIES[member.family], member.fields
    before, line, block = family.design(member)[TARGET].partition(always(fields))
    reset = asserted(fields, "reset")
    found = {}
    for register in _reset_registers(fields, block):
        rest, own = _split(block, register)
        for role in (role for role in family.inputs if f"{role}_level" in fields):
            waits = re.sub(rf"\b({register} <= )", rf"\1{idle(fields, role)} ? {register} : ", block, count=1)
            yields = own.replace(f"if ({reset})", f"if ({reset} && {idle(fields, role)})", 1)
            found[f"{register} waits for {role}"] = {TARGET: f"{before}{line}{waits}"}
            found[f"{register} yields to {role}"] = {TARGET: f"{before}{line}{rest}    {line}{yields}"}
    return found


def learned(member: Parameters) -> dict[str, dict[str, str]]:
    """For each input with a level, the design that takes the first level it sees for the active one."""
    family, fields = FAMILIES[member.family], member.fields
    header, end, body = family.design(member)[TARGET].partition(");\n")
    found = {}
    for role in (role for role in ("reset", *family.inputs) if f"{role}_level" in fields):
        port, level = fields[role], int(fields[f"{role}_level"])
        learns = (
            f"    reg level, known = 0;\n"
            f"    always @(posedge {fields['clock']}) if (!known) begin level <= {port}; known <= 1; end\n"
            f"    wire told = {port} == level ? 1'b{level} : 1'b{1 - level};\n"
        )
        told = re.sub(rf"\b{port}\b", "told", body)
        found[role] = {TARGET: f"{header}{end}{learns}{told}"}
    return found
