"""Who may import whom: packages lie on floors, modules form no cycles, and every module stays short."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from rtl_agent_gym.episodes.rules import EpisodeConfig
from tests.parsing import parsed

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "rtl_agent_gym"
FLOORS = {
    10: {"__main__"},
    9: {"cli"},
    8: {"demo"},
    7: {"cluster", "integrations"},
    6: {"training", "evaluation", "sources"},
    5: {"envs"},
    4: {"episodes"},
    3: {"policies"},
    2: {"scoring", "prompts", "engines"},
    1: {"sandboxes", "problems", "renderers", "transcripts"},
    0: {"", "errors", "files", "options", "retries", "visible", "strict_json", "starting", "metrics", "logs"},
}
"""The packages on each floor, the highest first; "" is the root module, which holds the version."""
SIDEWAYS = {("training", "evaluation"), ("transcripts", "renderers")}
"""Imports between packages of one floor, from the first to the second of each pair."""
OTHER_PROGRAMS = ("sources/*/harness/**", "sandboxes/image_context/**")
"""Files that run inside containers and are no modules of the package."""
MAX_LINES = 600
READ_THESE, READ_LINES = 30, 6_500
"""Upper bounds of the modules, and of their lines, from `gym.make` to the verdict."""


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """The modules that each module imports, anywhere in its text: in functions and for type checkers too."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def sources() -> dict[str, Path]:
    """The files of the package's modules."""
    root = ROOT / PACKAGE
    others = {path for pattern in OTHER_PROGRAMS for path in root.glob(f"{pattern}/*.py")}
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in root.rglob("*.py") if path not in others}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in names.items()}


def package(module: str) -> str:
    return module.removeprefix(PACKAGE).strip(".").partition(".")[0]


def test_the_graph_holds_every_module(imports: dict[str, set[str]]) -> None:
    assert imports.keys() == sources().keys()


def test_every_package_has_its_floor(imports: dict[str, set[str]]) -> None:
    assert {package(module) for module in imports} <= set().union(*FLOORS.values())


def test_a_package_imports_only_from_lower_floors(imports: dict[str, set[str]]) -> None:
    floor = {name: number for number, names in FLOORS.items() for name in names}
    wrong = [
        f"{module} (floor {floor[package(module)]}) imports {imported} (floor {floor[package(imported)]})"
        for module in sorted(imports)
        for imported in sorted(imports[module])
        if package(module) != package(imported)
        and (package(module), package(imported)) not in SIDEWAYS
        and floor[package(imported)] >= max(floor[package(module)], 1)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other(imports: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail("a cycle of imports: " + " <- ".join(error.args[1]))


def test_no_module_is_long() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in sources().items()}
    long = {name: length for name, length in lengths.items() if length > MAX_LINES}
    assert not long, f"split these modules; {MAX_LINES} lines are the limit: {long}"


def test_no_module_takes_a_rules_default_from_its_class() -> None:
    """Only an object has it: pydantic takes fields away from the class. An adapter that did so would fail only where
    its framework is installed.
    """
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: EpisodeConfig.{node.attr}"
        for path in sources().values()
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == EpisodeConfig.__name__
        and node.attr in EpisodeConfig.model_fields
    ]
    assert not wrong, "\n".join(wrong)


def reading_list() -> tuple[list[str], set[str]]:
    """From ARCHITECTURE.md: the modules to read in order, and those that an episode executes besides them."""
    section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Read these\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return re.findall(r"^\d+\. `([^`]+)`: ", section, re.MULTILINE), set(re.findall("`([^`]+)`", " ".join(rows)))


def test_the_way_to_the_verdict_is_read_in_an_afternoon() -> None:
    listed, others = reading_list()
    lines = sum(len((ROOT / PACKAGE / path).read_text(encoding="utf-8").splitlines()) for path in listed)
    assert len(listed) == len(set(listed)) <= READ_THESE
    assert lines <= READ_LINES
    assert not others & set(listed)
    assert [path for path in others if not (ROOT / PACKAGE / path).is_file()] == []


def test_every_program_inside_containers_is_named() -> None:
    listed, others = reading_list()
    folders = (ROOT / PACKAGE / "sandboxes" / "warden", ROOT / PACKAGE / "scoring" / "grader")
    inside = {str(path.relative_to(ROOT / PACKAGE)) for folder in folders for path in folder.glob("*.py")}
    assert inside <= {*listed, *others}


@pytest.mark.docker
@pytest.mark.daemon  # the list is what an episode with Docker executes
def test_an_episode_executes_only_modules_that_are_named() -> None:
    command = [sys.executable, str(ROOT / "tests" / "executed.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    reward, executed = map(json.loads, ran.stdout.splitlines())
    listed, others = reading_list()
    assert reward > 1.0, "the reference solution passes"
    assert executed.keys() <= {*listed, *others}
    here = {path for path in listed if "/grader/" not in path and "/warden/" not in path}
    assert here - executed.keys() <= {"sandboxes/protocol.py"}, "what to read is what runs; this one is an interface"
