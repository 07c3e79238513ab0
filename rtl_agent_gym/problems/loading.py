"""Load problems from any source, checked and filtered, in file order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems.categories import parse_category, parse_difficulty
from rtl_agent_gym.problems.cvdp_notes.rows import Rows, keep_rows
from rtl_agent_gym.problems.families.source import PREFIX, generate
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.mutants.source import derive, parse_source
from rtl_agent_gym.problems.near import near_matches
from rtl_agent_gym.problems.reading import Place, read_rows
from rtl_agent_gym.problems.rows import problem_from_row
from rtl_agent_gym.problems.sources import find_files
from rtl_agent_gym.problems.suites import SUITES

_T = TypeVar("_T", int | str, str)

Source = str | os.PathLike[str] | Sequence[Problem]
"""``"bundled"``, the path of a JSON Lines file (gzipped or not) or of a folder of them, ``owner/name[:file]`` on the
Hugging Face Hub, ``family:NAME?count=200&seed=7&split=train`` (generated problems), ``verilog-eval:FOLDER``,
``rtllm:FOLDER`` or ``notsotiny:FILE`` (other benchmarks), or problems already loaded. Any of these texts followed by
``+mutants?count=100&seed=7&hint=symptom`` (debugging problems made of those problems)."""


def load_problems(
    source: Source,
    *,
    ids: str | Iterable[str] | None = None,
    categories: int | str | Iterable[int | str] | None = None,
    difficulties: str | Iterable[str] | None = None,
    rows: Rows = "all",
) -> list[Problem]:
    """The problems of a source that match all filters.

    Rows that cannot be scored are loaded too; their `Problem.unscorable` says why. Some need options: a judge model,
    or the image of a commercial simulator.

    Args:
        source: See `Source`.
        ids: Keep only these problems.
        categories: Keep only these categories, as 3 or ``"cid003"``.
        difficulties: Keep only these difficulties.
        rows: Keep only rows of CVDP that are known to be ``"fair"``, ``"partial"`` or ``"sound"``, or better; see
            `cvdp_notes.Rows`.

    Raises:
        UsageError: There is no such source, id, category or difficulty, or `rows` leaves no problem.
        ProblemError: A row is invalid, even one that a filter would exclude. Names file, line, field, and what was
            expected.

    Example:
        >>> [problem.id for problem in load_problems("bundled", categories=["cid003"], difficulties="easy")]
    """
    wanted_categories = None if categories is None else set(map(parse_category, _several(categories)))
    wanted_difficulties = None if difficulties is None else set(map(parse_difficulty, _several(difficulties)))
    problems = []
    for item in scan_problems(source):
        if isinstance(item, ProblemError):
            raise item
        problems.append(item)
    wanted_ids = None if ids is None else {find_problem(problems, name).id for name in _several(ids)}
    selected = [
        problem
        for problem in problems
        if (wanted_ids is None or problem.id in wanted_ids)
        and (wanted_categories is None or problem.category in wanted_categories)
        and (wanted_difficulties is None or problem.difficulty in wanted_difficulties)
    ]
    return keep_rows(selected, rows)


def find_problem(problems: Iterable[Problem], problem_id: str) -> Problem:
    """The problem with the id `problem_id`.

    Raises:
        UsageError: There is none; the message names the most similar ids.
    """
    by_id = {problem.id: problem for problem in problems}
    if problem_id not in by_id:
        raise UsageError(f"there is no problem {problem_id!r}; {near_matches(str(problem_id), by_id)}")
    return by_id[problem_id]


def scan_problems(source: Source) -> Iterator[Problem | ProblemError]:
    """Every row of a source in order: the problem, or the error of an invalid row.

    Unlike `load_problems` this continues after an invalid row, so that a check reports all errors of a file.

    Raises:
        UsageError: There is no such source.
    """
    yield from _unique(_rows(source) if isinstance(source, str | os.PathLike) else _given(source))


_Located = tuple[Problem | ProblemError, Place]


def _rows(source: str | os.PathLike[str]) -> Iterator[_Located]:
    if isinstance(source, str) and (mutated := parse_source(source)) is not None:
        base, options = mutated
        made = derive(source, load_problems(base), options)
        yield from ((one.problem, Place(source, number)) for number, one in enumerate(made, 1))
        return
    if isinstance(source, str) and source.startswith(PREFIX):
        yield from ((problem, Place(source, number)) for number, problem in enumerate(generate(source), 1))
        return
    for prefix, read_suite in SUITES.items():
        if isinstance(source, str) and source.startswith(prefix):
            yield from read_suite(source)
            return
    source_files = find_files(source)
    empty = True
    for path, label in source_files:
        try:
            for place, row in read_rows(path, label):
                empty = False
                yield row if isinstance(row, ProblemError) else _read(row, place, path.parent), place
        except ProblemError as error:
            empty = False
            yield error, Place(label)
    if empty:
        place = Place(source_files[0][1])
        yield place.error("the source contains no problem"), place


def _read(row: dict[str, Any], place: Place, folder: Path) -> Problem | ProblemError:
    try:
        return problem_from_row(row, place, folder)
    except ProblemError as error:
        return error


def _given(problems: Sequence[Problem]) -> Iterator[_Located]:
    for number, problem in enumerate(problems):
        if not isinstance(problem, Problem):
            raise UsageError(
                f"entry {number} of the problems has the type {type(problem).__name__}; expected Problem "
                "(load files with load_problems)"
            )
        yield problem, Place(f"entry {number}")


def _unique(items: Iterator[_Located]) -> Iterator[Problem | ProblemError]:
    """Replace a problem with a repeated id by an error that names both places."""
    seen: dict[str, Place] = {}
    for item, place in items:
        if isinstance(item, Problem):
            if item.id in seen:
                message = f"the id is repeated, here and at {seen[item.id]}; ids are unique in a source"
                yield place.error(message, field="id", problem_id=item.id)
                continue
            seen[item.id] = place
        yield item


def _several(value: _T | Iterable[_T]) -> list[_T]:
    """A filter's values as a list; a single value becomes a list of one."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
