"""Sorts submitted files into graded files, ignored files and violations.

Only regular files in the folders that the agent may change are graded. Only their content reaches the scoring sandbox:
no links, devices or modes. Other files are ignored and listed in the score. A file that would replace a hidden test, or
be loaded with it, is a violation.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property

from ..problems.model import Problem
from ..problems.paths import AGENT_FOLDERS, editable, path_fault, tree_fault
from .used_by_tests import LOADED_UNASKED, ReadByYosys, is_header, is_program, is_the_tests

_PYTHON = (".py", ".pyw", ".pyc")
MAX_FILE = 16 << 20
MAX_TOTAL = 64 << 20
MAX_COUNT = 5000
"""Bytes per file, bytes in all, and number of files that one submission may have."""
MAX_FOLDERS, MAX_DEPTH = 5000, 64
"""Upper bound on the directories that one submission may create."""

_SHELL = re.compile(r"""[$`;&|<>(){}\[\]*?!#'"]""")
"""Characters with a special meaning in a shell; Makefiles put the names of sources into commands."""
_OPTION = re.compile(r"(?:^|[/\s])[-+@]")
"""Names of files that a compiler would take for options where a harness names its sources by ``*.sv``."""


@dataclass(frozen=True)
class SubmittedFiles:
    """One submission, sorted into graded files, ignored files and violations."""

    problem: Problem
    files: Mapping[str, bytes]
    """Files to be graded, by path relative to the work folder."""
    violations: tuple[str, ...] = ()
    """Files that attack the grader, each with the reason."""
    fault: str = ""
    """Why the files cannot be graded, such as too many of them; empty if they can."""
    ignored: tuple[str, ...] = field(default=(), compare=False)
    """Paths of ignored files."""
    left_out: tuple[str, ...] = field(default=(), compare=False)
    """The same paths, in printable characters, each with the reason."""

    @cached_property
    def tree(self) -> dict[str, bytes]:
        """The graded work folder: the submitted files replace the problem's.

        A target that is part of the problem and was not submitted stays as given.
        """
        names, above = set(self.files), _above(self.files)
        given = {
            path: text.encode()
            for path, text in self.problem.context.items()
            # A submitted folder replaces a given file of that name, and vice versa.
            if path not in above and names.isdisjoint(_above([path]))
        }
        return given | dict(self.files)

    @property
    def missing(self) -> list[str]:
        """Target files that were not submitted, or are empty."""
        return [target for target in self.problem.targets if not self.files.get(target, b"").strip()]

    @property
    def format(self) -> float:
        """Share of the target files that exist and are not empty."""
        targets = self.problem.targets
        return 1.0 - len(self.missing) / len(targets) if targets else float(bool(self.files))

    @property
    def omissions(self) -> str:
        """Text for a score's reason: the ignored files in the folders that may be changed; empty if there are none."""
        names = [path for path in self.ignored if path.split("/")[0] in AGENT_FOLDERS and "/" in path]
        shown = [path if path.isprintable() else ascii(path) for path in names[:3]]
        more = [f"{len(names) - 3} more"] if len(names) > 3 else []
        return f"left out: {', '.join(shown + more)}" if names else ""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the graded files and the violations, in hex."""
        total = hashlib.sha256()
        for path, content in sorted(self.files.items()):
            total.update(b"%d %d\n" % (len(path.encode("utf-8", "surrogateescape")), len(content)))
            total.update(path.encode("utf-8", "surrogateescape") + content)
        for text in (*self.violations, self.fault):
            total.update(b"\0" + text.encode("utf-8", "surrogateescape"))
        return total.hexdigest()


def sift(problem: Problem, files: Mapping[str, str | bytes], *, defended: bool = True) -> SubmittedFiles:
    """Sort submitted files, given by path relative to the work folder. For tests, `defended=False` grades all files."""
    kept: dict[str, bytes] = {}
    violations: list[str] = []
    ignored: dict[str, str] = {}
    programs = {path for path in problem.context if is_the_tests(problem, path)}
    folders = _above(programs)
    yosys = ReadByYosys(problem, files)
    for path, content in sorted(files.items()):
        plain = path if path.isprintable() and not path_fault(path) else ascii(path)
        reason = _violation(problem, path) or ("" if is_given(problem, path, content) else yosys.fault(path))
        if defended and reason:
            violations.append(f"{plain}: {reason}; it was left out")
        elif defended and (reason := _omission(problem, path, content, programs, folders)):
            ignored[path] = f"{plain}: {reason}"
        else:
            kept[path] = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)
    fault = _size_fault(kept) or tree_fault(kept) or ""
    return SubmittedFiles(
        problem, {} if fault else kept, tuple(violations), fault, tuple(ignored), tuple(ignored.values())
    )


def _above(paths: Iterable[str]) -> set[str]:
    """All parent folders of these paths."""
    return {path[:at] for path in paths for at, letter in enumerate(path) if letter == "/"}


def is_given(problem: Problem, path: str, content: str | bytes) -> bool:
    """Whether the problem contains this file with the same content."""
    given = problem.context.get(path)
    return given is not None and (content == given if isinstance(content, str) else bytes(content) == given.encode())


def _violation(problem: Problem, path: str) -> str | None:
    """Why a path, in any spelling, attacks the grader; None if it does not."""
    if path in problem.context or path in problem.targets or problem.checkout:
        return None
    letters = re.sub(r"^[A-Za-z]:", "", path.replace("\\", "/")).replace("\0", "")
    place = posixpath.normpath(posixpath.join("/code", letters)).removeprefix("/code/").lstrip("/")
    if place in problem.harness:
        return "that is a file of the hidden tests"
    if place.startswith("src/") and (place.endswith(_PYTHON) or LOADED_UNASKED.fullmatch(posixpath.basename(place))):
        return "it would be loaded beside the hidden tests"
    return None


def _omission(problem: Problem, path: str, content: str | bytes, programs: Set[str], folders: Set[str]) -> str | None:
    """Why a file is ignored; None if it is graded. `programs` are the tests' own, `folders` their parent folders."""
    fault = path_fault(path) or (None if path.isprintable() else "the name has characters that do not print")
    if fault:
        return f"{fault}; a file with such a name is not copied"
    if not editable(problem, path):
        return "not a file that may be changed"
    beside = (problem.checkout or programs) and is_program(path, content) and not is_header(problem, path)
    if path in programs or (beside and path not in problem.targets):
        return None if is_given(problem, path, content) else "the files that the tests run or read are graded as given"
    if path in folders or not programs.isdisjoint(_above([path])):
        return "it would take the place of files that the tests run or read, which are graded as given"
    if path in problem.context or path in problem.targets:
        return None
    if len(content) > MAX_FILE:
        return f"{len(content)} bytes; at most {MAX_FILE} a file are graded"
    if _SHELL.search(path):
        return "the name has characters that a shell acts on"
    if _OPTION.search(path):
        return "a compiler would take a file of this name for an option"
    if path.endswith(_PYTHON):  # no open harness runs a submitted program
        return "Python files are not copied to where the tests run"
    if LOADED_UNASKED.fullmatch(posixpath.basename(path)):
        return "a checker would load a file of this name automatically"
    return None


def _size_fault(files: Mapping[str, bytes]) -> str | None:
    if len(files) > MAX_COUNT:
        return f"{len(files)} files were submitted; at most {MAX_COUNT} are graded"
    for path, content in files.items():
        if len(content) > MAX_FILE:
            return f"{path} has {len(content)} bytes; at most {MAX_FILE} are graded"
        if (depth := path.count("/")) > MAX_DEPTH:
            return f"{path[:60]}… is {depth} folders deep; at most {MAX_DEPTH} are graded"
    folders = _above(files)
    if len(folders) > MAX_FOLDERS:
        return f"the files need {len(folders)} folders; at most {MAX_FOLDERS} are graded"
    total = sum(map(len, files.values()))
    return f"{total} bytes were submitted; at most {MAX_TOTAL} are graded" if total > MAX_TOTAL else None
