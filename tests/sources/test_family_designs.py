"""Generated problems under their hidden tests: every reference passes, every habitual or misread design fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.sources.families import FAMILIES, TARGET, Parameters, draw_members
from rtl_agent_gym.sources.families.family import asserted

from .family_designs import copies, designs, learned, members, misreadings, partly_reset, weakly_reset

pytestmark = pytest.mark.docker
in_one_sandbox = pytest.mark.asyncio(loop_scope="module")

GRADE_MANY = (Path(__file__).parent / "grade_many.py").read_text(encoding="utf-8")
Tried = Callable[[Parameters], dict[str, dict[str, str]]]
"""Designs for a member by name, of which the one called ``reference`` is right."""


def counts(few: int, many: int) -> pytest.MarkDecorator:
    """How many members are tried; many of them take long."""
    slow = pytest.param(many, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
    return pytest.mark.parametrize("count", [few, slow])


async def verdicts(sandbox: Sandbox, chosen: list[Parameters], tried: Tried) -> list[tuple[Parameters, str, bool]]:
    """Of each of these members' designs: the member, the name, and whether it passes."""
    named = [(member, *one) for member in chosen for one in tried(member).items()]
    assert named
    trees = [{**FAMILIES[member.family].problem(member).harness, **files} for member, _, files in named]
    stdin = json.dumps(trees).encode()
    done = await sandbox.exec(["python3", "-c", GRADE_MANY], cwd="/tmp", stdin=stdin, timeout=3000.0)
    assert done.exit_code == 0, done.output
    passed = json.loads(done.output.splitlines()[-1])
    return [(member, name, passes) for (member, name, _), passes in zip(named, passed, strict=True)]


async def grade_many(sandbox: Sandbox, chosen: list[Parameters], tried: Tried) -> list[str]:
    """What is wrong with the verdicts on the designs of these members."""
    return [
        f"{member.digest}: {name} {'passes' if passed else 'fails'}"
        for member, name, passed in await verdicts(sandbox, chosen, tried)
        if passed != (name == "reference")
    ]


@pytest.mark.sampled(2)
@in_one_sandbox
@counts(1, 200)
@pytest.mark.parametrize("family", FAMILIES)
async def test_references_pass_and_habits_fail(family: str, count: int, shared_sandbox: Sandbox) -> None:
    assert await grade_many(shared_sandbox, members(family, count), designs) == []


@in_one_sandbox
@pytest.mark.sampled(1)
@counts(9, 60)
@pytest.mark.parametrize("family", FAMILIES)
async def test_no_design_finds_out_by_itself_which_level_is_active(
    family: str, count: int, shared_sandbox: Sandbox
) -> None:
    """It takes the first one, and is right for one of the two levels by chance."""
    tried = await verdicts(shared_sandbox, members(family, count), learned)
    levels = {(role, member.fields[f"{role}_level"]) for member, role, _ in tried}
    passed = {(role, member.fields[f"{role}_level"]) for member, role, passes in tried if passes}
    roles = sorted({role for role, _ in levels})
    assert sorted(levels) == [(role, level) for role in roles for level in (0, 1)]
    assert sorted(role for role, _ in passed) == roles


def unsaid(member: Parameters) -> dict[str, dict[str, str]]:
    """The reference, changed where the specification says nothing."""
    fields, text = member.fields, FAMILIES[member.family].design(member)[TARGET]
    if member.family == "arbiters":
        other = text.replace(f"{fields['override']} ? 1 :", f"{fields['override']} && {fields['request']} != 0 ? 1 :")
    else:  # the count stays when the timer is stopped
        count, level = fields["count"], fields["busy_level"]
        first = fields["period"] if fields["direction"] == "down" else 1
        stop = f"{count} <= {count} == 0 ? {first} : 0;"
        other = text.replace(
            stop, f"begin runs <= !(runs && {count} != 0); if (!runs || {count} == 0) {count} <= {first}; end"
        )
        other = re.sub(
            r"assign .*;", f"reg runs; assign {fields['busy']} = (runs && {count} != 0) ^ {1 - int(level)};", other
        )
        other = other.replace(f"&& {count} != 0)", f"&& runs && {count} != 0)")
    assert other != text
    return {"reference": {TARGET: other}}


def without_flip_flops(member: Parameters) -> dict[str, dict[str, str]]:
    """The reference with a latch that is open while the clock is high, with flip-flops of both edges, and with a reset
    that acts while the clock is high, or at both edges.
    """
    clock, text = member.fields["clock"], FAMILIES[member.family].design(member)[TARGET]
    reset = asserted(member.fields, "reset")
    edge = f"always @(posedge {clock})"
    assert edge in text
    both = f"always @(posedge {clock} or negedge {clock})"
    others = {
        "latch": f"always @*\n        if ({clock})",
        "both edges": both,
        "reset while high": f"wire clr = {reset} && {clock};\n    always @(posedge {clock} or posedge clr)",
        "reset at both edges": f"{both}\n        if ({clock} || {reset})",
    }
    return {name: {TARGET: text.replace(edge, other)} for name, other in others.items()}


def with_a_written_input(member: Parameters) -> dict[str, dict[str, str]]:
    """The reference, which sets its own input to 0 while the clock is high."""
    fields, text = member.fields, FAMILIES[member.family].design(member)[TARGET]
    written = re.sub(rf"input wire (\[.*\] {fields['data']}\b)", r"input var logic \1", text)
    assert written != text
    always = f"    always @(posedge {fields['clock']}) #2 {fields['data']} = 0;\nendmodule"
    return {"written": {TARGET: written.replace("endmodule", always)}}


def without_ports(member: Parameters) -> dict[str, dict[str, str]]:
    """The reference with signals inside the module in place of ports, and with an output in place of an input."""
    text = FAMILIES[member.family].design(member)[TARGET]
    header, _, body = text.partition(");\n")
    head, *lines = header.splitlines()
    ports = [line.strip(" ,") for line in lines]

    def with_signals(chosen: list[str]) -> dict[str, str]:
        rest = [port for port in ports if port not in chosen]
        signals = [re.sub("(input wire|output reg)", "reg", port).removeprefix("output ") for port in chosen]
        return {TARGET: f"{head}{', '.join(rest)});\n{''.join(f'{signal};' for signal in signals)}\n{body}"}

    return {
        "no ports": with_signals(ports),
        "no clock": with_signals(ports[:1]),
        "no output": with_signals(ports[-1:]),
        "clock as output": {TARGET: text.replace("input wire", "output reg", 1)},
    }


def of_mode(axis: str, value: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a member has this value of an axis, and a synchronous reset."""
    return lambda values: (values[axis], values["reset_kind"]) == (value, "sync")


VARIANTS: dict[str, tuple[str, Tried, Callable[[Mapping[str, Any]], bool]]] = {
    "what no specification of an arbiter says": ("arbiters", unsaid, of_mode("mode", "flag")),
    "what no specification of a timer says": ("timers", unsaid, of_mode("again", "stop")),
    "no flip-flops in an arbiter": ("arbiters", without_flip_flops, of_mode("mode", "mask")),
    "no flip-flops in a register": ("registers", without_flip_flops, of_mode("operation", "or")),
    "a machine that writes the input that was driven": (
        "machines",
        with_a_written_input,
        lambda values: values["style"] == "mealy" and "late" not in f"{values['symbol']} {values['shown']}",
    ),
    "signals inside in place of ports": ("registers", without_ports, lambda values: True),
}
"""A family, the designs that are tried, and the values of a member that shows it."""


@pytest.mark.sampled(3)
@in_one_sandbox
@pytest.mark.parametrize("name", VARIANTS)
async def test_variants_of_a_reference_get_the_right_verdict(name: str, shared_sandbox: Sandbox) -> None:
    family, tried, is_one = VARIANTS[name]
    drawn = [member for member in draw_members(f"family:{family}?seed=5&count=40") if is_one(member.values)]
    assert await grade_many(shared_sandbox, drawn[:1], tried) == []


@pytest.mark.sampled(1)
@in_one_sandbox
@counts(1, 100)
@pytest.mark.parametrize("family", ["machines", "wrappers", "fifos", "pipelines", "timers"])
async def test_an_asynchronous_reset_is_one_of_every_register(family: str, count: int, shared_sandbox: Sandbox) -> None:
    chosen = [member for member in members(family, 8 + 4 * count) if member.values["reset_kind"] == "async"]
    assert await grade_many(shared_sandbox, chosen[:count], partly_reset) == []


@in_one_sandbox
@counts(1, 50)
@pytest.mark.parametrize(
    "family",
    [
        "timers",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("fifos", "pipelines", "registers", "accumulators", "machines", "wrappers")
        ),
    ],
)
async def test_no_input_wins_over_a_synchronous_reset(family: str, count: int, shared_sandbox: Sandbox) -> None:
    """Of small FIFOs and timers, as little happens to them by chance."""
    chosen = [member for member in members(family, 120) if member.values["reset_kind"] == "sync"]
    chosen.sort(key=lambda member: int(member.values.get("depth", member.values.get("period", 0))))
    assert await grade_many(shared_sandbox, chosen[:count], weakly_reset) == []


@in_one_sandbox
@counts(1, 50)
async def test_a_wrapper_behaves_as_the_given_module_and_no_other(count: int, shared_sandbox: Sandbox) -> None:
    assert await grade_many(shared_sandbox, members("wrappers", count), copies) == []


READ_LEVEL = """
    reg level;
    reg [71:0] seen = 0;
    integer file, letter = 0;
    initial begin
        file = $fopen("/code/verif/smoke.sv", "r");
        while (seen != "enable = " && letter >= 0) begin
            letter = $fgetc(file);
            seen = {seen, letter[7:0]};
        end
        level = $fgetc(file) == "1";
    end
"""
INCLUDED_LEVEL = """
    reg level;
    generate if (TOP) begin : top
        smoke test ();
        defparam test.dut.TOP = 0;
        initial #0 level = test.enable;
        always @(test.i) if (test.i > 3) test.i = 0; // it never comes to its $finish
    end endgenerate
"""
PRINTS = """
    initial begin
        $dumpfile("waves.vcd");
        $dumpvars;
        $display("\\"$fopen\\"");
    end
"""


async def test_no_design_reads_the_files_of_the_agent(provider: DockerSandboxes) -> None:
    """Those that would find the enable's level in the smoke test; a design may print and write waveforms."""
    (member,) = draw_members("family:pipelines?count=1&seed=14")
    problem, enable = FAMILIES["pipelines"].problem(member), member.names["enable"]
    text = FAMILIES["pipelines"].design(member)[TARGET]
    taught = text.replace(f"({asserted(member.fields, 'enable')})", f"({enable} == level)")
    assert taught != text
    included = f'`include "/code/verif/smoke.sv"\n{taught.replace(" (", " #(parameter TOP = 1) (", 1)}'
    tried = {
        "reads": taught.replace(");\n", f");{READ_LEVEL}", 1),
        "includes": included.replace(");\n", f");{INCLUDED_LEVEL}", 1),
        "prints": text.replace(");\n", f");{PRINTS}", 1),
    }
    async with Scorer(provider, cache=None) as scorer:
        graded = (scorer.score(problem, {**problem.context, TARGET: design}) for design in tried.values())
        scores = dict(zip(tried, await asyncio.gather(*graded), strict=True))
    assert {name: score.passed for name, score in scores.items()} == {"reads": False, "includes": False, "prints": True}
    assert scores["reads"].tests_total == 1, "it was simulated"
    assert "Include file /code/verif/smoke.sv not found" in scores["includes"].reason
    assert not any(score.violations for score in scores.values())


@in_one_sandbox
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
async def test_every_value_of_a_specification_counts(family: str, shared_sandbox: Sandbox) -> None:
    assert await grade_many(shared_sandbox, members(family, 50), misreadings) == []


@pytest.mark.parametrize(
    "family",  # slow: all but one, as their designs are graded above, and the scorer knows no families
    [pytest.param(family, marks=[pytest.mark.slow] if place else []) for place, family in enumerate(FAMILIES)],
)
async def test_the_scorer_agrees(family: str, provider: DockerSandboxes) -> None:
    (member,) = members(family, 1)
    problem = FAMILIES[family].problem(member)
    tried = {name: tree for name, tree in designs(member).items() if name in ("reference", "all")}
    async with Scorer(provider, cache=None) as scorer:
        scores = await asyncio.gather(*(scorer.score(problem, {**problem.context, **tree}) for tree in tried.values()))
    for name, score in zip(tried, scores, strict=True):
        assert score.passed == (name == "reference"), (name, score.reason)
        assert not score.violations, name
    assert scores[0].reward == pytest.approx(1.4)
