"""Mutants of a design: generating all of them, drawing some, and storing the verdicts of gradings and proofs.

The package has verdicts on mutants of the bundled problems (``verdicts.jsonl``, written by ``benchmarks/mutants.py``).
``problems strength`` and ``problems mutate`` store those of other problems in the user's cache, so that reading a
source of mutants grades nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from ...problems.model import Problem
from ...problems.rows import diff_body
from ..derivation import Store, Stored
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


class Verdict(Stored):
    """The stored results for one mutant; `key` is its `verdict_key`."""

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

    @classmethod
    def on(cls, design: str, mutant: Mutant, outcome: Outcome, **fields: Any) -> Verdict:
        """The verdict on a mutant of the design with this `design_key`; `fields` are the remaining fields."""
        place: dict[str, Any] = {"operator": mutant.operator, "path": mutant.path, "line": mutant.line}
        return cls(key=verdict_key(design, mutant), outcome=outcome, **place, **fields)


def design_key(problem: Problem) -> str:
    """Sixteen hexadecimal digits of a hash of what determines verdicts: hidden tests, given RTL, reference solution."""
    context = {path: text for path, text in problem.context.items() if path.startswith("rtl/")}
    return json_digest([_VERSION, problem.harness, context, problem.golden])[:16]


def verdict_key(design: str, mutant: Mutant) -> str:
    """The key of the verdict on a mutant of the design with this `design_key`."""
    return f"{design}-{mutant.digest}"


class VerdictStore(Store[Verdict]):
    """Verdicts in a folder, which replace those of the package.

    Args:
        folder: As for `Store`.
        shipped: Whether the package's verdicts are used.
    """

    contents = "the verdicts of mutants"

    def __init__(self, folder: Path | str = "mutants", *, shipped: bool = True) -> None:
        super().__init__(Verdict, folder, SHIPPED if shipped else None)
