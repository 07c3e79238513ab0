"""What gradings and proofs have shown of mutants, kept on disk, so that a source of mutants needs no grading.

The package has verdicts on mutants of the bundled problems (``verdicts.jsonl``, written by ``benchmarks/mutants.py``).
Those of other problems are in the user's cache, written by ``problems strength`` and ``problems mutate``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rtl_agent_gym.errors import cannot_write
from rtl_agent_gym.problems.model import Problem

SHIPPED = Path(__file__).with_name("verdicts.jsonl")
"""The verdicts that are part of the package."""

Equivalence = Literal["", "proved", "bounded", "differs", "unknown"]
"""What Yosys found of a survivor: see `rtl_agent_gym.evaluation.mutation.equivalence`. Empty: it was not asked."""

Outcome = Literal["killed", "survived", "invalid"]


_VERSION = 2
"""Of what decides verdicts and proofs, other than the problem: the seed of the tests, and what counts as a proof."""


class Verdict(BaseModel):
    """What is known of one mutant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    design: str
    """The `design_key` of its problem."""
    mutant: str
    """Its `Mutant.digest`."""
    operator: str
    path: str
    line: int
    outcome: Outcome
    """``killed``: the hidden tests reject it, and accept the reference. ``survived``: they accept both. ``invalid``: it
    does not compile, or the reference fails too, so it does not count."""
    failed: tuple[str, ...] = ()
    """The hidden checks that fail."""
    symptom: str = ""
    """The reason of its score."""
    equivalence: Equivalence = ""
    steps: int = 0
    """For ``bounded``: the steps within which there is no difference; 0 if that was not kept."""
    image: str = ""
    """The digest of the simulation image in which it was graded."""


def design_key(problem: Problem) -> str:
    """Sixteen hexadecimal digits of a hash of what decides verdicts: hidden tests, given RTL, reference solution."""
    context = {path: text for path, text in problem.context.items() if path.startswith("rtl/")}
    parts = json.dumps([_VERSION, problem.harness, context, problem.golden], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def default_folder() -> Path:
    """The folder of verdicts: ``$XDG_CACHE_HOME/rtl-agent-gym/mutants``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtl-agent-gym" / "mutants"


class VerdictStore:
    """Verdicts in a folder, a file for each design, over those of the package.

    Args:
        folder: Created if missing; None for `default_folder`.
        shipped: Whether the package's verdicts count.
    """

    def __init__(self, folder: Path | None = None, *, shipped: bool = True) -> None:
        self.folder = folder if folder is not None else default_folder()
        self._shipped = shipped

    def of(self, design: str) -> dict[str, Verdict]:
        """The verdicts of a design's mutants by their digest."""
        known = dict(_by_design(SHIPPED).get(design, {})) if self._shipped else {}
        return known | {verdict.mutant: verdict for verdict in _read(self.folder / f"{design}.jsonl")}

    def add(self, verdict: Verdict) -> None:
        """Store a verdict; a later one replaces it. Raises `UsageError` or `SandboxError` if it cannot be written."""
        path = self.folder / f"{verdict.design}.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
                cut_off = stream.read() not in (b"", b"\n")
                stream.write(b"\n" * cut_off + verdict.model_dump_json().encode() + b"\n")
        except OSError as error:
            raise cannot_write("the verdicts of mutants (XDG_CACHE_HOME names their folder)", path, error) from error


@cache
def _by_design(path: Path) -> dict[str, dict[str, Verdict]]:
    found: dict[str, dict[str, Verdict]] = {}
    for verdict in _read(path):
        found.setdefault(verdict.design, {})[verdict.mutant] = verdict
    return found


def _read(path: Path) -> Iterator[Verdict]:
    """The verdicts of a file; lines that a crash cut off do not count."""
    lines: Iterable[str] = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ()
    for line in lines:
        try:
            yield Verdict.model_validate_json(line)
        except ValidationError:
            continue
