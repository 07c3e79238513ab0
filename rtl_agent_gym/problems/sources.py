"""Sources of problems: the package, a path, or a data set on the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems.near import near_matches
from rtl_agent_gym.problems.reading import SUFFIXES

BUNDLED = "bundled"
"""The source that is part of the package."""
BUNDLED_PROBLEMS = Path(__file__).with_name("problems.jsonl")
"""Its file. ``scripts/build_bundled.py`` builds it from the folders in ``data/bundled``."""

_FORMS = ("family:NAME", "verilog-eval:FOLDER", "rtllm:FOLDER", "notsotiny:FILE")
"""Sources with a prefix, for messages; `load_problems` reads them."""

_HUB_SOURCE = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<file>[^:]+))?", re.ASCII)
"""``owner/name``, or ``owner/name:file.jsonl``."""

_DEFAULT_FILES = {
    "nvidia/cvdp-benchmark-dataset": (
        "cvdp_v1.1.0_agentic_code_generation_no_commercial.jsonl",
        "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl",
    )
}
"""The files that a data set's bare name refers to; the first available one is used."""


def find_files(source: str | os.PathLike[str]) -> list[tuple[Path, str]]:
    """The files of a source, each with its name for messages.

    Raises:
        UsageError: There is no such source.
        ProblemError: A data set's file cannot be downloaded.
    """
    name = os.fspath(source)
    if name == BUNDLED:
        return [(BUNDLED_PROBLEMS, "bundled/problems.jsonl")]
    path = expand_home(name)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [(path, str(path))]
    if _looks_like_path(name) or not isinstance(source, str):
        raise UsageError(f"there is no file or folder {path}{_sibling(path)}")
    if match := _HUB_SOURCE.fullmatch(name):
        copy = _download(match["repo"], match["file"])
        return [(copy, f"{match['repo']}:{copy.name}")]
    raise UsageError(
        f"unknown source of problems {name!r}; expected {BUNDLED!r}, the path of a .jsonl file or of a folder of them, "
        f"{', '.join(_FORMS)}, or a data set such as nvidia/cvdp-benchmark-dataset "
        f"({near_matches(name, (BUNDLED, *_FORMS))})"
    )


def expand_home(path: str | os.PathLike[str]) -> Path:
    """A path with the home folder in place of ``~`` or ``~user``.

    Raises:
        UsageError: That user has none.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = Path(path).parts[0]
        raise UsageError(f"{os.fspath(path)}: there is no home folder for {user}; give the path without it") from error


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


def _download(repo: str, file: str | None) -> Path:
    """The local copy of a data set's file, downloaded if it is not in the cache.

    Raises:
        UsageError: No file is named and none is known.
        ProblemError: The client is not installed, or the file cannot be downloaded; the message says what to do.
    """
    names = (file,) if file else _DEFAULT_FILES.get(repo, ())
    if not names:
        raise UsageError(f"name the file of the data set {repo}: {repo}:FILE.jsonl")
    faults: list[ProblemError] = []
    cache_only = False
    for name in names:
        try:
            return _fetch(repo, name, cache_only)
        except ProblemError as error:
            faults.append(error)
            # After one connection failure only the cache is searched. (The client raises a FileNotFoundError for it.)
            cache_only = isinstance(error.__cause__, FileNotFoundError)
    raise faults[0]


def _fetch(repo: str, name: str, cache_only: bool) -> Path:
    source = f"{repo}:{name}"
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        raise ProblemError(
            "the package huggingface_hub is not installed; install it (pip install 'rtl-agent-gym[hub]') "
            "or give the path of a downloaded file",
            source=source,
        ) from error
    try:
        return Path(hf_hub_download(repo_id=repo, filename=name, repo_type="dataset", local_files_only=cache_only))
    except (errors.HfHubHTTPError, errors.HFValidationError, errors.EntryNotFoundError, OSError) as error:
        raise ProblemError(_fault(error, repo, name), source=source) from error


def _fault(error: Exception, repo: str, name: str) -> str:
    """Why a file was not downloaded, and what to do."""
    from huggingface_hub import constants, errors

    by_hand = (
        f"`hf download --repo-type dataset {repo} {name}` on a machine with network access, then give the file's path"
    )
    if isinstance(error, errors.LocalEntryNotFoundError):
        why = "the client is in offline mode" if constants.HF_HUB_OFFLINE else "the Hugging Face Hub does not answer"
        return f"{why} and the file is not in the local cache; {by_hand}"
    if isinstance(error, errors.GatedRepoError):
        return "the data set is gated; accept its terms on its page and log in with `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no data set {repo}, or it is private; check the name, or log in with `hf auth login`"
    if isinstance(error, errors.EntryNotFoundError):
        return f"the data set has no file {name}; see the files on its page and give {repo}:FILE.jsonl"
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return f"the download failed: {reason[0]}; try again, or {by_hand}"
