"""The design that a bench is written for: its ports, clock and reset, and its text under other names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.scoring.compose import read_services
from rtl_agent_gym.scoring.harness import source_paths, top_modules
from rtl_agent_gym.sources.suites.common import DesignPort, instantiated, module_names, plain, ports, rename

_CLOCK = re.compile(r"(?:\w+_)?a?(?:clk|clock)(?:_?i)?", re.IGNORECASE)
_RESET = re.compile(r"(?:\w+_)?a?(?:rst|reset)(?P<low>_?n|_?ni|_?b)?(?:_?i)?", re.IGNORECASE)
_CALLS = re.compile(
    r"\$(?!(?:clog2|signed|unsigned|bits|countones|onehot0?|isunknown|size|left|right|high|low)\b)\w+"
    r"|`(?!(?:timescale|default_nettype|resetall)\b)\w+"
)
"""What a design must not have: random numbers that it shares with the bench, verdicts of its own, files, and macros."""


@dataclass(frozen=True)
class Device:
    """A right design with one clock, as the benches see it."""

    name: str
    """Its top module."""
    ports: tuple[DesignPort, ...]
    """At the defaults of the parameters."""
    clock: str
    reset: str
    """Empty if it has none."""
    reset_level: int
    """The level at which the reset is active."""
    sources: tuple[str, ...]
    """Its files in the order of compilation."""

    @property
    def inputs(self) -> tuple[DesignPort, ...]:
        """The inputs that are driven at random: without clock and reset."""
        return tuple(port for port in self.ports if port.direction == "input" and port.name not in self.special)

    @property
    def outputs(self) -> tuple[DesignPort, ...]:
        """The outputs."""
        return tuple(port for port in self.ports if port.direction == "output")

    @property
    def special(self) -> tuple[str, ...]:
        """Clock and reset."""
        return (self.clock, self.reset) if self.reset else (self.clock,)

    def text(self, files: Mapping[str, str]) -> str:
        """The design as one file."""
        return "\n".join(files[path] for path in self.sources)


def right_files(problem: Problem) -> dict[str, str]:
    """The right design: the given RTL with the reference solution."""
    files = {**problem.context, **(problem.golden or {})}
    return {path: text for path, text in files.items() if path.startswith("rtl/")}


def device_of(problem: Problem) -> Device:
    """The design of a problem's reference solution.

    Raises:
        ProblemError: There is none, or benches for it cannot be made.
    """

    def fault(message: str) -> ProblemError:
        return ProblemError(f"its design cannot be examined: {message}", problem_id=problem.id)

    files = right_files(problem)
    if not problem.golden or problem.unscorable or problem.checkout or problem.asks_text:
        raise fault("it has no reference solution that can be simulated alone")
    services = read_services(problem)
    tops = list(top_modules(services))
    sources = tuple(path for path in source_paths(services) if path in files)
    if not tops or not sources:
        raise fault("its hidden tests name no top module or no sources")
    text = "\n".join(files[path] for path in sources)
    used = set(instantiated(text))
    top = next((name for name in tops if name not in used), tops[0])
    if match := _CALLS.search(plain(text)):
        raise fault(f"its design has {match[0]}")
    found = ports(text).get(top, ())
    if any(port.direction == "inout" for port in found) or not any(port.direction == "output" for port in found):
        raise fault("its design needs inputs and outputs only")
    if {port.name for port in found} & set(module_names(text)):
        raise fault("a port has the name of a module")
    clock, reset, level = _special(problem, found)
    if not clock:
        raise fault("its design has no input that is named like a clock")
    return Device(top, found, clock, reset, level, sources)


def _special(problem: Problem, found: tuple[DesignPort, ...]) -> tuple[str, str, int]:
    """Clock, reset and the reset's active level, empty where there is none; a member of a family says what it has."""
    bits = [port.name for port in found if port.direction == "input" and port.width == 1]
    if case := problem.harness.get("src/case.json"):
        drawn = json.loads(case)
        names, values = drawn.get("names", {}), drawn.get("values", {})
        if {"clock", "reset"} <= names.keys() and "reset_level" in values:
            return names["clock"], names["reset"], values["reset_level"]
    clock = next(filter(_CLOCK.fullmatch, bits), "")
    reset = next((match for match in map(_RESET.fullmatch, bits) if match), None)
    return clock, reset[0] if reset else "", 0 if reset and reset["low"] else 1


def with_prefix(text: str, prefix: str) -> str:
    """A design whose modules' names begin with a prefix."""
    for name in module_names(text):
        text = rename(text, name, f"{prefix}{name}")
    return text


def renamed_inside(text: str, device: Device) -> str:
    """A design that behaves the same, with other names for its signals, parameters, instances and blocks.

    Only names that the text declares are replaced, and none that is a port of any module.
    """
    kept = {port.name for module in ports(text).values() for port in module} | set(module_names(text))
    bare = plain(text)
    declared = re.findall(
        r"\b(?:reg|wire|logic|integer|int|genvar|bit)\b(?:\s+(?:signed|unsigned))?(?:\s*\[[^\]]*\])*\s+([A-Za-z_]\w*)"
        r"(?=\s*(?:\[|[;,=]|\)))",
        bare,
    )
    declared += re.findall(r"(?:begin|fork)\s*:\s*([A-Za-z_]\w*)", bare)
    for number, name in enumerate(dict.fromkeys(declared)):
        if name not in kept and not re.search(rf"\.\s*{name}\b", bare):
            text = rename(text, name, f"inner_{number}_")
    return text
