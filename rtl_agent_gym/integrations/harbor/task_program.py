"""The grading program that a task takes with it: this package's own modules, with the standard library alone.

The rules that sort files, and that make a verdict and blame from a report, are copied word by word, as is the grader.
Where they import a class or a constant from a module that needs an installed package, a substitute takes its place.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from ...episodes.rules import FOLDERS
from ...problems.compose import COMPOSE_FILE
from ...sandboxes import WORK_DIR
from ...sandboxes.protocol import FoundFiles

PACKAGE = "rtl_agent_gym"
_ROOT = Path(__file__).resolve().parents[2]

COPIED = (
    "errors.py",
    "episodes/untrusted.py",
    "problems/paths.py",
    "scoring/blame.py",
    "scoring/outcomes.py",
    "scoring/submission.py",
    "integrations/harbor/inside/collect.py",
    "integrations/harbor/inside/collected.py",
    "integrations/harbor/inside/grade.py",
)
"""Modules that are copied as they are, besides the grader's."""

_PROBLEM = '''\
"""The fields of a problem that grading reads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    id: str
    context: dict
    targets: tuple
    harness: dict
    agentic: bool
    checkout: str = ""  # heavy rows are not exported
'''
_OUTCOME = '''\
"""One test and how it ended."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TestOutcome:
    name: str
    outcome: str
'''


def program_files() -> dict[str, str]:
    """The modules of the program, by path relative to the folder that Python imports them from."""
    copied = [*COPIED, *(f"scoring/grader/{path.name}" for path in sorted(_ROOT.glob("scoring/grader/*.py")))]
    files = {path: (_ROOT / path).read_text(encoding="utf-8") for path in copied} | _substitutes()
    for path in list(files):
        for folder in Path(path).parents:
            files.setdefault((folder / "__init__.py").as_posix(), "")
    return {f"{PACKAGE}/{path}": text for path, text in sorted(files.items())}


def _substitutes() -> dict[str, str]:
    found = "from collections.abc import Mapping, Sequence\n\n\n" + inspect.getsource(FoundFiles)
    return {
        "episodes/rules.py": f"FOLDERS = {FOLDERS!r}\n",
        "problems/compose.py": f"COMPOSE_FILE = {COMPOSE_FILE!r}\n",
        "problems/model.py": _PROBLEM,
        "sandboxes/__init__.py": f"WORK_DIR = {WORK_DIR!r}\n",
        "sandboxes/protocol.py": found,
        "scoring/score.py": _OUTCOME,
    }
