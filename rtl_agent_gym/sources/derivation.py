"""Shared code of the sources of derived problems: source names (``SOURCE+verify?kind=checker&count=100``), problem ids,
the design that a problem is made from, and the stored results of examining designs.

These results are kept on disk, so that reading a source runs no simulation or synthesis. The package contains the
results for its bundled problems; `making` computes all others.
"""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ProblemError, UsageError, writing
from ..files import cache_folder, replace_file
from ..problems.loading import load_problems
from ..problems.model import Problem
from ..problems.registry import Located, read_query, split_source
from ..problems.rows import Place
from ..scoring.compose import read_services
from ..scoring.harness import source_paths, top_modules
from .suites.common import DesignPort, instantiated, module_names, plain, ports, rename

_CLOCK = re.compile(r"(?:\w+_)?a?(?:clk|clock)(?:_?i)?", re.IGNORECASE)
_RESET = re.compile(r"(?:(?P<before>(?:\w+_)?n_)|\w+_)?a?(?:rst|reset)(?P<low>_?n|_?ni|_?b)?(?:_?i)?", re.IGNORECASE)
_CALLS = re.compile(
    r"\$(?!(?:clog2|signed|unsigned|bits|countones|onehot0?|isunknown|size|left|right|high|low)\b)\w+"
    r"|`(?!(?:timescale|default_nettype|resetall)\b)\w+"
)
"""What a design must not contain: random numbers shared with the bench, its own verdicts, file access, and macros."""


@dataclass(frozen=True)
class Device:
    """A correct design with one clock, as the benches see it."""

    name: str
    """The top module."""
    ports: tuple[DesignPort, ...]
    """Those of the top module, with the default parameters."""
    clock: str
    reset: str
    """Empty if there is none."""
    reset_level: int
    """The level at which the reset is active."""
    sources: tuple[str, ...]
    """Paths of the source files, in compilation order."""

    @property
    def inputs(self) -> tuple[DesignPort, ...]:
        """The inputs that are driven at random: all except clock and reset."""
        special = (self.clock, self.reset)
        return tuple(port for port in self.ports if port.direction == "input" and port.name not in special)

    @property
    def outputs(self) -> tuple[DesignPort, ...]:
        return tuple(port for port in self.ports if port.direction == "output")

    @property
    def settings(self) -> dict[str, Any]:
        """Top module, clock and reset, under the keys that the programs of a harness read."""
        return {"top": self.name, "clock": self.clock, "reset": self.reset, "level": self.reset_level}

    def text(self, files: Mapping[str, str]) -> str:
        """The design as one file."""
        return "\n".join(files[path] for path in self.sources)


def right_files(problem: Problem) -> dict[str, str]:
    """The correct design: the given RTL with the reference solution."""
    files = {**problem.context, **(problem.golden or {})}
    return {path: text for path, text in files.items() if path.startswith("rtl/")}


def device_of(problem: Problem) -> Device:
    """The design of a problem's reference solution.

    Raises:
        ProblemError: There is no reference solution, or no bench can be made for it.
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
        raise fault("its design must have at least one output and no inout ports")
    if {port.name for port in found} & set(module_names(text)):
        raise fault("a port has the name of a module")
    clock, reset, level = _special(problem, found)
    if not clock:
        raise fault("its design has no input that is named like a clock")
    return Device(top, found, clock, reset, level, sources)


def _special(problem: Problem, found: tuple[DesignPort, ...]) -> tuple[str, str, int]:
    """Clock, reset and the reset's active level, from a family member's data or guessed from names; empty if absent."""
    bits = [port.name for port in found if port.direction == "input" and port.width == 1]
    if case := problem.harness.get("src/case.json"):
        drawn = json.loads(case)
        names, values = drawn.get("names", {}), drawn.get("values", {})
        if {"clock", "reset"} <= names.keys() and "reset_level" in values:
            return names["clock"], names["reset"], values["reset_level"]
    clock = next(filter(_CLOCK.fullmatch, bits), "")
    reset = next((match for match in map(_RESET.fullmatch, bits) if match), None)
    return clock, reset[0] if reset else "", 0 if reset and (reset["before"] or reset["low"]) else 1


def with_prefix(text: str, prefix: str) -> str:
    """The design with a prefix added to the names of its modules."""
    for name in module_names(text):
        text = rename(text, name, f"{prefix}{name}")
    return text


def renamed_inside(text: str, device: Device) -> str:
    """An equivalent design with other names for internal signals, genvars and blocks.

    Only names that the text declares are replaced; names of ports and modules stay.
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


ENOUGH = 0.95
"""Lowest quality of a usable problem, from 0 to 1; see `Known.verified`."""

_NUMBER = re.compile(r"_(\d+)$")


def derived_id(problem: Problem, middle: str) -> str:
    """The id of a derived problem: the original's id with `middle` before the number."""
    number = _NUMBER.search(problem.id)
    return f"{_NUMBER.sub('', problem.id)[:140]}_{middle}_{number[1] if number else '0001'}"


class DerivedOptions(BaseModel):
    """Options after the question mark of a source name, and of the command that writes such problems."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    count: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of problems; default: as many as possible."""
    seed: int = Field(default=0, ge=0)
    """Seed for drawing mutants."""


Options = TypeVar("Options", bound=DerivedOptions)


def parse_derived(source: str, model: type[Options]) -> tuple[str, Options]:
    """The source that the problems are made from, and the options.

    Raises:
        UsageError: An option is not valid, or that source already has the same suffix.
    """
    name = split_source(source)
    base, (suffix, _, query) = name.prefix + name.inner, name.derived.partition("?")
    if split_source(base).derived.partition("?")[0] == suffix:
        raise UsageError(f"{source}: {suffix} cannot be applied twice; leave out one {suffix}")
    return base, read_query(model, source, query)


class Stored(BaseModel):
    """A result that a `Store` keeps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """What it is the result of; see `Case` and `mutants.mutant.verdict_key`."""
    image: str = ""
    """The digest of the simulation image."""


StoredT = TypeVar("StoredT", bound=Stored)


class Known(Stored, ABC):
    """The stored results of examining a design."""

    problem_id: str
    fault: str = ""
    """Why no problem can be made from the design; empty if one can."""
    verified: dict[str, float] = {}
    """The quality of each kind of problem that was graded, from 0 to 1."""

    @abstractmethod
    def kind(self, options: Any) -> str:
        """The kind of problem that these options make from the design; empty if they can make none."""

    @abstractmethod
    def reason(self, options: Any) -> str:
        """Why no problem is made from the design."""

    def is_usable(self, options: DerivedOptions) -> bool | None:
        """Whether a problem is made from the design; None if that problem has not been graded yet."""
        kind = "" if self.fault else self.kind(options)
        if kind and kind not in self.verified:
            return None
        return bool(kind) and self.verified[kind] >= ENOUGH


KnownT = TypeVar("KnownT", bound=Known)


class Store(Generic[StoredT]):
    """Results of examinations: one file per key in a folder, with a file of the package as the fallback.

    Args:
        model: The type of a result.
        folder: Created if missing. A string stands for ``$XDG_CACHE_HOME/rtl-agent-gym/NAME``.
        shipped: The package's file, with one result per line; None for none.
    """

    contents = "the results of an examination"
    """What it keeps, for messages."""

    def __init__(self, model: type[StoredT], folder: Path | str, shipped: Path | None = None) -> None:
        self.folder = cache_folder(folder) if isinstance(folder, str) else folder
        self.model, self._shipped = model, shipped

    def get(self, key: str) -> StoredT | None:
        """The stored result. A file that cannot be read counts as missing; None if the package has no result either."""
        with contextlib.suppress(OSError, ValidationError):
            return self.model.model_validate_json((self.folder / f"{key}.json").read_bytes())
        line = _lines_by_key(self._shipped).get(key) if self._shipped else None
        return self.model.model_validate_json(line) if line else None

    def put(self, known: StoredT) -> None:
        """Store a result. Raises `UsageError` or `SandboxError` if it cannot be written."""
        path = self.folder / f"{known.key}.json"
        with writing(f"{self.contents} (XDG_CACHE_HOME sets their folder)", path):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, known.model_dump_json())


@cache
def _lines_by_key(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else ()
    return {json.loads(line)["key"]: line for line in lines if line}


@dataclass(frozen=True)
class Case:
    """A design from which a problem may be made."""

    problem: Problem
    """The problem whose reference solution it is."""
    device: Device
    key: str
    """The first twelve digits of the `json_digest` of everything that determines the result of an examination."""

    @property
    def label(self) -> str:
        """The name for messages."""
        return self.problem.id


CaseT = TypeVar("CaseT", bound=Case)


def devices(problems: Sequence[Problem], left_out: list[str]) -> Iterator[tuple[Problem, Device]]:
    """The problems whose reference design can be examined, with that design; `left_out` gets the others' reasons."""
    for problem in problems:
        try:
            device = device_of(problem)
        except ProblemError as error:
            left_out.append(str(error))
        else:
            yield problem, device


@dataclass(frozen=True)
class DerivedSource(Generic[CaseT, Options, KnownT]):
    """A source of problems made from designs that must be examined first."""

    command: str
    """The command that examines designs: ``problems COMMAND``."""
    name: str
    """The name of such problems, for messages."""
    options: type[Options]
    store: Callable[[], Store[KnownT]]
    """Opens the stored results, of the package and in the user's cache."""
    cases: Callable[[Sequence[Problem], Options, list[str]], Iterator[CaseT]]
    """The designs, in the order in which they are tried. Reasons for skipping problems are added to the list."""
    problem: Callable[[CaseT, KnownT, Options], Problem]
    """Makes a problem from a design."""
    fits: Callable[[CaseT, KnownT, Options], bool] = lambda *_: True
    """Whether a stored result still fits the design; otherwise the design must be examined again."""

    def known(self, case: CaseT, options: Options, store: Store[KnownT]) -> KnownT | None:
        """The stored result for a design; None if the design must be examined."""
        known = store.get(case.key)
        return known if known and self.fits(case, known, options) else None

    def read(self, source: str) -> Iterator[Located]:
        """The problems, for the registry.

        Raises:
            UsageError: As `parse_derived`; or there are too few problems, or a design has not been examined yet.
        """
        base, options = parse_derived(source, self.options)
        store, made = self.store(), 0
        for case in self.cases(load_problems(base), options, []):
            if made == options.count:
                return
            known = self.known(case, options, store)
            usable = known.is_usable(options) if known else None
            if known is None or usable is None:
                given = [pair for pair in options if pair[1] is not None and pair[1] is not False]
                words = " ".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in given)
                raise UsageError(
                    f"{source}: {case.label} has not been examined yet; do that once with: rtl-agent-gym problems "
                    f"{self.command} '{base}' {words} --out FILE.jsonl"
                )
            if usable:
                made += 1
                yield self.problem(case, known, options), Place(source, made)
        self.check_count(source, options, made)

    def check_count(self, source: str, options: Options, made: int) -> None:
        """Raise `UsageError` if there are no problems, or fewer than requested."""
        if made < (wanted := options.count or 1):
            raise UsageError(
                f"{source}: {made} {self.name} can be made from its designs, not {wanted}; choose a smaller count"
            )
