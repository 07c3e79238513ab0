"""A mutant as a debugging problem (category 16) in CVDP's agentic format."""

from __future__ import annotations

import re
from typing import Literal, get_args

from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.mutants.generate import Mutant
from rtl_agent_gym.problems.mutants.verdicts import Verdict

Hint = Literal["none", "check", "symptom"]
"""What the task says of the bug: nothing, the names of the hidden checks that fail, or also how the first one fails."""
HINTS: tuple[Hint, ...] = get_args(Hint)

TASK = "docs/task.md"
_NUMBER = re.compile(r"_(\d+)$")
_DERIVED = re.compile(r"_mutant_[0-9a-f]{16}(?:_\d+)?$")
_LONGEST = 400
"""Characters of a symptom."""


def derived_problem(problem: Problem, mutant: Mutant, verdict: Verdict, hint: Hint) -> Problem:
    """The problem of finding and repairing a mutant's bug.

    The agent starts with the source's files and the design, one file of it mutated; the hidden tests are the source's.
    The source's task is in `TASK`, since the design must still do what it asks for.

    Args:
        problem: The source, with its reference solution.
        mutant: A mutant of that solution.
        verdict: How the hidden tests rejected it.
        hint: What the task says of the bug.
    """
    task = _free_path(problem)
    stem, number = _NUMBER.sub("", problem.id), (_NUMBER.search(problem.id) or ["", "0001"])[1]
    return Problem(
        id=f"{stem[:150]}_mutant_{mutant.digest}_{number}",
        category=16,
        difficulty=problem.difficulty,
        prompt=_prompt(task, verdict, hint),
        system_message=problem.system_message,
        context={**problem.context, **mutant.files(problem.golden or {}), task: _task(problem)},
        targets=(mutant.path,),
        harness=problem.harness,
        golden={mutant.path: mutant.before},
    )


def is_derived(problem: Problem) -> bool:
    """Whether a problem is one that `derived_problem` made."""
    return _DERIVED.search(problem.id) is not None


def _task(problem: Problem) -> str:
    """The text of `TASK`."""
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


def _free_path(problem: Problem) -> str:
    """The path of the source's task, which no other file has."""
    taken, path, number = {*problem.context, *(problem.golden or {})}, TASK, 1
    while path in taken:
        number += 1
        path = TASK.replace(".md", f"_{number}.md")
    return path
