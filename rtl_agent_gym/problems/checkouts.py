"""Reads the files of a commit from a git bundle, for heavy rows, whose bundles are found beside the rows' file.

A bundle is untrusted, so nothing in it is ever checked out or run: its objects go into a new bare repository, and the
files are read from there by their hashes. Without a working tree, there are no hooks, filters, links or submodules to
follow, and no path reaches the file system. Git runs without the user's configuration and with limits on time, memory
and disk.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import posixpath
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import ProblemError
from .paths import expand_home, path_fault, text_fault, tree_fault

BUNDLES = "RTL_GYM_BUNDLES"
"""Environment variable with an additional folder of bundles."""
ROOT = "external"
"""In the benchmark's own repositories, the folder that becomes the work folder; the agent does not get the rest."""

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_SUFFIX = ".bundle"


def heavy_context(repo: str, commit: str, folder: Path | None) -> tuple[dict[str, str], str | None]:
    """The files of a heavy row, and the reason if there are none.

    The bundle ``REPO.bundle`` is searched in the folder of the rows' file, in its direct subfolders, and in `BUNDLES`.
    Nothing is downloaded, and a repository that is named by an address is not cloned.

    Raises:
        ProblemError: The bundle cannot be used.
        UsageError: The value of `BUNDLES` begins with ``~`` and a user without a home folder.
    """
    name = repo if repo.endswith(_SUFFIX) else repo + _SUFFIX
    is_named = _NAME.fullmatch(name) is not None  # otherwise an address, or a path with folders
    bundle = _find_bundle(name, folder) if is_named else None
    if bundle is None:
        how = (
            f"put its bundle {name} beside the file of the rows, or set {BUNDLES} to its folder"
            if is_named
            else ("clone it yourself, make a bundle of it (git bundle create) and name that in the row")
        )
        return {}, (
            f"it starts from a checkout of the repository {repo} at {commit}, which is not part of the data set's row "
            f"and is not downloaded; {how}"
        )
    state = bundle.stat()
    root = ROOT if "cvdp_" in repo or "cvdp-" in repo else ""
    return dict(_read_bundle(bundle, state.st_mtime_ns, commit, root)), None


def _find_bundle(name: str, folder: Path | None) -> Path | None:
    folders = []
    if folder is not None:
        folders.append(folder)
        with contextlib.suppress(OSError):  # a folder that cannot be listed may still have the bundle
            folders += sorted(place for place in folder.iterdir() if place.is_dir())
    if os.environ.get(BUNDLES):
        folders.append(expand_home(os.environ[BUNDLES]))
    return next((place / name for place in folders if os.path.isfile(place / name)), None)


@functools.lru_cache(maxsize=64)
def _read_bundle(bundle: Path, _changed: int, commit: str, root: str) -> dict[str, str]:
    try:
        return read_checkout(bundle, commit, root)
    except ProblemError as error:
        raise ProblemError(error.message, field=error.field or "context") from error


MAX_BUNDLE = 1 << 30
"""Maximum bytes of a bundle."""
MAX_UNPACKED = 4 << 30
"""Maximum bytes of a file that git writes for a bundle."""
MAX_ENTRIES = 4000
"""Maximum files and folders of a commit; an episode can read 5,000 from its work folder."""
MAX_DEPTH = 64
"""Maximum depth of a file in folders."""
MAX_FILE, MAX_TOTAL = 8 << 20, 48 << 20
"""Maximum bytes of one file, and of all files of a commit."""
MAX_SECONDS, MAX_MEMORY = 300, 4 << 30
"""Limits on processor seconds and on bytes of memory of each run of git."""

_LISTING = 4 << 20
_HEADERS = (b"# v2 git bundle\n", b"# v3 git bundle\n")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_FILE, _PROGRAM, _LINK = "100644", "100755", "120000"
_MOST_LINKS = 10
_PATH = "/usr/local/bin:/usr/bin:/bin"
_LIMITED = 'ulimit -c 0; ulimit -t "$1"; ulimit -v "$2"; ulimit -f "$3"; shift 3; exec git "$@"'

_log = logging.getLogger(__name__)


class _TreeEntry(NamedTuple):
    mode: str
    blob: str
    size: int


def read_checkout(bundle: Path, commit: str, root: str = "") -> dict[str, str]:
    """The text files of a commit, by path.

    Links to a file of the commit become copies of it. Other links, submodules, binary files, and files with names that
    no file of a problem may have are left out, with a warning. Text that is not UTF-8 is read as Latin-1.

    Args:
        bundle: The bundle's file.
        commit: A hash in hex, of at least 7 digits.
        root: If the commit has this folder, only its files are read.

    Raises:
        ProblemError: The file is not a bundle, lacks the commit or exceeds a limit, or git is not installed.
    """
    if not _COMMIT.fullmatch(commit):
        raise ProblemError(f"{commit[:80]!r} is not a commit; expected 7 to 64 hex digits", field="context.commit")
    _check_bundle(bundle)
    with tempfile.TemporaryDirectory(prefix="rtl-gym-bundle-") as folder:
        _unpack(bundle, folder)
        found = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        if found.code:
            raise ProblemError(f"the bundle {bundle.name} has no commit {commit}", field="context.commit")
        tree = _git(folder, "ls-tree", "-r", "-z", "-l", "--full-tree", found.output.decode().strip(), most=_LISTING)
        if tree.code:
            raise ProblemError(f"the commit {commit} of {bundle.name} cannot be listed: {tree.message}")
        entries, left_out = _select(_parse(tree.output), root)
        if fault := _size_fault(entries):
            raise ProblemError(f"the commit in {bundle.name} {fault}", field="context")
        texts = _read(folder, sorted({entry.blob for entry in entries.values()}))
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for path, entry in sorted(entries.items()):
        text = texts[entry.blob]
        if entry.mode == _LINK:
            links[path] = text or ""
        elif text is None:
            left_out.append(f"{path} (binary)")
        else:
            files[path] = text
    resolved = _resolve(files, links)
    left_out += [f"{path} (a link)" for path in links if path not in resolved]
    files |= {path: files[place] for path, place in resolved.items()}
    if sum(map(len, files.values())) > MAX_TOTAL:
        raise ProblemError(f"the commit {commit} of {bundle.name} has too many links to large files")
    if left_out:
        shown = ", ".join(map(ascii, left_out[:5])) + (" …" if len(left_out) > 5 else "")
        _log.warning("%s at %s: %d files are left out: %s", bundle.name, commit[:12], len(left_out), shown)
    if fault := tree_fault(files):
        raise ProblemError(f"the commit {commit} of {bundle.name}: {fault}")
    return files


class _GitResult(NamedTuple):
    code: int
    output: bytes
    message: str


def _git(folder: str, *words: str, stdin: bytes = b"", most: int = MAX_TOTAL + _LISTING) -> _GitResult:
    """Run git on a bare repository, with limits; more than `most` bytes of output are an error."""
    limits = [str(MAX_SECONDS), str(MAX_MEMORY >> 10), str(MAX_UNPACKED >> 9)]
    environment = {
        "PATH": _PATH,
        "HOME": folder,
        "LC_ALL": "C",
        "GIT_DIR": f"{folder}/git",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_TERMINAL_PROMPT": "0",
    }
    options = ["-c", "core.bigFileThreshold=16m", "-c", "gc.auto=0", "-c", "pack.threads=1"]
    command = ["sh", "-c", _LIMITED, "sh", *limits, *options, *words]
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as process:
            late = threading.Timer(2 * MAX_SECONDS, _end, [process])
            late.daemon = True
            late.start()
            try:
                assert process.stdout is not None
                output = process.stdout.read(most + 1)
                if len(output) > most:
                    raise ProblemError(f"git {words[0]} prints more than {most >> 20} MiB; the repository is too large")
                code = process.wait()
            finally:
                late.cancel()
                _end(process)
        errors.seek(0)
        lines = errors.read(4096).decode(errors="replace").strip().splitlines()
    if code < 0 or code in (152, 153):
        lines = [f"git was ended by signal {-code if code < 0 else code - 128}: a limit on time or size was reached"]
    return _GitResult(code, output, lines[-1] if lines else f"git {words[0]} ended with {code}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _check_bundle(bundle: Path) -> None:
    if shutil.which("git", path=_PATH) is None:
        raise ProblemError("heavy rows need git to read their bundles; install it (apt-get install git)")
    try:
        size = bundle.stat().st_size
        with bundle.open("rb") as stream:
            header = stream.read(len(_HEADERS[0]))
    except OSError as error:
        raise ProblemError(f"{bundle}: cannot be read: {error.strerror}", field="context.repo") from error
    if header not in _HEADERS:
        raise ProblemError(f"{bundle} is not a git bundle; make one with git bundle create", field="context.repo")
    if size > MAX_BUNDLE:
        raise ProblemError(f"{bundle} is larger than {MAX_BUNDLE >> 20} MiB", field="context.repo")


def _unpack(bundle: Path, folder: str) -> None:
    """Write the bundle's objects into a new bare repository, ``git`` in `folder`."""
    for words in (
        ("init", "--quiet", "--bare", "--template=", f"{folder}/git"),
        ("bundle", "unbundle", str(bundle.resolve())),
    ):
        ran = _git(folder, *words)
        if ran.code:
            raise ProblemError(f"{bundle} cannot be unpacked: {ran.message}", field="context.repo")


def _parse(listing: bytes) -> dict[str, _TreeEntry]:
    entries = {}
    for line in listing.split(b"\0"):
        head, tab, path = line.partition(b"\t")
        if tab:
            mode, _, blob, size = head.decode().split()
            # Names that are not UTF-8 get surrogates, which names of a problem's files must not have.
            entries[path.decode(errors="surrogateescape")] = _TreeEntry(mode, blob, int(size) if size != "-" else 0)
    return entries


def _select(entries: Mapping[str, _TreeEntry], root: str) -> tuple[dict[str, _TreeEntry], list[str]]:
    """The regular files below `root` by their paths in the work folder, and the paths left out with the reason."""
    prefix = f"{root}/" if root and any(path.startswith(f"{root}/") for path in entries) else ""
    kept: dict[str, _TreeEntry] = {}
    left_out: list[str] = []
    for path, entry in entries.items():
        inside = path.removeprefix(prefix)
        if prefix and inside == path:
            continue
        if not _may_be_named(inside):
            left_out.append(f"{inside} (its name)")
        elif entry.mode == "160000":
            left_out.append(f"{inside} (a submodule)")
        elif entry.mode not in (_FILE, _PROGRAM, _LINK, "100664"):
            left_out.append(f"{inside} (mode {entry.mode})")
        else:
            kept[inside] = entry
    return kept, left_out


def _may_be_named(path: str) -> bool:
    hidden = any(part.casefold() == ".git" for part in path.split("/")) or path.startswith("rundir/")
    return not hidden and text_fault(path) is None and path_fault(path) is None


def _size_fault(entries: Mapping[str, _TreeEntry]) -> str | None:
    if not entries:
        return "has no files"
    depth = max(path.count("/") for path in entries)
    if depth > MAX_DEPTH:  # otherwise `folders` could take gigabytes
        return f"has a file in {depth} nested folders; at most {MAX_DEPTH} are supported"
    folders = {path[:at] for path in entries for at, letter in enumerate(path) if letter == "/"}
    count, total = len(entries) + len(folders), sum(entry.size for entry in entries.values())
    if count > MAX_ENTRIES:
        return f"has {count} files and folders; at most {MAX_ENTRIES} are supported"
    largest = max(entries, key=lambda path: entries[path].size)
    if entries[largest].size > MAX_FILE:
        return f"has a file of {entries[largest].size} bytes ({largest!a}); at most {MAX_FILE} are supported"
    return f"has {total} bytes of files; at most {MAX_TOTAL} are supported" if total > MAX_TOTAL else None


def _read(folder: str, blobs: Sequence[str]) -> dict[str, str | None]:
    """The texts of blobs; None for binary files."""
    ran = _git(folder, "cat-file", "--batch", "--buffer", stdin="".join(f"{blob}\n" for blob in blobs).encode())
    if ran.code:
        raise ProblemError(f"the repository's files cannot be read: {ran.message}", field="context.repo")
    texts: dict[str, str | None] = {}
    at = 0
    for blob in blobs:
        end = ran.output.find(b"\n", at)
        words = ran.output[at:end].decode(errors="replace").split()
        if end < 0 or len(words) != 3 or words[0] != blob or words[1] != "blob":
            raise ProblemError(f"the repository lacks the file with the hash {blob}", field="context.repo")
        data = ran.output[end + 1 : end + 1 + int(words[2])]
        at = end + 2 + int(words[2])
        texts[blob] = _decode(data)
    return texts


def _decode(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _resolve(files: Mapping[str, str], links: Mapping[str, str]) -> dict[str, str]:
    """The file to which each link leads, without links that lead elsewhere or in a circle."""
    found = {}
    for path in links:
        place, steps = path, 0
        while place in links and steps < _MOST_LINKS:
            place = posixpath.normpath(posixpath.join(posixpath.dirname(place), links[place]))
            steps += 1
        if place in files:
            found[path] = place
    return found
