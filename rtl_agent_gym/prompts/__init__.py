"""The system and user messages of an episode.

They are jinja2 templates in text files beside this module. For work in a shell:

- ``system.md`` explains the tool, the work folder, the interface and how to work;
- ``user.md`` contains a problem's task, its files and its targets;
- ``submit.md`` describes the command ``submit``, in episodes that have it;
- ``dialect_<family>.md`` explains how a family of models calls the tool;
- ``question_shell.md`` replaces ``system.md`` where the answer is text, not files.

For one answer: ``question.md``, where the answer is text, or ``single_turn.md`` is the system message, and
``single_turn_user.md`` contains the task and the problem's files. No prompt says how the work is scored.
``reference.md`` adds a reference solution to a user message, for a teacher that may read it, and ``feedback.md`` is
the text about an attempt for such a teacher.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..problems.model import COMPARED, Problem
from ..renderers.gpt_oss import GPT_OSS_NAMES
from ..renderers.protocol import MAX_CALLS
from ..renderers.qwen import QWEN_NAMES

MOST_LISTED = 150
"""Maximum number of files that a prompt lists with their sizes; of a larger repository it lists the folders."""
_LANGUAGES = {".sv": "systemverilog", ".svh": "systemverilog", ".v": "verilog", ".vh": "verilog", ".md": "markdown"}
_DIALECTS = {"qwen3": QWEN_NAMES, "gpt_oss": GPT_OSS_NAMES}
"""The renderers whose call format `dialect_<family>.md` explains; the openings of the others show it."""
_templates = Environment(  # caches compiled templates: compiling takes longer than the rest of an episode's start
    loader=PackageLoader("rtl_agent_gym", "prompts"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def build_prompt(
    problem: Problem,
    *,
    renderer: str = "",
    command_timeout: float = 30.0,
    max_output: int = 16_000,
    max_turns: int = 50,
    harness_feedback: int = 0,
) -> tuple[str, str]:
    """The system and the user message for work in a shell, with the rules of the episode (see `EpisodeConfig`).

    An empty `renderer` leaves out the section on its dialect. The problem's own `Problem.system_message` is not used:
    it requests a patch in the last answer, while here the files in the work folder are graded.
    """
    family = next((family for family, names in _DIALECTS.items() if renderer in names), None)
    rules = {
        "timeout": f"{command_timeout:g}",
        "max_output": f"{max_output:,}",
        "max_turns": max_turns,
        "dialect": _fill(f"dialect_{family}", max_calls=MAX_CALLS) if family else "",
    }
    if problem.asks_text:
        system = _fill("question_shell", quote=problem.category in COMPARED, **rules)
    else:
        submit = _fill("submit", submissions=harness_feedback) if harness_feedback else ""
        system = _fill("system", submit=submit, **rules)
    return system, _fill("user", task=problem.prompt.strip(), targets=_wanted(problem), **_listing(problem))


def build_single_turn_prompt(problem: Problem) -> tuple[str, str]:
    """The system and the user message for one answer; the latter contains the problem's files, in `file_order`."""
    texts = [(path, problem.context[path].strip("\n")) for path in file_order(problem)]
    user = _fill(
        "single_turn_user",
        task=problem.prompt.strip(),
        files=[(path, text, _LANGUAGES.get(posixpath.splitext(path)[1], "")) for path, text in texts],
        fence=fence(*(text for _, text in texts)),
        targets=_wanted(problem),
    )
    quoted = problem.category in COMPARED
    return _fill("question", quote=quoted) if problem.asks_text else _fill("single_turn"), user


def _wanted(problem: Problem) -> Sequence[str]:
    return () if problem.asks_text else problem.targets


def _listing(problem: Problem) -> dict[str, object]:
    """The files of a problem with their sizes; for a large repository, its folders and the files outside them."""
    sizes = {path: len(text.encode("utf-8", "replace")) for path, text in sorted(problem.context.items())}
    folders: dict[str, list[int]] = {}
    if problem.checkout and len(sizes) > MOST_LISTED:
        for path in [path for path in sizes if "/" in path]:
            folders.setdefault(path.partition("/")[0], []).append(sizes.pop(path))
    return {
        "context": [(path, f"{size:,}") for path, size in sizes.items()],
        "folders": [(name, len(found), f"{sum(found):,}") for name, found in sorted(folders.items())],
        "checkout": bool(problem.checkout),
    }


def with_reference(user: str, files: Mapping[str, str]) -> str:
    """A user message with a reference solution at its end, for a teacher that may read it."""
    return _fill("reference", user=user.strip(), files=_fenced(files))


def feedback_text(verdict: str, error: str, files: Mapping[str, str]) -> str:
    """What a teacher may read about an attempt, to be appended to its user message.

    Args:
        verdict: What the agent would read about the result.
        error: The compiler's first error; empty for none.
        files: The files of another attempt that passed; empty for none.
    """
    return "\n\n" + _fill("feedback", result=verdict, error=error, fence=fence(error), files=_fenced(files))


def _fenced(files: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(path, text.rstrip("\n"), fence(text)) for path, text in sorted(files.items())]


def file_order(problem: Problem) -> list[str]:
    """The paths of a problem's files, the most important first: documents, targets, other designs, the rest."""

    def rank(path: str) -> int:
        if path.startswith("docs/"):
            return 0
        if path in problem.targets:
            return 1
        return 2 if path.startswith("rtl/") else 3

    return sorted(problem.context, key=lambda path: (rank(path), path))


def fence(*texts: str) -> str:
    """A fence of backticks that occurs in none of the texts."""
    longest = max((len(run) for text in texts for run in re.findall("`{3,}", text)), default=2)
    return "`" * (longest + 1)


def _fill(name: str, **values: object) -> str:
    """The prompt file with its placeholders filled in. The values are not treated as templates."""
    return _templates.get_template(f"{name}.md").render(**values).strip()
