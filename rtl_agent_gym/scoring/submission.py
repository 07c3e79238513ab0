"""Which of the files that somebody left are graded, and which were meant for the checker.

Only regular files below the folders that the problem lets one change are graded, and they reach the scoring sandbox by
their own content: links, devices and modes cannot come along. What else was left is ignored, unless its name says that
it was meant for the checker: then it is a violation.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..problems.model import Problem
from ..problems.paths import editable, path_fault, tree_fault

MAX_FILE = 16 << 20
MAX_TOTAL = 64 << 20
MAX_COUNT = 5000
"""Files, bytes a file and bytes in all that one submission may have."""
MAX_FOLDERS, MAX_DEPTH = 5000, 64
"""Folders that they may need, and of which a path may name so many: it has room for thousands."""

_LOADED_UNASKED = re.compile(
    r"(?:conftest|sitecustomize|usercustomize|cocotb\w*|pytest\w*|_pytest|harness_library)\.py[cod]?"
    r"|.+\.(?:pth|pyc|pyo|vpi|vpl|so)|(?:pytest|tox)\.ini|setup\.cfg|pyproject\.toml|\.coveragerc|modelsim\.ini"
    r"|docker-compose\.ya?ml|Dockerfile|\.env\w*"
)
"""Names of files that Python, pytest, the simulator or the runner would pick up by themselves."""
_CHECKERS_CACHE = re.compile(r"(?:conftest|sitecustomize|usercustomize|cocotb|pytest|_pytest|harness_library|test_)")
"""How names of modules begin that a harness imports."""
_CHECKERS_FOLDERS = ("src", "harness")


@dataclass(frozen=True)
class Submission:
    """The files of one grading, sifted."""

    problem: Problem
    files: Mapping[str, bytes]
    """What was submitted and is graded, by path relative to the work folder."""
    violations: tuple[str, ...] = ()
    """What was meant for the checker."""
    fault: str = ""
    """Why nothing can be graded although nobody cheated; empty where it can."""
    ignored: tuple[str, ...] = field(default=(), compare=False)
    """Paths that count for nothing."""

    @cached_property
    def tree(self) -> dict[str, bytes]:
        """The work folder as it is graded: the problem's files with the submitted ones over them.

        A target that the problem gives and nobody submitted stays as given; another missing one is missing.
        """
        given = {path: text.encode() for path, text in self.problem.context.items()}
        tree = given | dict(self.files)
        # A submitted folder takes the place of a given file of that name, and the other way round.
        for path in self.files:
            for other in [other for other in given if other.startswith(path + "/") or path.startswith(other + "/")]:
                tree.pop(other, None)
        return tree

    @property
    def missing(self) -> list[str]:
        """Target files that were not submitted, or are empty."""
        return [target for target in self.problem.targets if not self.files.get(target, b"").strip()]

    @property
    def format(self) -> float:
        """Share of the target files that are there and not empty."""
        targets = self.problem.targets
        return 1.0 - len(self.missing) / len(targets) if targets else float(bool(self.files))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what is graded and of what was tried, in hex."""
        total = hashlib.sha256()
        for path, content in sorted(self.files.items()):
            total.update(b"%d %d\n" % (len(path.encode("utf-8", "surrogateescape")), len(content)))
            total.update(path.encode("utf-8", "surrogateescape") + content)
        for text in (*self.violations, self.fault):
            total.update(b"\0" + text.encode("utf-8", "surrogateescape"))
        return total.hexdigest()


def sift(problem: Problem, files: Mapping[str, str | bytes]) -> Submission:
    """Sort submitted files into those that are graded, those that count for nothing, and attempts on the checker."""
    kept: dict[str, bytes] = {}
    violations: list[str] = []
    ignored: list[str] = []
    for path, content in sorted(files.items()):
        reason = _meant_for_checker(problem, path)
        if reason:
            plain = path.isprintable() and not path_fault(path)
            violations.append(f"{path}: {reason}" if plain else f"{path!a}: {reason}")
        elif editable(problem, path) and not _is_python(problem, path):
            kept[path] = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)
        else:
            ignored.append(path)
    fault = _size_fault(kept) or tree_fault(kept) or ""
    return Submission(problem, {} if fault else kept, tuple(violations), fault, tuple(ignored))


def unsifted(problem: Problem, files: Mapping[str, str | bytes]) -> Submission:
    """All files as they are, for tests of what `sift` is good for."""
    kept = {
        path: text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for path, text in files.items()
    }
    return Submission(problem, kept)


def _is_python(problem: Problem, path: str) -> bool:
    """Whether a file is a program for the checker's interpreter. No open harness runs one of the candidate's."""
    return path.endswith((".py", ".pyw", ".pyc")) and path not in problem.context and path not in problem.targets


def _meant_for_checker(problem: Problem, path: str) -> str | None:
    fault = path_fault(path) or _name_fault(path)
    if fault:
        return f"{fault}; no such file is put anywhere"
    if path in problem.context or path in problem.targets:
        return None
    if path.split("/")[0] in _CHECKERS_FOLDERS:
        return "the folder belongs to the hidden tests; the file was left out"
    folder, name = posixpath.split(path)
    if posixpath.basename(folder) == "__pycache__" and not _CHECKERS_CACHE.match(name):
        return None  # what Python leaves behind wherever an honest agent runs a script; it is left out like the script
    if _LOADED_UNASKED.fullmatch(name):
        return "a file of this name would be loaded by the checker itself; it was left out"
    return None


def _name_fault(path: str) -> str | None:
    """A name that tools split in two, that cannot be written down, or that draws on a terminal."""
    return None if path.isprintable() else "the name has characters that do not print"


def _size_fault(files: Mapping[str, bytes]) -> str | None:
    if len(files) > MAX_COUNT:
        return f"{len(files)} files were submitted; at most {MAX_COUNT} are graded"
    for path, content in files.items():
        if len(content) > MAX_FILE:
            return f"{path} has {len(content)} bytes; at most {MAX_FILE} are graded"
    deep = next((path for path in files if path.count("/") > MAX_DEPTH), None)
    if deep is not None:
        return f"{deep[:60]}… lies {deep.count('/')} folders deep; at most {MAX_DEPTH} are graded"
    if (folders := _folders(files)) > MAX_FOLDERS:
        return f"the files need {folders} folders; at most {MAX_FOLDERS} are graded"
    total = sum(map(len, files.values()))
    return f"{total} bytes were submitted; at most {MAX_TOTAL} are graded" if total > MAX_TOTAL else None


def _folders(paths: Iterable[str]) -> int:
    """How many folders the paths need."""
    found: set[str] = set()
    for path in paths:
        folder = posixpath.dirname(path)
        while folder and folder not in found:
            found.add(folder)
            folder = posixpath.dirname(folder)
    return len(found)
