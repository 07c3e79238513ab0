"""Mutants of a design: generating all of them, drawing some, and storing the verdicts of gradings and proofs.

The package has verdicts on mutants of the bundled problems (``verdicts.jsonl``, written by ``benchmarks/mutants.py``).
``problems strength`` and ``problems mutate`` store those of other problems in the user's cache, so that reading a
source of mutants grades nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from ...errors import writing
from ...files import cache_folder
from ...problems.model import Problem
from ...problems.rows import diff_body
from ..suites.common import json_digest
from .operators import OPERATORS, Design

_HDL = (".v", ".sv", ".vh", ".svh")


@dataclass(frozen=True)
class Mutant:
    """A correct design with one small change."""

    operator: str
    """The name of the operator that made it."""
    path: str
    """The path of the changed file."""
    line: int
    """The 1-based line where the change begins."""
    before: str
    """The text of the correct file."""
    after: str
    """The text of the changed file. Everything else is unchanged, including comments and spaces."""

    @property
    def digest(self) -> str:
        """The first sixteen hexadecimal digits of a hash of the changed file. The amount of white space is ignored."""
        text = f"{self.path}\0{' '.join(self.after.split())}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def diff(self) -> str:
        """The change as the body of a unified diff."""
        return diff_body(self.before, self.after)

    def files(self, golden: Mapping[str, str]) -> dict[str, str]:
        """The design's files with the change."""
        return {**golden, self.path: self.after}


def design_mutants(files: Mapping[str, str], readable: Mapping[str, str] | None = None) -> list[Mutant]:
    """All different mutants of some files, sorted by path and then by position in the file.

    Args:
        files: The correct design: text by path. Files have no mutants if they are not Verilog, have a syntax error, or
            have an expression of more than about 400 operands.
        readable: Other files that the design may include.
    """
    known = {**(readable or {}), **files}
    found: dict[str, Mutant] = {}
    for path in sorted(files):
        if path.endswith(_HDL):
            try:
                mutants = list(_of_file(Design(known, path), path))
            except RecursionError:  # the tree of an expression with some 500 operands in a row
                continue
            for mutant in mutants:
                found.setdefault(mutant.digest, mutant)
    return list(found.values())


def problem_mutants(problem: Problem) -> list[Mutant]:
    """Every mutant of a problem's reference solution; none if it is withheld."""
    right = {path: text for path, text in (problem.golden or {}).items() if path.startswith("rtl/")}
    return design_mutants(right, problem.context)


def draw_mutants(mutants: Sequence[Mutant], seed: int) -> list[Mutant]:
    """The mutants in random order, in rounds of one mutant per operator, while an operator has mutants left.

    Any prefix of the list therefore contains the operators about equally often.
    """
    rng = Random(f"mutants/{seed}")
    by_operator = {name: [mutant for mutant in mutants if mutant.operator == name] for name in OPERATORS}
    for group in by_operator.values():
        rng.shuffle(group)
    rounds: list[Mutant] = []
    while any(by_operator.values()):
        present = [group for group in by_operator.values() if group]
        rng.shuffle(present)
        rounds += [group.pop() for group in present]
    return rounds


def _of_file(design: Design, path: str) -> Iterator[Mutant]:
    if design.broken:
        return
    before = design.data.decode()
    for node, scope in design.nodes():
        for name, operate in OPERATORS.items():
            for edits in operate(design, node, scope):
                line = design.line(min(edits).start)
                after = design.apply(edits)
                if after != before:
                    yield Mutant(name, path, line, before, after)


SHIPPED = Path(__file__).with_name("verdicts.jsonl")
"""The verdicts that are part of the package."""

Equivalence = Literal["", "proved", "bounded", "differs", "unknown"]
"""The result of Yosys for a survivor; see `rtl_agent_gym.sources.mutants.equivalence`. Empty: not compared."""

Outcome = Literal["killed", "survived", "invalid"]


_VERSION = 3
"""Increased when anything else that determines verdicts and proofs changes: the tests' seed, what counts as a proof."""


class Verdict(BaseModel, frozen=True, extra="forbid"):
    """The stored results for one mutant."""

    design: str
    """The `design_key` of its problem."""
    mutant: str
    """Its digest (`Mutant.digest`)."""
    operator: str
    path: str
    line: int
    outcome: Outcome
    """``killed``: the hidden tests reject it, and accept the reference. ``survived``: they accept both. ``invalid``: it
    does not compile, or the reference fails too, so it does not count."""
    failed: tuple[str, ...] = ()
    """The hidden checks that fail."""
    symptom: str = ""
    """The reason in its score."""
    equivalence: Equivalence = ""
    steps: int = 0
    """For ``bounded``: the number of steps without a difference."""
    image: str = ""
    """The digest of the simulation image in which it was graded."""

    @classmethod
    def on(cls, design: str, mutant: Mutant, outcome: Outcome, **fields: Any) -> Verdict:
        """The verdict on a mutant of the design with this `design_key`; `fields` are the remaining fields."""
        place: dict[str, Any] = {"operator": mutant.operator, "path": mutant.path, "line": mutant.line}
        return cls(design=design, mutant=mutant.digest, outcome=outcome, **place, **fields)


def design_key(problem: Problem) -> str:
    """Sixteen hexadecimal digits of a hash of what determines verdicts: hidden tests, given RTL, reference solution."""
    context = {path: text for path, text in problem.context.items() if path.startswith("rtl/")}
    return json_digest([_VERSION, problem.harness, context, problem.golden])[:16]


class VerdictStore:
    """Verdicts in a folder, one file per design, which replace those of the package. Each file is read once.

    Args:
        folder: Created if missing; None for ``$XDG_CACHE_HOME/rtl-agent-gym/mutants``.
        shipped: Whether the package's verdicts are used.
    """

    def __init__(self, folder: Path | None = None, *, shipped: bool = True) -> None:
        self.folder = folder or cache_folder("mutants")
        self._shipped = shipped
        self._known: dict[str, dict[str, Verdict]] = {}

    def of(self, design: str) -> dict[str, Verdict]:
        """The verdicts on a design's mutants, by digest."""
        if design not in self._known:
            shipped = _by_design(SHIPPED).get(design, {}) if self._shipped else {}
            read = {verdict.mutant: verdict for verdict in _read(self.folder / f"{design}.jsonl")}
            self._known[design] = shipped | read
        return self._known[design]

    def add(self, verdict: Verdict) -> None:
        """Store a verdict, replacing an earlier one. Raises `UsageError` or `SandboxError` if it cannot be written."""
        path = self.folder / f"{verdict.design}.jsonl"
        with writing("the verdicts of mutants (XDG_CACHE_HOME names their folder)", path):
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
                cut_off = stream.read() not in (b"", b"\n")
                stream.write(b"\n" * cut_off + verdict.model_dump_json().encode() + b"\n")
        self.of(verdict.design)[verdict.mutant] = verdict


@cache
def _by_design(path: Path) -> dict[str, dict[str, Verdict]]:
    found: dict[str, dict[str, Verdict]] = {}
    for verdict in _read(path):
        found.setdefault(verdict.design, {})[verdict.mutant] = verdict
    return found


def _read(path: Path) -> Iterator[Verdict]:
    """The verdicts in a file, without lines that a crash cut off."""
    lines: Iterable[str] = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ()
    for line in lines:
        try:
            yield Verdict.model_validate_json(line)
        except ValidationError:
            continue
