"""Loads problems from any source, checked and filtered, in file order; splits and sorts them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ProblemError, UsageError, near_matches
from .model import DIFFICULTIES, Problem, parse_category, parse_difficulty
from .notes import Rows, keep_rows
from .paths import expand_home
from .registry import Located, find_reader
from .rows import SUFFIXES, Place, id_fault, problem_from_row, read_rows

BUNDLED = "bundled"
"""The name of the source that is part of the package."""
BUNDLED_PROBLEMS = Path(__file__).with_name("problems.jsonl")
"""The file of that source. ``scripts/build_bundled.py`` builds it from the folders in ``data/bundled``."""

_FORMS = ("family:NAME", "verilog-eval:FOLDER", "rtllm:FOLDER", "notsotiny:FILE")
"""Forms of sources with a prefix, for messages."""

_HUB_SOURCE = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w.-]+))?(?::(?P<file>[^:]+))?", re.ASCII
)
"""``owner/name``, ``owner/name:file.jsonl`` or ``owner/name@revision:file.jsonl``."""

CVDP, _CVDP_SET = "cvdp", "nvidia/cvdp-benchmark-dataset"
"""The short name of CVDP's data set, and its name on the Hub."""
_AGENTIC = "cvdp_v{}_agentic_code_generation_no_commercial.jsonl"
"""The file of a release; the name of CVDP's data set alone means that of the newest release."""
_RELEASES = ("1.1.0", "1.0.2")
"""Releases that are tried if the Hub does not answer, the newest first."""


def find_files(source: str | os.PathLike[str]) -> list[tuple[Path, str]]:
    """The files of a source, each with its name for messages.

    Raises `UsageError` if there is no such source, and `ProblemError` if a data set's file cannot be downloaded.
    """
    name = os.fspath(source)
    if not name:
        raise UsageError(f"the source of problems is empty; expected {BUNDLED!r}, a path or a data set")
    if name == BUNDLED:
        return [(BUNDLED_PROBLEMS, "bundled/problems.jsonl")]
    path = expand_home(name)
    if os.path.isdir(path):  # unlike `Path.is_dir`, also False for names that are too long
        return _in_folder(path)
    if os.path.exists(path):
        return [(path, str(path))]
    # "owner/name:file.jsonl" is a data set's file, "folder/file.jsonl" a path.
    is_path = name.startswith(("/", ".", "~")) or (name.endswith(SUFFIXES) and ":" not in name)
    if is_path or not isinstance(source, str):
        raise UsageError(f"there is no file or folder {path}{_sibling(path)}")
    if match := _HUB_SOURCE.fullmatch(re.sub(rf"^{CVDP}(?=[@:]|$)", _CVDP_SET, name)):
        copy = _download(match["repo"], match["file"], match["revision"])
        return [(copy, f"{match['repo']}:{copy.name}")]
    raise UsageError(
        f"unknown source of problems {name!r}; expected {BUNDLED!r}, the path of a .jsonl file or of a folder of them, "
        f"{', '.join(_FORMS)}, {CVDP!r}, or another data set of the Hugging Face Hub "
        f"({near_matches(name, (BUNDLED, CVDP, *_FORMS))})"
    )


def _sibling(path: Path) -> str:
    if not os.path.isdir(path.parent):
        return ""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.name.endswith(SUFFIXES))
    except OSError:
        return ""
    return f"; {near_matches(path.name, names)}" if names else ""


def _in_folder(path: Path) -> list[tuple[Path, str]]:
    try:
        found = sorted(entry for entry in path.iterdir() if entry.name.endswith(SUFFIXES) and entry.is_file())
    except OSError as error:
        raise UsageError(f"the folder {path} cannot be read: {error.strerror}") from error
    if not found:
        raise UsageError(f"the folder {path} contains no file that ends in {' or '.join(SUFFIXES)}")
    return [(entry, str(entry)) for entry in found]


def _download(repo: str, file: str | None, revision: str | None) -> Path:
    """The local copy of a data set's file, downloaded if it is not in the cache. Raises errors as `find_files`."""
    if file:
        return _fetch(repo, file, revision)
    if repo != _CVDP_SET:
        raise UsageError(f"name the file of the data set {repo}: {repo}:FILE.jsonl")
    known = [_AGENTIC.format(release) for release in _RELEASES]
    try:
        return _fetch(repo, _newest(repo, revision) or known[0], revision)
    except _Unreachable as error:
        unreachable = error
    for name in known:  # a file that an earlier run has downloaded
        with contextlib.suppress(ProblemError):
            return _fetch(repo, name, revision, cache_only=True)
    raise unreachable


def _newest(repo: str, revision: str | None) -> str | None:
    """The file of the newest release that the Hub lists; None if it lists none."""
    place = {"repo_id": repo, "repo_type": "dataset", "revision": revision}
    files = _ask(repo, _AGENTIC.format(_RELEASES[0]), lambda hub: hub.HfApi().list_repo_files(**place))
    pattern = re.compile(re.escape(_AGENTIC).replace(r"\{\}", r"(\d+(?:\.\d+)*)"))
    found = {tuple(map(int, match[1].split("."))): name for name in files if (match := pattern.fullmatch(name))}
    return found[max(found)] if found else None


def _fetch(repo: str, name: str, revision: str | None, cache_only: bool = False) -> Path:
    place = {"repo_id": repo, "repo_type": "dataset", "revision": revision}
    return Path(_ask(repo, name, lambda hub: hub.hf_hub_download(filename=name, local_files_only=cache_only, **place)))


class _Unreachable(ProblemError):
    """The Hub does not answer, is busy, or the client is in offline mode."""


_Answer = TypeVar("_Answer")


def _ask(repo: str, name: str, question: Callable[[Any], _Answer]) -> _Answer:
    """The Hub's answer. Raises `ProblemError` if its client is not installed or the request fails."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ProblemError(
            "the package huggingface_hub is not installed; install it (pip install 'rtl-agent-gym[hub]') "
            "or give the path of a downloaded file",
            source=f"{repo}:{name}",
        ) from error
    try:
        return question(huggingface_hub)
    except (
        errors.HTTPError,  # type: ignore[attr-defined]  # from httpx; since huggingface_hub 2, from httpx2
        errors.HFValidationError,
        errors.EntryNotFoundError,
        OSError,
    ) as error:
        raise _fault(error, repo, name) from error


def _fault(error: Exception, repo: str, name: str) -> ProblemError:
    from huggingface_hub import constants, errors

    source, unreachable = f"{repo}:{name}", ""
    by_hand = (
        f"`hf download --repo-type dataset {repo} {name}` on a machine with network access, then give the file's path"
    )
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status == 429 or status >= 500:
            unreachable = f"the Hugging Face Hub is busy (status {status})"
    elif isinstance(error, errors.LocalEntryNotFoundError | errors.HTTPError | ConnectionError):  # type: ignore[attr-defined]
        offline = constants.HF_HUB_OFFLINE
        unreachable = "the client is in offline mode" if offline else "the Hugging Face Hub does not answer"
    if unreachable:
        return _Unreachable(f"{unreachable} and the file is not in the local cache; {by_hand}", source=source)
    if isinstance(error, errors.GatedRepoError):
        message = "the data set is gated; accept its terms on its page and log in with `hf auth login`"
    elif isinstance(error, errors.RepositoryNotFoundError):
        message = f"there is no data set {repo}, or it is private; check the name, or log in with `hf auth login`"
    elif isinstance(error, errors.EntryNotFoundError):
        message = f"the data set has no file {name}; see the files on its page and give {repo}:FILE.jsonl"
    else:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        message = f"the download failed: {reason[0]}; try again, or {by_hand}"
    return ProblemError(message, source=source)


_T = TypeVar("_T", int | str, str)

Source = str | os.PathLike[str] | Sequence[Problem]
"""``"bundled"``, the path of a JSON Lines file (gzipped or not) or of a folder of them, ``cvdp`` (CVDP's newest
agentic rows), ``owner/name[@revision]:file`` on the Hugging Face Hub, ``family:NAME?count=200&seed=7&split=train``
(generated problems), ``verilog-eval:FOLDER``, ``rtllm:FOLDER`` or ``notsotiny:FILE`` (other benchmarks), or
problems already loaded. Any of these names may be followed by ``+mutants?count=100&seed=7&hint=symptom`` (debugging
problems derived from those problems). Other packages can add sources; see `rtl_agent_gym.problems.registry`."""


def load_problems(
    source: Source,
    *,
    ids: str | Iterable[str] | None = None,
    categories: int | str | Iterable[int | str] | None = None,
    difficulties: str | Iterable[str] | None = None,
    rows: Rows = "all",
) -> list[Problem]:
    """The problems of a source that match all filters.

    Rows that cannot be scored are loaded too; their `Problem.unscorable` says why. Some others need options to be
    scored: a judge model, or the image of a commercial simulator.

    Args:
        source: See `Source`.
        ids: Keep only these problems.
        categories: Keep only these categories, as 3 or ``"cid003"``.
        difficulties: Keep only these difficulties.
        rows: Keep only rows that are known to be ``"fair"``, ``"partial"`` or ``"sound"``, or better; see
            `notes.Rows`.

    Raises:
        UsageError: There is no such source, id, category or difficulty, or `rows` leaves no problem.
        ProblemError: A row is invalid, even one that a filter would exclude. The message names file, line and field,
            and what was expected.

    Example:
        >>> [problem.id for problem in load_problems("bundled", categories=["cid003"], difficulties="easy")]
    """
    wanted_categories = None if categories is None else set(map(parse_category, _several(categories)))
    wanted_difficulties = None if difficulties is None else set(map(parse_difficulty, _several(difficulties)))
    problems = []
    for item in scan_problems(source):
        if isinstance(item, ProblemError):
            raise item
        problems.append(item)
    by_id = {problem.id: problem for problem in problems}
    wanted_ids = None if ids is None else {_named(by_id, name).id for name in _several(ids)}
    selected = [
        problem
        for problem in problems
        if (wanted_ids is None or problem.id in wanted_ids)
        and (wanted_categories is None or problem.category in wanted_categories)
        and (wanted_difficulties is None or problem.difficulty in wanted_difficulties)
    ]
    return selected if rows == "all" else keep_rows(selected, rows)


def find_problem(problems: Iterable[Problem], problem_id: str) -> Problem:
    """The problem with the id `problem_id`.

    Raises:
        UsageError: There is none; the message names the most similar ids.
    """
    return _named({problem.id: problem for problem in problems}, problem_id)


def _named(by_id: Mapping[str, Problem], problem_id: str) -> Problem:
    if problem_id not in by_id:
        raise UsageError(f"there is no problem {problem_id!r}; {near_matches(str(problem_id), by_id)}")
    return by_id[problem_id]


def scan_problems(source: Source) -> Iterator[Problem | ProblemError]:
    """Every row of a source in order: the problem, or the error of an invalid row.

    Unlike `load_problems`, this continues after an invalid row, so that a check reports all errors of a file.

    Raises:
        UsageError: There is no such source.
    """
    yield from _unique(_rows(source) if isinstance(source, str | os.PathLike) else _given(source))


def _rows(source: str | os.PathLike[str]) -> Iterator[Located]:
    if isinstance(source, str) and (read := find_reader(source)) is not None:
        for pair in read(source):
            if not isinstance(pair, tuple) or not isinstance(pair[0], Problem | ProblemError):
                got = type(pair[0] if isinstance(pair, tuple) else pair).__name__
                raise UsageError(
                    f"{source!r}: its plug-in yields {got}; expected pairs of Problem (or error) and Place"
                )
            yield pair
        return
    source_files = find_files(source)
    empty = True
    for path, label in source_files:
        try:
            for place, row in read_rows(path, label):
                empty = False
                yield row if isinstance(row, ProblemError) else _read(row, place, path.parent), place
        except ProblemError as error:
            empty = False
            yield error, Place(label)
    if empty:
        place = Place(source_files[0][1])
        yield place.error("the source contains no problem"), place


def _read(row: dict[str, Any], place: Place, folder: Path) -> Problem | ProblemError:
    try:
        return problem_from_row(row, place, folder)
    except ProblemError as error:
        return error


def _given(problems: Sequence[Problem]) -> Iterator[Located]:
    for number, problem in enumerate(problems):
        if not isinstance(problem, Problem):
            raise UsageError(
                f"entry {number} of the problems has the type {type(problem).__name__}; expected Problem "
                "(load files with load_problems)"
            )
        yield problem, Place(f"entry {number}")


def _unique(items: Iterator[Located]) -> Iterator[Problem | ProblemError]:
    """Replace a problem with an invalid or a repeated id by an error; the latter names both places."""
    seen: dict[str, Place] = {}
    for item, place in items:
        if isinstance(item, Problem):
            if fault := id_fault(item.id):
                yield place.error(fault, field="id")
                continue
            if item.id in seen:
                message = f"the id is repeated, here and at {seen[item.id]}; ids are unique in a source"
                yield place.error(message, field="id", problem_id=item.id)
                continue
            seen[item.id] = place
        yield item


def _several(value: _T | Iterable[_T]) -> list[_T]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def split_problems(
    problems: Iterable[Problem], held_out: float = 0.2, seed: int = 0
) -> tuple[list[Problem], list[Problem]]:
    """Split problems into those to train on and those held out.

    The choice for each problem depends only on its id and the seed, so adding, removing or reordering other problems
    does not change it. So `held_out` is an expected share: of few problems, none or several may be held out.

    Args:
        problems: Both parts keep their order.
        held_out: Share to hold out, 0 to 1.
        seed: Different seeds give different splits.

    Returns:
        The problems to train on, and those held out.

    Raises:
        UsageError: `held_out` is not between 0 and 1.
    """
    if not 0.0 <= held_out <= 1.0:
        raise UsageError(f"held_out is {held_out}; expected a share between 0 and 1")
    train: list[Problem] = []
    test: list[Problem] = []
    for problem in problems:
        digest = hashlib.sha256(f"{seed}:{problem.id}".encode()).digest()
        position = int.from_bytes(digest[:6], "big") / 2**48  # in [0, 1), uniformly distributed over ids
        (test if position < held_out else train).append(problem)
    return train, test


def order_by_difficulty(problems: Iterable[Problem]) -> list[Problem]:
    """Problems from easy to hard; problems of one difficulty keep their order."""
    return sorted(problems, key=lambda problem: DIFFICULTIES.index(problem.difficulty))
