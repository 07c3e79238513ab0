"""All mutants of a design, and a drawn part of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.mutants.operators import OPERATORS
from rtl_agent_gym.problems.mutants.tree import Design
from rtl_agent_gym.problems.writing import diff_body

_HDL = (".v", ".sv", ".vh", ".svh")


@dataclass(frozen=True)
class Mutant:
    """A right design with one small change."""

    operator: str
    """The name of the operator that made it."""
    path: str
    """The changed file."""
    line: int
    """The 1-based line where the change begins."""
    before: str
    """The right file."""
    after: str
    """The changed file. Everything but the change is as it was, comments and spaces included."""

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits of a hash of the changed file. Spaces do not count."""
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
    """Every mutant of some files, no two of them equal, in the order of the files' texts.

    Args:
        files: The right design: text by path. Files that are not Verilog, that have a syntax error, or
            an expression of more than some 400 operands, have none.
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
    """The mutants in a random order in which every operator comes equally often, as long as it has mutants left.

    The first members of a seed are the same for every length.
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
