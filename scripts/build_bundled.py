"""Build one JSON Lines file in CVDP's agentic format from the folders of the bundled problems.

Usage::

    .venv/bin/python scripts/build_bundled.py            write rtl_agent_gym/problems/problems.jsonl
    .venv/bin/python scripts/build_bundled.py --check    exit 1 if that file does not match the folders

The solution is stored as complete files below ``golden/``, or as ``golden.patch``, a patch of ``context/``. A wrong
design is stored as a patch of the solution, ``wrong/<mistake>.patch``. A wrong design in the form of complete files,
``wrong/<mistake>/rtl/…``, is first converted to such a patch.

The built file is what the package loads and what the official runner accepts. The same folders give the same bytes on
every machine. `data/bundled/README.md` describes the contents of a folder.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data.bundled import BUNDLED_DIR, solution, wrong_designs
from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.problems.loading import BUNDLED_PROBLEMS
from rtl_agent_gym.problems.rows import diff_body

COMPOSE = "docker-compose.yml"
REQUIRED_HARNESS = (COMPOSE, "src/.env", "src/test_runner.py")
FOLDERS = ("docs", "rtl", "verif")
"""The folders that may contain context files; the official runner mounts no others."""


class BuildError(Exception):
    """A problem's folder is invalid; the message names the file and what is expected."""


class Meta(BaseModel):
    """The contents of `problem.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    category: Literal[3, 4, 5, 16]
    """CVDP's category number."""
    difficulty: Literal["easy", "medium", "hard"]
    title: str = Field(min_length=10, max_length=100, pattern=r"^[^\n]+$")
    """One line for readers; not part of the built row."""


def read_tree(root: Path) -> dict[str, str]:
    """Every file below `root` by its relative path, in path order. Raises `BuildError` for files that are not text."""
    files: dict[str, str] = {}
    for path in sorted(root.rglob("*"), key=lambda found: found.relative_to(root).as_posix()):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise BuildError(f"{path}: not UTF-8: {error}") from error
        if not text.endswith("\n") or "\r" in text:
            raise BuildError(f"{path}: every line, including the last, must end with a single line feed")
        files[path.relative_to(root).as_posix()] = text
    return files


def read_meta(folder: Path) -> Meta:
    """The validated `problem.yaml` of a folder."""
    path = folder / "problem.yaml"
    try:
        return Meta.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise BuildError(f"{path}: {error}") from error


def read_golden(folder: Path) -> dict[str, str]:
    """The solution's complete files. Raises `ProblemError` if a patch does not fit, and as `read_tree`."""
    return solution(folder) if (folder / "golden.patch").is_file() else read_tree(folder / "golden")


def build_row(folder: Path, system_message: str) -> dict[str, Any]:
    """The row of one problem folder."""
    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise BuildError(f"{folder}: the folder's name must be a lower-case identifier; it becomes part of the id")
    meta = read_meta(folder)
    prompt_path = folder / "prompt.md"
    if not prompt_path.is_file():
        raise BuildError(f"{prompt_path}: missing")
    context, harness, golden = read_tree(folder / "context"), read_tree(folder / "harness"), read_golden(folder)
    for path in context:
        if path.split("/")[0] not in FOLDERS:
            raise BuildError(f"{folder / 'context' / path}: context files must be in {', '.join(FOLDERS)}")
    for path in REQUIRED_HARNESS:
        if path not in harness:
            raise BuildError(f"{folder / 'harness' / path}: missing")
    if not golden:
        raise BuildError(f"{folder / 'golden'}: contains no file; it must contain the complete files of the solution")
    patch = {path: diff_body(context.get(path, ""), text) for path, text in golden.items()}
    for path, body in patch.items():
        if not body:
            raise BuildError(f"{folder / 'golden' / path}: equals the context, so nothing has to be solved")
    return {
        "id": f"cvdp_agentic_rtlgym_{name}_0001",
        "categories": [f"cid{meta.category:03d}", meta.difficulty],
        "system_message": system_message,
        "prompt": prompt_path.read_text(encoding="utf-8").strip(),
        "context": context,
        "patch": patch,
        "harness": {COMPOSE: harness[COMPOSE], **harness},
    }


def patch_text(golden: dict[str, str], wrong: dict[str, str]) -> str:
    """The patch that turns the solution's files into those of a wrong design."""
    lines: list[str] = []
    for path in sorted(wrong):
        before, after = (files[path].splitlines(keepends=True) for files in (golden, wrong))
        lines += difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", n=1)
    return "".join(lines)


def fold_wrong_designs(folder: Path) -> list[Path]:
    """Convert wrong designs that are folders of complete files into patches. Returns the patches written."""
    golden, written = read_golden(folder), []
    for design in sorted(path for path in (folder / "wrong").iterdir() if path.is_dir()):
        wrong = read_tree(design)
        if not wrong.keys() <= golden.keys():
            raise BuildError(f"{design}: has {sorted(wrong.keys() - golden.keys())}, which the solution does not have")
        if not (text := patch_text(golden, wrong)):
            raise BuildError(f"{design}: equals the solution")
        patch = design.with_name(f"{design.name}.patch")
        patch.write_text(text, encoding="utf-8")
        if wrong_designs(folder.name)[design.name] != golden | wrong:
            raise BuildError(f"{patch}: applied to the solution, it does not reproduce {design}")
        shutil.rmtree(design)
        written.append(patch)
    return written


def problem_folders() -> list[Path]:
    """The problems' folders, sorted by name. A folder is a problem if it has a `problem.yaml`."""
    return sorted(path.parent for path in BUNDLED_DIR.glob("*/problem.yaml"))


def build() -> str:
    """The text of `problems.jsonl`."""
    system_message = (BUNDLED_DIR / "system_message.md").read_text(encoding="utf-8").strip()
    rows = (build_row(folder, system_message) for folder in problem_folders())
    return "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build problems.jsonl from the folders of the bundled problems.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is out of date")
    check = parser.parse_args(argv).check
    try:
        for folder in problem_folders():
            for patch in [] if check else fold_wrong_designs(folder):
                print(f"{patch}: written")
            wrong_designs(folder.name)  # raises if a patch does not fit
        text = build()
    except (BuildError, ProblemError) as error:
        print(f"build_bundled: {error}", file=sys.stderr)
        return 1
    if check:
        current = BUNDLED_PROBLEMS.read_text(encoding="utf-8") if BUNDLED_PROBLEMS.is_file() else ""
        if current != text:
            print(f"build_bundled: {BUNDLED_PROBLEMS} is out of date; run scripts/build_bundled.py", file=sys.stderr)
        return int(current != text)
    BUNDLED_PROBLEMS.write_text(text, encoding="utf-8")
    print(f"{BUNDLED_PROBLEMS}: {len(problem_folders())} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main())
