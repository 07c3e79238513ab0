"""Whether a mutant is equivalent to the reference, as Yosys proves it inside a sandbox.

Two questions are asked, in this order, of each module that the hidden tests run on:

1. *Proved.* Every register becomes an input (its value) and outputs (next value, clock, reset), in both designs, and a
   SAT solver looks for an input for which an output differs. Where there is none, the designs are the same hardware.
   (In a simulation, a blocking assignment may race with another process. The standard leaves open which of them
   comes first, so a test cannot rely on that.) It says nothing of mutants whose registers have other names or widths,
   or that differ only in states that cannot be reached.
2. *Bounded.* Both designs start with undefined registers, and the solver looks for a sequence of inputs after which an
   output that the reference defines differs. `Finding.steps` is the longest length for which there is none; a clock
   cycle is two steps. If it finds one, the mutant *differs*.

A difference holds for the parameters' defaults. A proof also holds for another value of each parameter that is a plain
number, one at a time: otherwise changes in code that the defaults leave out would be equivalent. Where simulators and
Yosys read a source differently, nothing is proved (`beyond_yosys`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...errors import SandboxBroken
from ...problems import Problem
from ...sandboxes import WORK_DIR, Sandbox, SandboxProvider
from ...scoring.compose import read_services
from ...scoring.harness import source_paths, top_modules
from ..suites.common import plain
from .mutant import Equivalence

STEPS = (4, 8, 16, 24)
"""The lengths of the sequences that are searched, in steps; two steps are a clock cycle."""
PROOF_SECONDS, SEARCH_SECONDS = 20, 10
"""Time limits of a proof, and of a search for each length."""
_WHOLE = PROOF_SECONDS + SEARCH_SECONDS * len(STEPS) + 60

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"[\w./+-]+")
_MARKED = re.compile(r"\b(?:translate_off|full_case|parallel_case)\b")
_DIFFERENT = re.compile(
    r"'[sS]?[bBoOhHdD]?[\w?]*[zZ]|\b(?:YOSYS|SYNTHESIS|unique0?|priority(?=\s+(?:case|if)))\b|#\s*\d"
    r"|@\s*\((?![^)]*\b(?:pos|neg)edge\b)\s*[^*\s][^)]*\)"
)
"""Unknown and high-impedance values, text for synthesis only, promises to it, delays, and lists of levels."""
_PARAMETERS = re.compile(r"\bparameter\b((?:[^;()]++|\((?:[^()]++|\([^()]*+\))*\))*)")
_PARAMETER = re.compile(r"(?:^|,)(?!\s*localparam\b)[^=,]*?\b([A-Za-z_]\w*)\s*=\s*(?:1'[bdh])?(\d{1,4})\s*(?=,|$)")
"""In a list of `_PARAMETERS`, one whose default is a plain number."""
_PROVED, _DIFFERS = "no model found: SUCCESS!", "model found: FAIL!"


class Finding(NamedTuple):
    """What Yosys found."""

    equivalence: Equivalence
    steps: int = 0
    """For ``bounded``: the steps for which no difference was found."""
    why: str = ""
    """For ``unknown``: what Yosys could not do."""


async def compare(
    problem: Problem, right: Mapping[str, str], other: Mapping[str, str], provider: SandboxProvider
) -> Finding:
    """Compare the RTL of a reference and a mutant, text by path. Hidden tests name the sources and top modules.

    Raises:
        SandboxError: The machine failed.
    """
    services = read_services(problem)
    tops = [top for top in top_modules(services) if _NAME.fullmatch(top)]
    sources = [path for path in source_paths(services) if path in right and path in other and _PATH.fullmatch(path)]
    if not tops or not sources:
        return Finding("unknown", why="the hidden tests name no top module or no sources")
    files = {f"gold/{path}": text for path, text in right.items() if path.startswith("rtl/")}
    files |= {f"gate/{path}": text for path, text in other.items() if path.startswith("rtl/")}
    read = {*sources, *(path for path in right if path.endswith((".vh", ".svh")))}
    texts = [text for design in (right, other) for path, text in design.items() if path in read]
    findings = []
    try:
        sandbox = await provider.create()
        try:
            await sandbox.write_files(files)
            for top in tops:
                finding = await _prove(sandbox, sources, top, texts)
                if not finding.equivalence:
                    found = _read_search(await _run(sandbox, _search(sources, top)))
                    finding = found or finding._replace(equivalence="unknown")
                findings.append(finding)
        finally:
            await sandbox.close()
    except SandboxBroken as error:  # Yosys needed too much memory
        return Finding("unknown", why=str(error))
    # Of several top modules, the weakest finding counts, but a difference counts most.
    order: tuple[Equivalence, ...] = ("differs", "unknown", "bounded", "proved")
    return min(findings, key=lambda finding: (order.index(finding.equivalence), finding.steps))


async def _run(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.exec(["yosys", "-p", script], timeout=_WHOLE)).output


async def _prove(sandbox: Sandbox, sources: Sequence[str], top: str, texts: Sequence[str]) -> Finding:
    """``proved``, ``unknown`` if a proof would say nothing here, or empty: then a difference is worth a search."""
    output = await _run(sandbox, _proof(sources, top))
    if _PROVED not in output:
        error = re.search(r"^ERROR: (.*)$", output, re.MULTILINE)
        return Finding("", why=error[1] if error else "neither a proof nor a difference was found in time")
    if what := beyond_yosys(texts):
        return Finding("unknown", why=f"Yosys and simulators may read {what} differently")
    for name, value in other_parameters(texts, top):
        output = await _run(sandbox, _proof(sources, top, f" -chparam {name} {value}"))
        if _PROVED not in output:
            return Finding("unknown", why=f"proved for the parameters' defaults, but not for {name} = {value}")
    return Finding("proved")


def beyond_yosys(texts: Iterable[str]) -> str:
    """What sources have that Yosys reads differently than simulators do; empty if nothing."""
    for text in texts:
        if match := _MARKED.search(text):
            return repr(match[0])
        if match := _DIFFERENT.search(plain(text)):
            return repr(" ".join(match[0].split()))
    return ""


def other_parameters(texts: Iterable[str], top: str) -> list[tuple[str, int]]:
    """For each parameter of a module with a plain number as its default, its name and another value."""
    for text in texts:
        if match := re.search(rf"\bmodule\s+{re.escape(top)}\b(.*?)\bendmodule\b", plain(text), re.DOTALL):
            found = [pair for several in _PARAMETERS.findall(match[1]) for pair in _PARAMETER.findall(several)]
            return [(name, 1 - int(value) if int(value) < 2 else int(value) + 1) for name, value in dict(found).items()]
    return []


def _both(sources: Sequence[str], top: str, parameter: str = "") -> list[str]:
    """Read each design and keep it under its name."""
    lines: list[str] = []
    for name in ("gold", "gate"):
        folder = f"{WORK_DIR}/{name}"
        lines += [
            f"read_verilog -sv -I{folder}/rtl {' '.join(f'{folder}/{path}' for path in sources)}",
            f"hierarchy -check -top {top}{parameter}",
            "proc", "flatten", "opt_clean", "memory -nomap", "memory_map", "opt_clean",
            f"rename -top {name}",
            f"design -stash {name}",
        ]  # fmt: skip
    return [*lines, *(f"design -copy-from {name} -as {name} {name}" for name in ("gold", "gate"))]


def _proof(sources: Sequence[str], top: str, parameter: str = "") -> str:
    # Without -enable_undef, x counts as 0; then a comparison with x would hide differences.
    return "; ".join([
        *_both(sources, top, parameter),
        "expose -evert-dff -shared gold gate",
        "miter -equiv -flatten -make_outputs gold gate miter",
        "hierarchy -top miter",
        f"sat -enable_undef -set-def-inputs -prove trigger 0 -timeout {PROOF_SECONDS} miter",
    ])  # fmt: skip


def _search(sources: Sequence[str], top: str) -> str:
    return "; ".join([
        *_both(sources, top),
        "miter -equiv -ignore_gold_x -flatten -make_outputs gold gate miter",
        "hierarchy -top miter",
        "clk2fflogic",
        "opt_clean",
        *(
            f"log steps {steps}; sat -enable_undef -set-init-undef -set-def-inputs -seq {steps} -prove trigger 0 "
            f"-timeout {SEARCH_SECONDS} miter"
            for steps in STEPS
        ),
    ])  # fmt: skip


def _read_search(output: str) -> Finding | None:
    """The finding, or None if not even the shortest sequence could be searched."""
    reached = 0
    for part in re.split(r"^steps (?=\d+$)", output, flags=re.MULTILINE)[1:]:
        if _PROVED in part:
            reached = int(part.split(maxsplit=1)[0])
        elif _DIFFERS in part:
            return Finding("differs")
    return Finding("bounded", steps=reached) if reached else None
