"""Checks whether a problem can be scored and its parts are consistent, without running anything."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ProblemError
from .compose import COMPOSE_FILE, commercial_need, dockerfile, env_file_faults, parse_services, service_environment
from .model import COMPARED, JUDGED, Problem, category_name
from .paths import AGENT_FOLDERS, editable, path_fault, text_fault, tree_fault


def without_harness(category: int, reference: str) -> str | None:
    """Why a row without hidden tests can never be scored; None if it can, because its answer is text."""
    if category not in (*COMPARED, *JUDGED):
        return "the row has no harness, so nothing can score it"
    if not reference.strip():
        return f"answers of category {category_name(category)} are text, and the row has no reference to compare with"
    if category in COMPARED and len(re.sub(r"[^\w\s]", "", reference).split()) < 2:
        return "its reference has fewer than two words, so that no pairs of words can be compared"
    return None


def missing_here(problem: Problem) -> str | None:
    """Why a problem cannot be scored without further options (a judge, an image), or at all; None if it can."""
    if problem.unscorable is not None:
        return problem.unscorable
    if problem.asks_text:
        if problem.category in JUDGED:
            name = category_name(problem.category)
            return f"answers of category {name} are text, rated by a judge model; give one (--judge chat:MODEL)"
        return None
    if COMPOSE_FILE not in problem.harness:
        return "the problem has no hidden tests"
    need = commercial_need(problem.harness)
    return need and f"{need}; give yours, if you have one (--harness-image VERIF_EDA_IMAGE=IMAGE)"


def data_faults(problem: Problem) -> Iterator[str]:
    """What makes a problem's paths or texts unusable. Most of this is also checked when rows are read from a file."""
    for field in ("prompt", "system_message", "reference_response"):
        if fault := text_fault(getattr(problem, field)):
            yield f"{field}: {fault}"
    for field in ("context", "harness", "golden"):
        files: dict[str, str] = getattr(problem, field) or {}
        for path, text in files.items():
            if fault := text_fault(path) or path_fault(path) or text_fault(text):
                yield f"{field}.{path!a}: {fault}"
        if fault := tree_fault(files):
            yield f"{field}: {fault}"
    for target in problem.targets:
        if fault := text_fault(target) or path_fault(target):
            yield f"targets: {fault}"
        elif not editable(problem, target):
            yield f"targets: {target!r}: {_ONLY_BELOW}"


_ONLY_BELOW = f"a solution may only change files below {', '.join(f'{folder}/' for folder in AGENT_FOLDERS)}"
_WORK_DIR = "/code"
_RUN_DIR = f"{_WORK_DIR}/rundir"
_READS_MODULE = re.compile(r"[\"']MODULE[\"']")
_MODULE_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_TEST_FILE = re.compile(r"(?<![\w/])/src/([\w./-]+\.py)\b")


def validate_problem(problem: Problem) -> list[str]:
    """The inconsistencies of a problem, one message each; empty if there are none.

    Every message names its field. Whether the golden solution passes its tests is not checked here.
    """
    findings = [*_check_targets(problem), *_check_golden(problem), *_check_context(problem)]
    if missing_here(problem) is None and not problem.asks_text:
        try:
            findings += _check_services(problem)
        except ProblemError as error:
            findings.append(f"harness.{COMPOSE_FILE}: {error.message}")
    return findings


def _check_targets(problem: Problem) -> Iterator[str]:
    if missing_here(problem) is not None or problem.asks_text:
        return
    if not problem.targets:
        yield f"{_solution_field(problem)}: names no target file"
    for target in problem.targets:
        if not editable(problem, target):
            yield f"{_solution_field(problem)}.{target}: {_ONLY_BELOW}"


def _check_golden(problem: Problem) -> Iterator[str]:
    if problem.golden is None:
        return
    field = _solution_field(problem)
    for target in problem.targets:
        if target not in problem.golden:
            yield f"{field}.{target}: the golden solution lacks this target"
    for path, text in problem.golden.items():
        if not editable(problem, path):
            yield f"{field}.{path}: the golden solution changes a file that a solution may not change"
        if not text.strip():
            yield f"{field}.{path}: the golden solution's file is empty"


def _check_context(problem: Problem) -> Iterator[str]:
    hidden = {text for name, text in problem.harness.items() if name.startswith("src/") and text.strip()}
    for path, text in problem.context.items():
        if path in problem.harness or path.startswith(("src/", "rundir/")):
            yield f"context.{path}: this place belongs to the hidden harness"
        elif text in hidden:
            yield f"context.{path}: the agent would see a file of the hidden harness"


def _check_services(problem: Problem) -> Iterator[str]:
    sources: set[str] = set()
    readable = True
    for name, service in parse_services(problem.harness[COMPOSE_FILE]).items():
        field = f"harness.{COMPOSE_FILE}: service {name!r}"
        yield from (f"{field} {fault}" for fault in _service_faults(service, problem.harness))
        yield from (f"{field} {fault}" for fault in _module_faults(service, problem))
        found = service_environment(service, problem.harness).get("VERILOG_SOURCES", "").split()
        readable = readable and dockerfile(service) is None  # other files may be there
        readable = readable and bool(found) and not any(mark in word for word in found for mark in "*?[$")
        sources |= {posixpath.normpath(posixpath.join(_RUN_DIR, word)) for word in found}
    if readable:
        yield from _source_faults(problem, sources)


def _service_faults(service: Mapping[str, Any], harness: Mapping[str, str]) -> Iterator[str]:
    yield from env_file_faults(service, harness)
    built_from = dockerfile(service)
    if built_from is not None and built_from not in harness:
        yield f"is built from {built_from}, which the harness lacks"
    command = service.get("command") or ""
    text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
    for path in _TEST_FILE.findall(text):
        if f"src/{path}" not in harness:
            yield f"runs /src/{path}, which the harness lacks"


def _module_faults(service: Mapping[str, Any], problem: Problem) -> Iterator[str]:
    """Test modules that do not exist, so that no design can pass."""
    python = [text for path, text in problem.harness.items() if path.endswith(".py")]
    used = any(_READS_MODULE.search(text) and "test_module" in text for text in python)  # by cocotb's runner
    if problem.checkout or dockerfile(service) is not None or not used:
        return  # other files may be there, or the variable may mean something else
    paths = [f"/{path}" for path in (*problem.harness, *problem.context, *problem.targets)]
    for name in map(str.strip, service_environment(service, problem.harness).get("MODULE", "").split(",")):
        place = name.replace(".", "/")
        endings = (f"/{place}.py", f"/{place}/__init__.py")
        installed = "." in name and not any(f"/{place.split('/')[0]}/" in path for path in paths)
        if _MODULE_NAME.fullmatch(name) and not installed and not any(path.endswith(endings) for path in paths):
            yield f"sets MODULE to {name}, but the harness has no {place}.py"


def _source_faults(problem: Problem, sources: set[str]) -> Iterator[str]:
    for target in problem.targets:
        # A target outside rtl/, such as a testbench, need not be compiled by the tests.
        known = target in problem.context or f"{_WORK_DIR}/{target}" in sources
        if target.startswith("rtl/") and not known:
            yield f"{_solution_field(problem)}.{target}: neither VERILOG_SOURCES nor the context names this target"
    available = {f"{_WORK_DIR}/{path}" for path in (*problem.context, *problem.targets, *(problem.golden or {}))}
    hidden = [path for path in problem.harness if path.startswith("src/")]
    available |= {f"{folder}/{path}" for folder in ("", _WORK_DIR) for path in hidden}
    for path in sorted(sources - available):
        yield f"harness: VERILOG_SOURCES names {path}, which is not in context, targets or the harness's src/"


def _solution_field(problem: Problem) -> str:
    return "patch" if problem.agentic else "output.context"
