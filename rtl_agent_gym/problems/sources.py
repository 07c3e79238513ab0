"""Where problems come from: the package, a path, or a data set on the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import hub
from rtl_agent_gym.problems.near import near_matches
from rtl_agent_gym.problems.reading import SUFFIXES

BUNDLED = "bundled"
"""The source that the package brings itself."""

_BUNDLED_FILE = "bundled/problems.jsonl"


@dataclass(frozen=True)
class SourceFile:
    """One file of a source."""

    path: Path
    label: str
    """What messages call it."""


@contextlib.contextmanager
def open_source(source: str | os.PathLike[str]) -> Iterator[list[SourceFile]]:
    """The files of a source, there for as long as the context is.

    Raises:
        UsageError: When nothing is called so.
        ProblemError: When a data set's file cannot be had.
    """
    if source == BUNDLED:
        resource = files("rtl_agent_gym.problems").joinpath(_BUNDLED_FILE)
        with as_file(resource) as path:
            if not path.is_file():
                raise ProblemError("the package lacks its own problems; install it again", source=_BUNDLED_FILE)
            yield [SourceFile(path, _BUNDLED_FILE)]
        return
    yield _find(source)


def _find(source: str | os.PathLike[str]) -> list[SourceFile]:
    name = os.fspath(source)
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [SourceFile(path, str(path))]
    if isinstance(source, str) and hub.HUB_SOURCE.fullmatch(name) and not _looks_like_path(name):
        copy = hub.download(name)
        return [SourceFile(copy, f"{name.partition(':')[0]}:{copy.name}")]
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
    """A hint on files of the same folder."""
    if not path.parent.is_dir():
        return ""
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.name.endswith(SUFFIXES))
    return f"; {near_matches(path.name, names)}" if names else ""


def _in_folder(path: Path) -> list[SourceFile]:
    found = sorted(entry for entry in path.iterdir() if entry.name.endswith(SUFFIXES) and entry.is_file())
    if not found:
        raise UsageError(f"the folder {path} holds no file that ends in {' or '.join(SUFFIXES)}")
    return [SourceFile(entry, str(entry)) for entry in found]
