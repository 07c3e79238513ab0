"""Problem files from the Hugging Face Hub, through its own client and cache."""

from __future__ import annotations

import re
from pathlib import Path

from rtl_agent_gym.errors import ProblemError, UsageError

HUB_SOURCE = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<file>[^:]+))?", re.ASCII)
"""``owner/name``, or ``owner/name:file.jsonl``."""

_DEFAULT_FILES = {
    "nvidia/cvdp-benchmark-dataset": (
        "cvdp_v1.1.0_agentic_code_generation_no_commercial.jsonl",
        "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl",
    )
}
"""The files that a data set's bare name refers to; the first available one is used."""


def download(source: str) -> Path:
    """The local copy of a data set's file, downloaded if it is not in the cache.

    Args:
        source: ``owner/name:file.jsonl``; the file may be omitted for the benchmark's own data set.

    Raises:
        UsageError: No file is named and none is known.
        ProblemError: The client is not installed, or the file cannot be downloaded; the message says what to do.
    """
    match = HUB_SOURCE.fullmatch(source)
    if match is None:
        raise UsageError(f"{source!r} is not a data set; expected owner/name or owner/name:file.jsonl")
    repo = match["repo"]
    names = (match["file"],) if match["file"] else _DEFAULT_FILES.get(repo, ())
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
    from huggingface_hub import errors

    by_hand = (
        f"`hf download --repo-type dataset {repo} {name}` on a machine with network access, then give the file's path"
    )
    if isinstance(error, errors.LocalEntryNotFoundError):
        why = "the client is in offline mode" if _offline(error) else "the Hugging Face Hub does not answer"
        return f"{why} and the file is not in the local cache; {by_hand}"
    if isinstance(error, errors.GatedRepoError):
        return "the data set is gated; accept its terms on its page and log in with `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no data set {repo}, or it is private; check the name, or log in with `hf auth login`"
    if isinstance(error, errors.EntryNotFoundError):
        return f"the data set has no file {name}; see the files on its page and give {repo}:FILE.jsonl"
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return f"the download failed: {reason[0]}; try again, or {by_hand}"


def _offline(error: BaseException) -> bool:
    """Whether the client's offline mode, not the network, prevented the download."""
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "OfflineModeIsEnabled":
            return True
        cause = cause.__cause__ or cause.__context__
    return False
