"""Finds the git bundles of heavy rows beside the rows' file."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.problems.checkouts import read_checkout
from rtl_agent_gym.problems.sources import expand_home

BUNDLES = "RTL_GYM_BUNDLES"
"""Environment variable: a further folder of bundles."""
ROOT = "external"
"""The folder of the benchmark's own repositories that is the work folder; the rest is not for the agent."""

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_SUFFIX = ".bundle"


def heavy_context(repo: str, commit: str, folder: Path | None) -> tuple[dict[str, str], str | None]:
    """The files of a heavy row, and why there are none.

    The bundle ``REPO.bundle`` is looked for in the folder of the rows' file, in the folders directly below it, and in
    `BUNDLES`. Nothing is downloaded, and a repository that is named by an address is not cloned.

    Raises:
        ProblemError: The bundle cannot be used.
        UsageError: The folder of `BUNDLES` begins with ``~`` and a user that does not exist.
    """
    bundle = find_bundle(repo, folder)
    if bundle is None:
        name = _file_name(repo)
        how = (
            f"put its bundle {name} beside the file of the rows, or set {BUNDLES} to its folder"
            if name
            else ("clone it yourself, make a bundle of it (git bundle create) and name that in the row")
        )
        return {}, (
            f"it starts from a checkout of the repository {repo} at {commit}, which is not part of the data set's row "
            f"and is not downloaded; {how}"
        )
    state = bundle.stat()
    root = ROOT if "cvdp_" in repo or "cvdp-" in repo else ""
    return dict(_read(bundle, state.st_mtime_ns, commit, root)), None


def find_bundle(repo: str, folder: Path | None) -> Path | None:
    """The file of a repository's bundle; None if it is not there."""
    name = _file_name(repo)
    if not name:
        return None
    folders = [] if folder is None else [folder, *sorted(place for place in folder.iterdir() if place.is_dir())]
    if os.environ.get(BUNDLES):
        folders.append(expand_home(os.environ[BUNDLES]))
    return next((place / name for place in folders if os.path.isfile(place / name)), None)


def _file_name(repo: str) -> str:
    """The bundle's name; empty for an address or a path with folders."""
    name = repo if repo.endswith(_SUFFIX) else repo + _SUFFIX
    return name if _NAME.fullmatch(name) else ""


@functools.lru_cache(maxsize=64)
def _read(bundle: Path, _changed: int, commit: str, root: str) -> dict[str, str]:
    try:
        return read_checkout(bundle, commit, root)
    except ProblemError as error:
        raise ProblemError(error.message, field=error.field or "context") from error
