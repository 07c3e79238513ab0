"""The words for one completion: ``single_turn.md`` is the system message, ``single_turn_user.md`` frames the task."""

from __future__ import annotations

import posixpath
import re

from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.prompts import _fill, load_prompt

_LANGUAGES = {".sv": "systemverilog", ".svh": "systemverilog", ".v": "verilog", ".vh": "verilog", ".md": "markdown"}


def build_single_turn_prompt(problem: Problem) -> tuple[str, str]:
    """The system and the user message; the latter holds every file that the problem gives.

    Files come in the order of `file_order`. The row's own `Problem.system_message` is left out: it speaks of tools.
    """
    texts = [(path, problem.context[path].strip("\n")) for path in file_order(problem)]
    longest = max((len(run) for _, text in texts for run in re.findall("`{3,}", text)), default=2)
    user = _fill(
        load_prompt("single_turn_user"),
        task=problem.prompt.strip(),
        files=[(path, text, _LANGUAGES.get(posixpath.splitext(path)[1], "")) for path, text in texts],
        fence="`" * (longest + 1),
        targets=problem.targets,
    )
    return load_prompt("single_turn").strip(), user


def file_order(problem: Problem) -> list[str]:
    """The given files, what matters most first: documents, target files, other designs, the rest."""

    def rank(path: str) -> int:
        if path.startswith("docs/"):
            return 0
        if path in problem.targets:
            return 1
        return 2 if path.startswith("rtl/") else 3

    return sorted(problem.context, key=lambda path: (rank(path), path))
