"""This project's statements about CVDP's rows, and the designs that show them.

``tests/scoring/statements/ROW.json`` (without the prefix ``cvdp_agentic_``) is a list of statements: the fields of
`notes.Statement`, and how the statement's design is made from the row's right design::

    {"name": "timescale", "kind": "wants", "about": "timescale", "text": "...", "lacks": "...",
     "edits": [{"file": "rtl/x.sv", "from": "old text", "to": "new text"}],
     "rename": {"old_name": "new_name"}}

The text to replace must occur exactly once in the file, and a renamed word at least once in any file. With
``"base": "row"``, the edits start from the files that the row ships. Files in a folder ``ROW/NAME/`` replace those of
the same path. A statement with ``"shown": "read"`` has no design.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from unidiff.patch import PatchSet

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.fairness import bare_name
from rtl_agent_gym.problems import Problem, apply_patch
from rtl_agent_gym.problems.notes import Statement
from rtl_agent_gym.scoring import Score

TESTS = Path(__file__).resolve().parents[1] / "tests" / "scoring"
DESIGNS = TESTS / "designs"
IMPOSSIBLE = TESTS / "impossible"
STATEMENTS = TESTS / "statements"
PREFIX = "cvdp_agentic_"


def short(problem: Problem) -> str:
    """A row's id without the prefix that most rows share."""
    return problem.id.removeprefix(PREFIX)


def files_below(folder: Path) -> dict[str, str]:
    """The files of a folder by their path in it. ``x.sv.patch`` stands for ``x.sv``: it is the difference from another
    design's file.
    """
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    for path in [path for path in files if path.endswith(".patch")]:
        (patch,) = PatchSet(files.pop(path))
        base = (folder.parent / patch.source_file).read_text()
        files[path.removesuffix(".patch")] = apply_patch(base, "".join(str(hunk) for hunk in patch))
    return files


def right_design(problem: Problem) -> dict[str, str] | None:
    """Files of a design known to be right, by their path, or None."""
    folder = DESIGNS / short(problem)
    return files_below(folder) if folder.is_dir() else problem.golden


@dataclass(frozen=True)
class Written:
    """A statement as it was written, before its design is run."""

    row: str
    """The row's id without the prefix."""
    fields: Mapping[str, Any]

    def __post_init__(self) -> None:
        try:
            self.statement(None)
        except ValidationError as error:
            [first, *_] = error.errors()
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{self.row}.json, {self.fields.get('name')!r}: {where}: {first['msg']}") from None

    @property
    def name(self) -> str:
        """The statement's name."""
        return str(self.fields["name"])

    @property
    def read_only(self) -> bool:
        """Whether it has no design that shows it."""
        return self.fields.get("shown") == "read"

    @property
    def passes(self) -> bool:
        """Whether the design that shows it passes the tests."""
        return bool(self.fields["kind"] == "unseen")

    def design(self, problem: Problem) -> dict[str, str]:
        """The design that shows it. Raises `UsageError` if an edit does not apply."""
        from_row = self.fields.get("base") == "row"
        right = {path: problem.context[path] for path in problem.targets} if from_row else right_design(problem)
        files = dict(right or {})
        for edit in self.fields.get("edits", []):
            text = files[edit["file"]]
            if (times := text.count(edit["from"])) != 1:
                raise UsageError(f"{self.row}.json, {self.name!r}: {edit['from']!r} occurs {times} times")
            files[edit["file"]] = text.replace(edit["from"], edit["to"])
        for old, new in self.fields.get("rename", {}).items():
            if not any(re.search(rf"\b{old}\b", text) for text in files.values()):
                raise UsageError(f"{self.row}.json, {self.name!r}: nothing is named {old}")
            files = {path: re.sub(rf"\b{old}\b", new, text) for path, text in files.items()}
        folder = STATEMENTS / self.row / self.name
        return files | (files_below(folder) if folder.is_dir() else {})

    def statement(self, score: Score | None) -> Statement:
        """The statement as in the notes. `score` is that of its design, or None if it has no design."""
        names = ("name", "kind", "about", "text", "lacks", "core")
        fields = {name: self.fields[name] for name in names if name in self.fields}
        if score is None or self.passes:
            return Statement(**fields, shown="read" if score is None else "run")
        failed = {bare_name(test.name) for test in score.tests if test.outcome not in ("passed", "skipped")}
        part = bool({bare_name(test.name) for test in score.tests} - failed)
        return Statement(**fields, shown="run", fails=tuple(sorted(failed)), part=part)


def written_statements() -> dict[str, list[Written]]:
    """All statements by row, in the order of their files."""
    return {
        path.stem: [Written(path.stem, fields) for fields in json.loads(path.read_text())]
        for path in sorted(STATEMENTS.glob("*_[0-9][0-9][0-9][0-9].json"))
    }


def needs() -> dict[str, tuple[str, ...]]:
    """What the image's layer for older versions of cocotb provides to a row's tests, by row."""
    return {row: tuple(names) for row, names in json.loads((STATEMENTS / "needs.json").read_text()).items()}
