"""Right designs of the user's own, for problems whose reference solution is withheld."""

from __future__ import annotations

from pathlib import Path

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.patches import apply_patch

_PREFIX = "cvdp_agentic_"


def with_design(problem: Problem, designs: Path) -> Problem:
    """The problem with the design of a folder as its reference solution; as it is if the folder has none.

    Args:
        problem: The problem.
        designs: Holds a folder for each problem, named after its id or its id without ``cvdp_agentic_``, with the files
            of the design at their paths. ``x.sv.patch`` is ``x.sv`` as a unified diff of the file of another design,
            which its first line names.

    Raises:
        UsageError: There is no such folder, or a file cannot be read or a patch not applied.
    """
    if not designs.is_dir():
        raise UsageError(f"{designs}: there is no such folder of designs")
    for name in (problem.id, problem.id.removeprefix(_PREFIX)):
        if (designs / name).is_dir():
            return problem.model_copy(update={"golden": _read(designs, name)})
    return problem


def _read(designs: Path, name: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for path in sorted((designs / name).rglob("*")):
        if path.is_file():
            inside = path.relative_to(designs / name).as_posix()
            try:
                text = path.read_text(encoding="utf-8")
                files[inside.removesuffix(".patch")] = _patched(designs, text) if inside.endswith(".patch") else text
            except (OSError, UnicodeDecodeError, UnidiffParseError, ProblemError, ValueError) as error:
                raise UsageError(f"{path}: no file of a design: {error}") from error
    return files


def _patched(designs: Path, text: str) -> str:
    if len(patches := PatchSet(text)) != 1:
        raise ValueError("expected a unified diff of one file")
    [patch] = patches
    base = (designs / patch.source_file).read_text(encoding="utf-8")
    return apply_patch(base, "".join(str(hunk) for hunk in patch))
