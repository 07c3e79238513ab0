"""Convert a `Problem` to a row of the benchmark's files, the opposite of `rows`."""

from __future__ import annotations

import difflib
import re
from typing import Any

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems.categories import category_name
from rtl_agent_gym.problems.model import Problem


def problem_row(problem: Problem) -> dict[str, Any]:
    """The agentic row of a problem, as the official runner reads it.

    Raises:
        UsageError: The problem is not agentic, or its row names a repository instead of files.
    """
    if not problem.agentic or not problem.harness or problem.checkout:
        raise UsageError(f"{problem.id} is not an agentic problem with files and hidden tests")
    golden = problem.golden or {}
    return {
        "id": problem.id,
        "categories": [category_name(problem.category), problem.difficulty],
        "system_message": problem.system_message,
        "prompt": problem.prompt,
        "context": problem.context,
        "patch": {path: _patch(problem.context.get(path, ""), golden.get(path)) for path in problem.targets},
        "harness": problem.harness,
    }


def diff_body(before: str, after: str) -> str:
    """The hunks that turn `before` into `after`, from the first ``@@`` on, without the lines that name the files."""
    lines = list(difflib.unified_diff(_lines(before), _lines(after)))[2:]
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """The lines of a text with their ends, which are newlines only."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _patch(before: str, after: str | None) -> str:
    return "" if after is None else diff_body(before, after)
