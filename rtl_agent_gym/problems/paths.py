"""Which paths a problem may use, and which of an agent's files count when it is scored.

Tasks for Harbor contain this module, so it needs no other package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import UsageError
from .model import Problem

AGENT_FOLDERS = ("rtl", "verif", "docs")
"""The folders below the work folder that an agent may change. ``src`` and ``rundir`` belong to the harness."""

ANSWER_FILE = "subjective.txt"
"""The file of a text answer, named as in the official runner."""

UNREAD = ("rundir", ".git")
"""Entries of the work folder that are never read: the tests' working folder, and Git's data of an agent's commits."""

_MAX_PART = 255
_MAX_PATH = 4000
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE = re.compile(r"^[A-Za-z]:")


def path_fault(path: str) -> str | None:
    """Why `path` is not a plain file path below the work folder, or None if it is.

    Stricter than an operating system: each file has only one valid spelling.
    """
    if not path:
        return "the path is empty"
    if _CONTROL.search(path):
        return f"the path {path!r} contains a control character"
    if "\\" in path:
        return f"the path {path!r} contains a backslash; separate folders with /"
    if path.startswith("/") or _DRIVE.match(path):
        return f"the path {path!r} is absolute; expected a path relative to the work folder, such as rtl/top.sv"
    parts = path.split("/")
    if ".." in parts:
        return f"the path {path!r} leaves its folder with .."
    if "." in parts or "" in parts:
        return f"the path {path!r} has an empty or . component; expected a form such as rtl/top.sv"
    longest_part = max(len(part.encode(errors="replace")) for part in parts)
    if longest_part > _MAX_PART or len(path.encode(errors="replace")) > _MAX_PATH:
        return f"the path {path[:60]!r}… is too long for a file system"
    return None


def text_fault(text: str) -> str | None:
    """Why a text cannot be written to a file, or None if it can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start} is a lone surrogate, which cannot be written to a file"
    return None


def tree_fault(paths: Iterable[str]) -> str | None:
    """A message about the first of `paths` that another path uses as a folder, or None."""
    files = set(paths)
    for path in sorted(files):
        parts = path.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            if folder in files:
                return f"{folder!r} is a file, but {path!r} lies below it"
    return None


def is_allowed_path(path: str) -> bool:
    """Whether `path` is a plain file path below one of `AGENT_FOLDERS`."""
    if path_fault(path) is not None:
        return False
    folder, _, rest = path.partition("/")
    return bool(rest) and folder in AGENT_FOLDERS


def graded_folders(problem: Problem) -> tuple[str, ...]:
    """The folders in the work folder that are read at the end of an episode, except `UNREAD`."""
    return (".",) if problem.checkout else AGENT_FOLDERS


def in_graded_folders(problem: Problem, path: str) -> bool:
    """Whether a path relative to the work folder is at or below one of `graded_folders`, and not in `UNREAD`."""
    top = path.partition("/")[0]
    return top not in UNREAD if problem.checkout else top in AGENT_FOLDERS


def editable(problem: Problem, path: str) -> bool:
    """Whether an agent's file at `path` counts when `problem` is scored.

    In an agentic problem, these are all files below ``rtl/``, ``verif/`` and ``docs/``, including context files; in a
    heavy problem, all files except those below `UNREAD`; in a non-agentic problem, only the target files. All other
    files are ignored.
    """
    if problem.checkout:
        return path_fault(path) is None and path.partition("/")[0] not in UNREAD
    if problem.agentic:
        return is_allowed_path(path)
    return path in problem.targets and path_fault(path) is None


def expand_home(path: str | os.PathLike[str]) -> Path:
    """A path with ``~`` or ``~user`` replaced by the home folder. Raises `UsageError` if the user has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = Path(path).parts[0]
        raise UsageError(f"{os.fspath(path)}: there is no home folder for {user}; give the path without it") from error


def text_of_option(option: str, value: str | None) -> str | None:
    """The text of an option's value: the value itself, or for ``@file`` the content of the file.

    Raises `UsageError` if the file cannot be read; the message begins with the option's name.
    """
    if value is None or not value.startswith("@"):
        return value
    try:
        return expand_home(value[1:]).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"{option}: {value[1:]} cannot be read: {error}") from error
