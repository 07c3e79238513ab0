"""The sources of the bundled problems: reads the solution and the wrong designs from a folder (see `README.md`).

The wrong designs exist only for tests and examples: each is a plausible solution with one mistake that the hidden tests
of its problem reject. They are stored as patches of the solution.
"""

from __future__ import annotations

import re
from pathlib import Path

from unidiff.patch import PatchSet

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems.rows import apply_patch

BUNDLED_DIR = Path(__file__).resolve().parent
"""The folder of the sources of the bundled problems."""


def wrong_designs(problem_id: str) -> dict[str, dict[str, str]]:
    """The wrong designs of a bundled problem by the mistake's name, each as complete files by path.

    `problem_id` may be its short name, such as ``fixed_priority_arbiter``.

    Raises:
        UsageError: No bundled problem has that id.
        ProblemError: A patch does not fit the solution.
    """
    match = re.fullmatch(r"(?:cvdp_agentic_rtlgym_)?([a-z][a-z0-9_]*?)(?:_0001)?", problem_id)
    folder = BUNDLED_DIR / match[1] if match else None
    if folder is None or not (folder / "problem.yaml").is_file():
        raise UsageError(f"{problem_id!r} is not a bundled problem; each has a folder in {BUNDLED_DIR}")
    golden = solution(folder)
    return {path.stem: _patched(golden, path) for path in sorted((folder / "wrong").glob("*.patch"))}


def solution(folder: Path) -> dict[str, str]:
    """The complete files of a problem's solution, from ``golden/`` or from ``golden.patch``, a patch of the context.

    Raises:
        ProblemError: The patch does not fit the context.
    """
    patch = folder / "golden.patch"
    if not patch.is_file():
        return _read_files(folder / "golden")
    context = _read_files(folder / "context")
    return {path: text for path, text in _patched(context, patch).items() if text != context[path]}


def _patched(files: dict[str, str], patch: Path) -> dict[str, str]:
    """The files with a patch applied (headers as in ``--- a/rtl/x.sv``). Raises `ProblemError` if it does not fit."""
    changed = dict(files)
    for part in PatchSet(patch.read_text(encoding="utf-8")):
        if part.path not in files:
            raise ProblemError(f"it patches {part.path}, which is not among the files to patch", source=str(patch))
        try:
            changed[part.path] = apply_patch(files[part.path], "".join(str(hunk) for hunk in part))
        except ProblemError as error:
            raise ProblemError(error.message, source=str(patch), field=part.path) from error
    if changed == files:
        raise ProblemError("the patch changes nothing", source=str(patch))
    return changed


def _read_files(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files}
