"""Generated problems under their hidden tests: every reference passes, every habitual or misread design fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.sources.families import FAMILIES, TARGET, Parameters, draw_members
from rtl_agent_gym.sources.families.family import asserted

from .family_designs import copies, designs, members, misreadings, partly_reset, weakly_reset

pytestmark = pytest.mark.docker

GRADE_MANY = (Path(__file__).parent / "grade_many.py").read_text(encoding="utf-8")


async def grade_many(
    provider: DockerSandboxes, chosen: list[Parameters], tried: Callable[[Parameters], dict[str, dict[str, str]]]
) -> list[str]:
    """What is wrong with the verdicts on the designs of these members."""
    trees = {
        (member.digest, name): {**FAMILIES[member.family].problem(member).harness, **files}
        for member in chosen
        for name, files in tried(member).items()
    }
    sandbox = await provider.create()
    stdin = json.dumps(list(trees.values())).encode()
    done = await sandbox.exec(["python3", "-c", GRADE_MANY], cwd="/tmp", stdin=stdin, timeout=3000.0)
    assert done.exit_code == 0, done.output
    verdicts = json.loads(done.output.splitlines()[-1])
    return [
        f"{digest}: {name} {'passes' if passed else 'fails'}"
        for (digest, name), passed in zip(trees, verdicts, strict=True)
        if passed != (name == "reference")
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [2, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("family", FAMILIES)
async def test_references_pass_and_habits_fail(family: str, count: int, provider: DockerSandboxes) -> None:
    assert await grade_many(provider, members(family, count), designs) == []


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


@pytest.mark.parametrize(("family", "axis", "value"), [("arbiters", "mode", "flag"), ("timers", "again", "stop")])
async def test_what_a_specification_does_not_say_is_not_tested(
    family: str, axis: str, value: str, provider: DockerSandboxes
) -> None:
    drawn = draw_members(f"family:{family}?seed=5&count=40")
    chosen = [member for member in drawn if member.values[axis] == value]
    assert await grade_many(provider, chosen[:2], unsaid) == []


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


@pytest.mark.parametrize(("family", "axis", "value"), [("arbiters", "mode", "mask"), ("registers", "operation", "or")])
async def test_a_latch_is_no_flip_flop(family: str, axis: str, value: str, provider: DockerSandboxes) -> None:
    drawn = draw_members(f"family:{family}?seed=5&count=40")
    chosen = [member for member in drawn if (member.values[axis], member.values["reset_kind"]) == (value, "sync")]
    assert await grade_many(provider, chosen[:2], without_flip_flops) == []


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("family", ["machines", "wrappers", "fifos", "pipelines", "timers"])
async def test_an_asynchronous_reset_is_one_of_every_register(
    family: str, count: int, provider: DockerSandboxes
) -> None:
    chosen = [member for member in members(family, 4 * count) if member.values["reset_kind"] == "async"]
    assert await grade_many(provider, chosen[:count], partly_reset) == []


@pytest.mark.parametrize("count", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize(
    "family",
    [
        *("timers", "fifos", "pipelines"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("registers", "accumulators", "machines", "wrappers")),
    ],
)
async def test_no_input_wins_over_a_synchronous_reset(family: str, count: int, provider: DockerSandboxes) -> None:
    """Of small FIFOs and timers, as little happens to them by chance."""
    chosen = [member for member in members(family, 120) if member.values["reset_kind"] == "sync"]
    chosen.sort(key=lambda member: int(member.values.get("depth", member.values.get("period", 0))))
    assert await grade_many(provider, chosen[:count], weakly_reset) == []


def with_a_written_input(member: Parameters) -> dict[str, dict[str, str]]:
    """The reference, which sets its own input to 0 while the clock is high."""
    fields, text = member.fields, FAMILIES[member.family].design(member)[TARGET]
    written = re.sub(rf"input wire (\[.*\] {fields['data']}\b)", r"input var logic \1", text)
    assert written != text
    always = f"    always @(posedge {fields['clock']}) #2 {fields['data']} = 0;\nendmodule"
    return {"written": {TARGET: written.replace("endmodule", always)}}


async def test_a_machine_is_judged_by_the_input_that_was_driven(provider: DockerSandboxes) -> None:
    drawn = draw_members("family:machines?seed=5&count=40")
    chosen = [
        one
        for one in drawn
        if one.values["style"] == "mealy" and "late" not in f"{one.values['symbol']} {one.values['shown']}"
    ]
    assert await grade_many(provider, chosen[:2], with_a_written_input) == []


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


async def test_a_signal_inside_is_no_port(provider: DockerSandboxes) -> None:
    assert await grade_many(provider, members("registers", 1), without_ports) == []


@pytest.mark.parametrize("count", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
async def test_a_wrapper_behaves_as_the_given_module_and_no_other(count: int, provider: DockerSandboxes) -> None:
    assert await grade_many(provider, members("wrappers", count), copies) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [1, 50])
async def test_every_value_of_a_specification_counts(family: str, count: int, provider: DockerSandboxes) -> None:
    assert await grade_many(provider, members(family, count), misreadings) == []


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
