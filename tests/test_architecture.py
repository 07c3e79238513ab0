"""Who may import whom: packages lie on floors, modules form no cycles, and every module stays short."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

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
    0: {"", "errors", "options", "retries", "visible", "strict_json", "starting", "metrics", "logs"},
}
"""The packages on each floor, the highest first; "" is the root module, which holds the version."""
SIDEWAYS = {("training", "evaluation"), ("transcripts", "renderers")}
"""Imports between packages of one floor, from the first to the second of each pair."""
OTHER_PROGRAMS = ("sources/*/harness/**", "sandboxes/image_context/**")
"""Files that run inside containers and are no modules of the package."""
MAX_LINES = 600


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
