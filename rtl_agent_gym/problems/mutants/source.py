"""Sources that end in ``+mutants?count=100&seed=7&hint=symptom``: debugging problems made of other problems.

Only mutants whose verdict is known to be ``killed`` become problems. What is not known must be graded first, which
``rtl-agent-gym problems mutate`` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.mutants.derived import HINTS, Hint, derived_problem, is_derived
from rtl_agent_gym.problems.mutants.generate import Mutant, draw_mutants, problem_mutants
from rtl_agent_gym.problems.mutants.verdicts import Verdict, VerdictStore, design_key
from rtl_agent_gym.problems.queries import read_query

SUFFIX = "+mutants"
_SOURCE = re.compile(r"(?P<base>.+)\+mutants(?:\?(?P<query>[^?]*))?", re.DOTALL)


class MutantOptions(BaseModel):
    """What may follow the question mark."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(default=100, ge=1, le=1_000_000)
    """How many problems, no two of them equal."""
    seed: int = Field(default=0, ge=0)
    """The first problems of a seed are the same for every count."""
    hint: Hint = "symptom"


class Candidate(NamedTuple):
    """A mutant that may become a problem."""

    problem: Problem
    """Its source."""
    design: str
    """The source's `design_key`."""
    mutant: Mutant


class Derived(NamedTuple):
    """A problem made of a mutant, and what shows that it is one."""

    problem: Problem
    source: Problem
    verdict: Verdict


def parse_source(source: str) -> tuple[str, MutantOptions] | None:
    """The source that is mutated, and the options; None if a source does not end in `SUFFIX` and options.

    Raises:
        UsageError: An option is not valid, or the source to be mutated is one of mutants itself.
    """
    match = _SOURCE.fullmatch(source)
    if match and _SOURCE.fullmatch(match["base"]):
        raise UsageError(f"{source}: mutants are not mutated again; leave out one {SUFFIX}")
    return (match["base"], _parse_options(source, match["query"] or "")) if match else None


def candidates(problems: Iterable[Problem], seed: int) -> Iterator[Candidate]:
    """The mutants of problems in the order in which they are tried: of each problem in turn, of each operator in turn.

    Problems without a reference solution have none. Neither have those that begin with a whole repository, as what is
    derived from them would be graded in another way, and those that are mutants: their tasks tell of another bug.
    """
    with_golden = [
        one for one in problems if one.golden and one.unscorable is None and not one.checkout and not is_derived(one)
    ]
    rows = (_drawn(problem, seed) for problem in with_golden)
    seen = set()  # two problems may have the same design
    for found in chain.from_iterable(zip_longest(*rows)):
        if found is not None and (found.design, found.mutant.digest) not in seen:
            seen.add((found.design, found.mutant.digest))
            yield found


def derive(
    source: str, problems: Sequence[Problem], options: MutantOptions, store: VerdictStore | None = None
) -> Iterator[Derived]:
    """The debugging problems of a source.

    Args:
        source: Its name for messages.
        problems: What is mutated.
        options: How many and which.
        store: Verdicts; None for those of the package and the user's cache.

    Raises:
        UsageError: There are fewer mutants, or a verdict is not known. The message says what to do.
    """
    store, left = store or VerdictStore(), options.count
    known: dict[str, dict[str, Verdict]] = {}
    for candidate in enough_candidates(source, problems, options):
        if candidate.design not in known:
            known[candidate.design] = store.of(candidate.design)
        verdict = known[candidate.design].get(candidate.mutant.digest)
        if verdict is None:
            base = source.rpartition(SUFFIX)[0]
            raise UsageError(
                f"{source}: the mutants of {candidate.problem.id} are not graded yet, so it is not known which have a "
                f"bug that the tests see; grade them once with: rtl-agent-gym problems mutate '{base}' "
                f"--count {options.count} --seed {options.seed} --out FILE.jsonl"
            )
        if verdict.outcome == "killed":
            made = derived_problem(candidate.problem, candidate.mutant, verdict, options.hint)
            yield Derived(made, candidate.problem, verdict)
            left -= 1
            if left == 0:
                return
    raise UsageError(too_few(source, options.count, options.count - left))


def enough_candidates(source: str, problems: Sequence[Problem], options: MutantOptions) -> list[Candidate]:
    """All `candidates`, in their order.

    Raises:
        UsageError: There are fewer than wanted, whatever the tests say of them.
    """
    found = list(candidates(problems, options.seed))
    if found and len(found) < options.count:
        raise UsageError(
            f"{source}: its reference solutions have {len(found)} mutants in all, of which tests reject only a part; "
            f"{options.count} problems cannot be made of them: choose a smaller count"
        )
    if not found and problems and all(map(is_derived, problems)):
        raise UsageError(f"{source}: its problems are mutants, which are not mutated again")
    if not any(problem.golden for problem in problems):
        raise UsageError(
            f"{source}: no problem of it has a reference solution; give right designs of your own: "
            "rtl-agent-gym problems mutate SOURCE --designs DIR --out FILE.jsonl"
        )
    return found


def too_few(source: str, wanted: int, found: int) -> str:
    """The message for a source with fewer mutants that its tests reject than wanted."""
    if found == 0:
        return f"{source}: no problem of it has a reference solution with mutants that its tests reject"
    return f"{source}: there are only {found} mutants that the tests reject, not {wanted}; choose count={found} or less"


def _drawn(problem: Problem, seed: int) -> Iterator[Candidate]:
    design = design_key(problem)
    for mutant in draw_mutants(problem_mutants(problem), seed):
        yield Candidate(problem, design, mutant)


def _parse_options(source: str, query: str) -> MutantOptions:
    expected = {
        "count": "a number from 1 to 1000000",
        "seed": "a number from 0 up",
        "hint": f"one of {', '.join(HINTS)}",
    }
    return read_query(MutantOptions, source, query, expected)
