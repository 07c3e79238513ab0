"""Sources of problems: the package, a path, or a data set on the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import hub
from rtl_agent_gym.problems.bundled import BUNDLED_PROBLEMS
from rtl_agent_gym.problems.near import near_matches
from rtl_agent_gym.problems.reading import SUFFIXES

BUNDLED = "bundled"
"""The source that is part of the package."""


def find_files(source: str | os.PathLike[str]) -> list[tuple[Path, str]]:
    """The files of a source, each with its name for messages.

    Raises:
        UsageError: There is no such source.
        ProblemError: A data set's file cannot be downloaded.
    """
    name = os.fspath(source)
    if name == BUNDLED:
        return [(BUNDLED_PROBLEMS, "bundled/problems.jsonl")]
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [(path, str(path))]
    if isinstance(source, str) and hub.HUB_SOURCE.fullmatch(name) and not _looks_like_path(name):
        copy = hub.download(name)
        return [(copy, f"{name.partition(':')[0]}:{copy.name}")]
    if _looks_like_path(name) or not isinstance(source, str):
        raise UsageError(f"there is no file or folder {path}{_sibling(path)}")
    raise UsageError(
        f"unknown source of problems {name!r}; expected {BUNDLED!r}, the path of a .jsonl file or of a folder of them, "
        f"or a data set such as nvidia/cvdp-benchmark-dataset ({near_matches(name, [BUNDLED])})"
    )


def _looks_like_path(name: str) -> bool:
    # "owner/name:file.jsonl" is a data set's file, "folder/file.jsonl" a path.
    return name.startswith(("/", ".", "~")) or (name.endswith(SUFFIXES) and ":" not in name)


def _sibling(path: Path) -> str:
    """A hint about similar files in the same folder."""
    if not path.parent.is_dir():
        return ""
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.name.endswith(SUFFIXES))
    return f"; {near_matches(path.name, names)}" if names else ""


def _in_folder(path: Path) -> list[tuple[Path, str]]:
    found = sorted(entry for entry in path.iterdir() if entry.name.endswith(SUFFIXES) and entry.is_file())
    if not found:
        raise UsageError(f"the folder {path} contains no file that ends in {' or '.join(SUFFIXES)}")
    return [(entry, str(entry)) for entry in found]
