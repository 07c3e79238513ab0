"""Hidden tests of families do not tell which level of an input is active before a design has had to know it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.sources.families import FAMILIES, Parameters

from .family_designs import members


class Now:
    """A trigger or a clock, for which nothing has to be waited."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __await__(self) -> Any:
        yield from ()

    def start(self) -> None: ...


def stubs() -> dict[str, ModuleType]:
    """What stands for cocotb."""
    found = {name: ModuleType(name) for name in ("cocotb", "cocotb.clock", "cocotb.triggers")}
    vars(found["cocotb"])["test"] = lambda **_: lambda test: test
    vars(found["cocotb.clock"])["Clock"] = Now
    vars(found["cocotb.triggers"]).update(dict.fromkeys(("FallingEdge", "RisingEdge", "Timer"), Now))
    return found


class Port:
    """An input or output of a design that nothing looks at."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return self.width


def opening(member: Parameters, changed: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the first test that drives the design checks before it has told a level.

    Args:
        member: Whose test it is.
        changed: Other values than the member's, by axis.
        folder: For the test's files.
        monkeypatch: Of the calling test.
    """
    case = json.loads((harness := FAMILIES[member.family].problem(member).harness)["src/case.json"])
    case["values"] |= changed
    (folder / "case.json").write_text(json.dumps(case))
    monkeypatch.setenv("PORTS", "{}")
    for name, module in stubs().items():
        monkeypatch.setitem(sys.modules, name, module)
    bench = ModuleType("bench")
    vars(bench)["__file__"] = str(folder / "bench.py")
    exec(harness["src/bench.py"], vars(bench))
    widths: dict[str, int] = {}
    vars(bench)["port_tests"] = lambda **found: widths.update(found) or {}
    seen: list[Any] = []

    class Told(Exception):
        """The opening is over."""

    async def started(self: Any, *roles: str) -> None:
        ports = {case["names"][role]: Port(widths.get(role, 1)) for role in ("clock", "reset", *roles)}
        self.dut, self.check = SimpleNamespace(**ports), lambda _: seen.append(self.known and self.model.outputs())
        await start(self, *roles)
        raise Told

    start, bench.Bench.start_at_any_level = bench.Bench.start_at_any_level, started
    monkeypatch.setitem(sys.modules, "bench", bench)
    test: dict[str, Any] = {}
    exec(harness["src/test_design.py"], test)
    with pytest.raises(Told):
        asyncio.run(test["test_reset"](None))
    return seen


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
@pytest.mark.parametrize("family", FAMILIES)
def test_who_guesses_a_level_wrong_fails_before_a_test_tells_it(
    family: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is checked differs between the levels, so one design cannot be right for both."""
    inputs = [role for role in ("reset", *FAMILIES[family].inputs) if f"{role}_level" in FAMILIES[family].axes]
    assert inputs
    for member in members(family, count):
        right = opening(member, {}, tmp_path, monkeypatch)
        for axis in (f"{role}_level" for role in inputs):
            other = opening(member, {axis: 1 - int(member.values[axis])}, tmp_path, monkeypatch)
            assert len(other) == len(right)
            assert other != right, (member.digest, axis)
