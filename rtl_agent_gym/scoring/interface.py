"""The interface stage: the ports of the elaborated top module against those that the problem asks for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..problems.model import Problem
from .frontend import Frontend, Port, Reading

_DIRECTIONS = {"in": "input", "out": "output", "inout": "inout", "ref": "ref", "interface": "interface"}
_DRIVEN = re.compile(r"\bdut\.([A-Za-z]\w*)(?:\.value\s*=(?!=)|\.setimmediatevalue\()|\bClock\(\s*dut\.([A-Za-z]\w*)")


@dataclass(frozen=True)
class Demand:
    """What a problem asks of one module."""

    module: str
    ports: tuple[Port, ...]
    names_only: bool = False
    """Whether only the ports' names are known."""


@dataclass(frozen=True)
class InterfaceStage:
    """What the interface stage found."""

    share: float
    """Share of the ports asked for that are there with their direction and width."""
    differences: tuple[str, ...] = ()
    """Each difference in words."""


async def demands(problem: Problem, tops: Mapping[str, Sequence[str]], frontend: Frontend) -> list[Demand]:
    """What a problem asks of the modules that its tests run on.

    Args:
        problem: With its hidden tests.
        tops: The modules, each with the names of the Python modules that test it.
        frontend: Reads the headers.

    The module's header is taken from the prompt, the documents, or the RTL that the problem gives, in this order;
    without one, the names that the tests drive are all that is known. A header in a file that is to be changed is an
    old one: what its module's tests never look at is not asked for, and widths are not compared.
    """
    found = []
    for top, tests in tops.items():
        header, old = _find_header(problem, top)
        driven = [Port(name, "in", None) for name in _driven(problem, tests)]
        ports: tuple[Port, ...] = ()
        if header is not None:
            reading = await frontend.read({"header.sv": header.encode()}, ["header.sv"], [top])
            ports = reading.ports.get(top, ())
        if old:
            used = _used(problem, tests, tops)
            kept = [port for port in ports if port.name in used] or ports
            ports = tuple(replace(port, width=None) for port in kept)
        if ports:
            found.append(Demand(top, ports))
        elif driven:
            found.append(Demand(top, tuple(driven), names_only=True))
    return found


def _find_header(problem: Problem, top: str) -> tuple[str | None, bool]:
    """The text of `top`'s module with nothing in it, or None where the problem shows none; and whether it stands in a
    file that is to be changed.
    """
    documents = [(text, False) for path, text in problem.context.items() if path.startswith("docs/")]
    rtl = [(text, path in problem.targets) for path, text in problem.context.items() if path.startswith("rtl/")]
    pattern = re.compile(rf"\bmodule\s+{re.escape(top)}\b(?=\s*[#(;])[^;]*;")
    for text, old in [(problem.prompt, False), *documents, *rtl]:
        match = pattern.search(_without_comments(text))
        if match is None:
            continue
        if re.search(r"\b(?:input|output|inout)\b", match.group()):
            return match.group() + "\nendmodule\n", old
        body = re.compile(rf"{re.escape(match.group())}.*?\bendmodule\b", re.DOTALL).search(_without_comments(text))
        if body is not None:
            return body.group() + "\n", old
    return None, False


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def _used(problem: Problem, tests: Sequence[str], tops: Mapping[str, Sequence[str]]) -> set[str]:
    """Names that a module's tests, and what they may import, use of it: all Python files but other modules' tests."""
    others = {name for names in tops.values() for name in names} - set(tests)
    texts = [
        text
        for path, text in problem.harness.items()
        if path.endswith(".py") and path.removesuffix(".py").rsplit("/", 1)[-1] not in others
    ]
    return set(re.findall(r"\bdut\.([A-Za-z]\w*)", "\n".join(texts)))


def _driven(problem: Problem, tests: Sequence[str]) -> list[str]:
    """Signals of the top module that its tests assign."""
    names: dict[str, None] = {}
    for path, text in problem.harness.items():
        if path.endswith(".py") and path.removesuffix(".py").rsplit("/", 1)[-1] in tests:
            names.update(dict.fromkeys(a or b for a, b in _DRIVEN.findall(text)))
    return list(names)


def judge_interface(asked: Sequence[Demand], reading: Reading) -> InterfaceStage:
    """Compare what was asked with what is there. With nothing asked there is nothing to miss."""
    shares, differences = [], []
    for demand in asked:
        ports = reading.ports.get(demand.module)
        if ports is None:
            there = ", ".join(reading.modules) or "none"
            differences.append(f"module {demand.module} is missing (modules found: {there})")
            shares.append(0.0)
            continue
        wrong = list(_compare(demand, {port.name: port for port in ports}))
        differences += [text for _, text in wrong]
        shares.append(1.0 - len(wrong) / len(demand.ports))
    return InterfaceStage(sum(shares) / len(shares) if shares else 1.0, tuple(differences))


def _compare(demand: Demand, ports: Mapping[str, Port]) -> list[tuple[str, str]]:
    """Each port that was asked for and is not there so, with the difference in words."""
    extra = [port for name, port in ports.items() if name not in {asked.name for asked in demand.ports}]
    wrong = []
    for asked in demand.ports:
        port = ports.get(asked.name)
        if port is None:
            like = _alike(asked, extra, demand.names_only)
            wrong.append((asked.name, f"{like} where {asked.name} was asked" if like else f"{asked.name} is missing"))
        elif not demand.names_only and port.direction != asked.direction:
            wrong.append(
                (asked.name, f"{asked.name} is {_DIRECTIONS[port.direction]}, {_DIRECTIONS[asked.direction]} was asked")
            )
        elif asked.width is not None and port.width is not None and asked.width != port.width:
            wrong.append((asked.name, f"{asked.name} has {_bits(port.width)} where {asked.width} were asked"))
    return wrong


def _alike(asked: Port, extra: list[Port], names_only: bool) -> str | None:
    """The left-over port that most looks as if it stood in for `asked`; it is taken from the list."""
    fitting = [
        port for port in extra if names_only or (port.direction == asked.direction and port.width == asked.width)
    ]
    names = difflib.get_close_matches(asked.name, [port.name for port in fitting], n=1, cutoff=0.3)
    if not names and len(fitting) == 1:
        names = [fitting[0].name]
    for port in list(extra):
        if names and port.name == names[0]:
            extra.remove(port)
            return port.name
    return None


def _bits(width: int) -> str:
    return "1 bit" if width == 1 else f"{width} bits"
