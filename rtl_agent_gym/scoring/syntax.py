"""The syntax stage: whether pyslang accepts the target files; Verilator gives a second opinion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .frontend import Reading
from .submission import SubmittedFiles

SYNTAX = "syntax: "
"""The beginning of pyslang's complaint in a reason."""
HDL = (".v", ".sv", ".vh", ".svh")
_VERILATOR_ERROR = re.compile(
    r"^%Error(?:-(?P<code>\w+))?: (?P<file>[^:\n]+):(?P<line>\d+)(?::\d+)?: (?P<text>.*)$", re.MULTILINE
)
_NOT_SYNTAX = {"NEEDTIMINGOPT", "UNSUPPORTED", "MODMISSING", "PINNOTFOUND", "PROCASSWIRE", "BLKANDNBLK"}


@dataclass(frozen=True)
class SyntaxStage:
    """What the syntax stage found."""

    share: float
    """Share of the target files that were submitted and have no syntax error."""
    reason: str = ""
    """The first complaint; empty if there is none."""


def is_hdl(path: str) -> bool:
    """Whether a file is read as SystemVerilog."""
    return path.endswith(HDL)


def reading_order(submission: SubmittedFiles, sources: Sequence[str]) -> list[str]:
    """The files to read, in the harness's order of compilation; other target files come last.

    Headers are read where they are included, unless they are targets that nothing includes.
    """
    tree = submission.tree
    named = [path for path in dict.fromkeys(sources) if path in tree]
    text = b"\n".join(tree[path] for path in named).decode("latin-1")
    left = [path for path in submission.problem.targets if path in tree and is_hdl(path) and path not in named]
    return named + [path for path in left if path.rsplit("/", 1)[-1] not in text]


def judge_syntax(submission: SubmittedFiles, reading: Reading) -> SyntaxStage:
    """The syntax stage from pyslang's reading. Targets in other languages only need to exist."""
    targets = submission.problem.targets
    if reading.fault:
        return SyntaxStage(0.0, f"{SYNTAX}{reading.fault}")
    broken = {path for path, _, _ in reading.errors}
    good = [t for t in targets if t not in broken and t not in submission.missing]
    first = next((error for error in reading.errors if error[0] in targets), None)
    reason = f"{SYNTAX}{first[0]}:{first[1]}: {first[2]}" if first else ""
    return SyntaxStage(len(good) / len(targets) if targets else float(not broken), reason)


def disagreement(complained: bool, lint: str | None) -> str:
    """Which of the two front ends complained if only one did; empty if they agree or Verilator did not run.

    Only syntax errors count, not features that Verilator does not support or modules that it misses.

    Args:
        complained: Whether pyslang did.
        lint: What Verilator printed; None if it did not run.
    """
    if lint is None:
        return ""
    found = [m for m in _VERILATOR_ERROR.finditer(lint) if "syntax error" in m["text"] and m["code"] not in _NOT_SYNTAX]
    if found and not complained:
        file, line, text = found[0].group("file", "line", "text")
        return f"Verilator alone complains of the syntax: {file.removeprefix('/code/')}:{line}: {text}"
    if complained and not _VERILATOR_ERROR.search(lint):
        return "pyslang alone complains of the syntax, Verilator does not"
    return ""
