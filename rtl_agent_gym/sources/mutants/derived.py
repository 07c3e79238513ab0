"""Debugging problems made from mutants: the source ``…+mutants?count=100&seed=7&hint=symptom``.

Only mutants with the verdict ``killed`` become problems. Mutants without a verdict must first be graded, with
``rtl-agent-gym problems mutate``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field
from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from ...errors import ProblemError, UsageError
from ...problems.loading import load_problems
from ...problems.model import Problem
from ...problems.registry import Located
from ...problems.rows import Place, apply_patch
from ..derivation import DerivedOptions, derived_id, parse_derived
from .mutant import Mutant, Verdict, VerdictStore, design_key, draw_mutants, problem_mutants, verdict_key

Hint = Literal["none", "check", "symptom"]
"""What the task says about the bug: nothing, the names of the hidden checks that fail, or also how many fail (or that
the simulation does not end)."""

TASK = "docs/task.md"
_DERIVED = re.compile(r"_mutant_[0-9a-f]{16}(?:_\d+)?$")
_LONGEST = 400
"""Maximum length of a symptom, in characters."""


def derived_problem(problem: Problem, mutant: Mutant, verdict: Verdict, hint: Hint) -> Problem:
    """The problem of finding and repairing a mutant's bug.

    The agent starts with the files of the original problem and the design, one file of it mutated. The hidden tests are
    the original's, and the original's task is in `TASK`, since the design must still meet it.
    """
    task = task_path(problem)
    return Problem(
        id=derived_id(problem, f"mutant_{mutant.digest}"),
        category=16,
        difficulty=problem.difficulty,
        prompt=_prompt(task, verdict, hint),
        system_message=problem.system_message,
        context={**problem.context, **mutant.files(problem.golden or {}), task: task_text(problem)},
        targets=(mutant.path,),
        harness=problem.harness,
        golden={mutant.path: mutant.before},
    )


def is_derived(problem: Problem) -> bool:
    """Whether a problem was made by `derived_problem`."""
    return _DERIVED.search(problem.id) is not None


def task_text(problem: Problem) -> str:
    """The task for which the design was written, as a document beside the design."""
    heading = "The design in `rtl/` was written for this task, and is to do what it asks for."
    if set(problem.targets) & set(problem.context):  # it was to be changed or repaired
        heading += (
            " What the task or a file beside the design says of the state of `rtl/` is from before that: faults that "
            "it reports have been repaired."
        )
    return f"{heading}\n\n{problem.prompt}"


def _prompt(task: str, verdict: Verdict, hint: Hint) -> str:
    lines = [f"The design in `rtl/` was written for the task in `{task}`, but it has a bug."]
    names = ", ".join(f"`{name}`" for name in verdict.failed)
    if hint != "none" and names:
        lines.append(f"Of the hidden checks, these fail: {names}.")
    if hint == "symptom" and verdict.symptom:
        lines.append(f"What was seen: {verdict.symptom[:_LONGEST]}")
    lines.append(
        "Find the bug and repair it in place. It is in one place of one file; everything else is right. Keep the names "
        "of modules, parameters and ports."
    )
    return "\n\n".join(lines) + "\n"


def task_path(problem: Problem) -> str:
    """A path for `task_text` that no other file has."""
    taken, path, number = {*problem.context, *(problem.golden or {})}, TASK, 1
    while path in taken:
        number += 1
        path = TASK.replace(".md", f"_{number}.md")
    return path


def with_design(problem: Problem, designs: Path) -> Problem:
    """The problem with its design in `designs` as the reference solution; unchanged if there is no such design.

    Args:
        problem: Its id, with or without ``cvdp_agentic_``, is the name of the design's folder.
        designs: Contains a folder per design, with the files at their paths. ``x.sv.patch`` stands for ``x.sv`` as a
            unified diff against a file of another design, which its first line names.

    Raises:
        UsageError: `designs` does not exist, a file cannot be read, or a patch cannot be applied.
    """
    if not designs.is_dir():
        raise UsageError(f"{designs}: there is no such folder of designs")
    for name in (problem.id, problem.id.removeprefix("cvdp_agentic_")):
        if (designs / name).is_dir():
            return problem.model_copy(update={"golden": _read(designs, name)})
    return problem


def _read(designs: Path, name: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for path in sorted((designs / name).rglob("*")):
        if path.is_file():
            inside = path.relative_to(designs / name).as_posix()
            try:
                text = path.read_text(encoding="utf-8")
                files[inside.removesuffix(".patch")] = _patched(designs, text) if inside.endswith(".patch") else text
            except (OSError, UnicodeDecodeError, UnidiffParseError, ProblemError, ValueError) as error:
                raise UsageError(f"{path}: cannot be read as a file of a design: {error}") from error
    return files


def _patched(designs: Path, text: str) -> str:
    if len(patches := PatchSet(text)) != 1:
        raise ValueError("expected a unified diff of one file")
    [patch] = patches
    base = (designs / patch.source_file).read_text(encoding="utf-8")
    return apply_patch(base, "".join(str(hunk) for hunk in patch))


class MutantOptions(DerivedOptions):
    """Options after the question mark. With the same seed, a larger count only adds problems at the end."""

    count: int = Field(default=100, ge=1, le=1_000_000)
    """Number of problems."""
    hint: Hint = "symptom"
    """What the task says about the bug: none; check: the names of the hidden checks that fail; symptom: also how many
    fail, or that the simulation does not end."""


class Candidate(NamedTuple):
    """A mutant that may become a problem."""

    problem: Problem
    """The original problem."""
    design: str
    """The `design_key` of the original problem."""
    mutant: Mutant


def read_source(source: str) -> Iterator[Located]:
    """The problems of a source that ends in ``+mutants``, for the registry.

    Raises:
        UsageError: As `parse_derived`; or there are too few mutants, or a verdict is missing.
    """
    base, options = parse_derived(source, MutantOptions)
    store, made = VerdictStore(), 0
    for problem, design, mutant in enough_candidates(source, load_problems(base), options):
        verdict = store.get(verdict_key(design, mutant))
        if verdict is None:
            raise UsageError(
                f"{source}: the mutants of {problem.id} have not been graded yet, so it is unknown which of them the "
                f"tests detect; grade them once with: rtl-agent-gym problems mutate '{base}' "
                f"--count {options.count} --seed {options.seed} --out FILE.jsonl"
            )
        if verdict.outcome == "killed":
            made += 1
            yield derived_problem(problem, mutant, verdict, options.hint), Place(source, made)
            if made == options.count:
                return
    raise UsageError(too_few(source, options.count, made))


def candidates(problems: Iterable[Problem], seed: int) -> Iterator[Candidate]:
    """The mutants in the order in which they are tried, alternating between problems and between operators.

    Problems without a reference solution are skipped. So are those with a repository checkout, since problems derived
    from them would be graded differently, and those made from mutants, since their tasks describe another bug.
    """
    with_golden = [
        problem
        for problem in problems
        if problem.golden and problem.unscorable is None and not problem.checkout and not is_derived(problem)
    ]
    rows = (_drawn(problem, seed) for problem in with_golden)
    seen = set()  # two problems may have the same design
    for found in chain.from_iterable(zip_longest(*rows)):
        if found is not None and (found.design, found.mutant.digest) not in seen:
            seen.add((found.design, found.mutant.digest))
            yield found


def enough_candidates(source: str, problems: Sequence[Problem], options: MutantOptions) -> list[Candidate]:
    """All `candidates`, in their order.

    Raises:
        UsageError: There are fewer than requested, even if the tests reject all of them.
    """
    found = list(candidates(problems, options.seed))
    if found and len(found) < options.count:
        raise UsageError(
            f"{source}: its reference solutions have {len(found)} mutants in all, and the tests reject only some of "
            f"them, so {options.count} problems cannot be made; choose a smaller count"
        )
    if not found and problems and all(map(is_derived, problems)):
        raise UsageError(f"{source}: its problems are mutants, which are not mutated again")
    if not any(problem.golden for problem in problems):
        raise UsageError(
            f"{source}: none of its problems has a reference solution; give your own correct designs with: "
            "rtl-agent-gym problems mutate SOURCE --designs DIR --out FILE.jsonl"
        )
    return found


def too_few(source: str, wanted: int, found: int) -> str:
    """The error message for a source whose tests reject fewer mutants than requested."""
    if found == 0:
        return f"{source}: none of its problems has a reference solution with mutants that its tests reject"
    return f"{source}: the tests reject only {found} of the mutants, not {wanted}; choose count={found} or less"


def _drawn(problem: Problem, seed: int) -> Iterator[Candidate]:
    design = design_key(problem)
    for mutant in draw_mutants(problem_mutants(problem), seed):
        yield Candidate(problem, design, mutant)
