"""Turn the folders of the bundled problems into one JSON Lines file in CVDP's agentic format.

Usage::

    .venv/bin/python scripts/build_bundled.py            write rtl_agent_gym/problems/problems.jsonl
    .venv/bin/python scripts/build_bundled.py --check    exit 1 when that file does not equal the folders

The solution is kept as whole files below ``golden/``, or as ``golden.patch``, a patch of ``context/``. A wrong design
is kept as a patch of the solution, ``wrong/<mistake>.patch``. One that lies there as a folder of whole files,
``wrong/<mistake>/rtl/…``, is turned into its patch first.

The file is what is loaded and what the official runner takes. The same folders give the same bytes on every machine.
What a folder holds is written down in `data/bundled/README.md`.
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
"""Where context files may lie; the official runner mounts no other folder."""


class BuildError(Exception):
    """A problem folder is wrong; the message says which file and what was expected."""


class Meta(BaseModel):
    """What `problem.yaml` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    category: Literal[3, 4, 5, 16]
    """CVDP's category number."""
    difficulty: Literal["easy", "medium", "hard"]
    title: str = Field(min_length=10, max_length=100, pattern=r"^[^\n]+$")
    """One line for people; not part of the built row."""


def read_tree(root: Path) -> dict[str, str]:
    """Every file below `root` by its relative path, in path order. Raises `BuildError` for what is not plain text."""
    files: dict[str, str] = {}
    for path in sorted(root.rglob("*"), key=lambda found: found.relative_to(root).as_posix()):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise BuildError(f"{path}: not UTF-8: {error}") from error
        if not text.endswith("\n") or "\r" in text:
            raise BuildError(f"{path}: lines must end with a single line feed, the last one too")
        files[path.relative_to(root).as_posix()] = text
    return files


def read_meta(folder: Path) -> Meta:
    """`problem.yaml` of a folder, validated."""
    path = folder / "problem.yaml"
    try:
        return Meta.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise BuildError(f"{path}: {error}") from error


def read_golden(folder: Path) -> dict[str, str]:
    """The solution's whole files. Raises `ProblemError` for a patch that does not fit, and as `read_tree`."""
    return solution(folder) if (folder / "golden.patch").is_file() else read_tree(folder / "golden")


def build_row(folder: Path, system_message: str) -> dict[str, Any]:
    """One row of the file, from one problem folder."""
    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise BuildError(f"{folder}: a folder's name must be a lower-case identifier, for it becomes part of the id")
    meta = read_meta(folder)
    prompt_path = folder / "prompt.md"
    if not prompt_path.is_file():
        raise BuildError(f"{prompt_path}: missing")
    context, harness, golden = read_tree(folder / "context"), read_tree(folder / "harness"), read_golden(folder)
    for path in context:
        if path.split("/")[0] not in FOLDERS:
            raise BuildError(f"{folder / 'context' / path}: context files lie in {', '.join(FOLDERS)}")
    for path in REQUIRED_HARNESS:
        if path not in harness:
            raise BuildError(f"{folder / 'harness' / path}: missing")
    if not golden:
        raise BuildError(f"{folder / 'golden'}: holds no file; it must hold the whole files of the solution")
    patch = {path: diff_body(context.get(path, ""), text) for path, text in golden.items()}
    for path, body in patch.items():
        if not body:
            raise BuildError(f"{folder / 'golden' / path}: equals the context, so there is nothing to solve")
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
    """The patch that turns the solution's files into a wrong design's."""
    lines: list[str] = []
    for path in sorted(wrong):
        before, after = (files[path].splitlines(keepends=True) for files in (golden, wrong))
        lines += difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", n=1)
    return "".join(lines)


def fold_wrong_designs(folder: Path) -> list[Path]:
    """Turn the wrong designs that are folders of whole files into patches. Returns the patches written."""
    golden, written = read_golden(folder), []
    for design in sorted(path for path in (folder / "wrong").iterdir() if path.is_dir()):
        wrong = read_tree(design)
        if not wrong.keys() <= golden.keys():
            raise BuildError(f"{design}: holds {sorted(wrong.keys() - golden.keys())}, which the solution does not")
        if not (text := patch_text(golden, wrong)):
            raise BuildError(f"{design}: equals the solution")
        patch = design.with_name(f"{design.name}.patch")
        patch.write_text(text, encoding="utf-8")
        if wrong_designs(folder.name)[design.name] != golden | wrong:
            raise BuildError(f"{patch}: does not give back {design}")
        shutil.rmtree(design)
        written.append(patch)
    return written


def problem_folders() -> list[Path]:
    """The folders that are problems, by name. A folder becomes one with its `problem.yaml`."""
    return sorted(path.parent for path in BUNDLED_DIR.glob("*/problem.yaml"))


def build() -> str:
    """The text of `problems.jsonl`."""
    system_message = (BUNDLED_DIR / "system_message.md").read_text(encoding="utf-8").strip()
    rows = (build_row(folder, system_message) for folder in problem_folders())
    return "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build problems.jsonl from the folders of the bundled problems.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file is out of date")
    check = parser.parse_args(argv).check
    try:
        for folder in problem_folders():
            for patch in [] if check else fold_wrong_designs(folder):
                print(f"{patch}: written")
            wrong_designs(folder.name)  # each patch fits
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
