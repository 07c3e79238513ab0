"""Equivalence of a mutant and the reference, checked by Yosys inside a sandbox.

Two checks are made, in this order, for each top module of the hidden tests:

1. *Proved.* In both designs, every register is replaced by an input (its value) and outputs (next value, clock, reset),
   and a SAT solver searches for an input for which an output differs. If there is none, the designs are the same
   hardware. (In a simulation, a blocking assignment may race with another process. The standard does not define which
   comes first, so a test cannot rely on it.) This check cannot decide about mutants whose registers have other names or
   widths, or that differ only in unreachable states.
2. *Bounded.* Both designs start with undefined registers, and the solver searches for a sequence of inputs after which
   an output that the reference defines differs. `Finding.steps` is the greatest length without such a sequence; a clock
   cycle is two steps. If there is such a sequence, the mutant *differs*.

A difference holds for the default parameters. A proof is repeated with another value of each numeric parameter, one at
a time, since changes in code that the defaults exclude would otherwise count as equivalent. Nothing is proved if
simulators and Yosys may read the source differently (`beyond_yosys`).
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
"""The lengths of the input sequences that are searched, in steps; two steps are a clock cycle."""
PROOF_SECONDS, SEARCH_SECONDS = 20, 10
"""Time limits of a proof, and of the search for each length."""
_WHOLE = PROOF_SECONDS + SEARCH_SECONDS * len(STEPS) + 60

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"[\w./+-]+")
_MARKED = re.compile(r"\b(?:translate_off|full_case|parallel_case)\b")
_DIFFERENT = re.compile(
    r"'[sS]?[bBoOhHdD]?[\w?]*[zZ]|\b(?:YOSYS|SYNTHESIS|unique0?|priority(?=\s+(?:case|if)))\b|#\s*\d"
    r"|@\s*\((?![^)]*\b(?:pos|neg)edge\b)\s*[^*\s][^)]*\)"
)
"""High-impedance values, synthesis-only text, promises to synthesis tools, delays, level-sensitive event lists."""
_PARAMETERS = re.compile(r"\bparameter\b((?:[^;()]++|\((?:[^()]++|\([^()]*+\))*\))*)")
_PARAMETER = re.compile(r"(?:^|,)(?!\s*localparam\b)[^=,]*?\b([A-Za-z_]\w*)\s*=\s*(?:1'[bdh])?(\d{1,4})\s*(?=,|$)")
"""A parameter in a match of `_PARAMETERS` whose default is a plain number."""
_PROVED, _DIFFERS = "no model found: SUCCESS!", "model found: FAIL!"


class Finding(NamedTuple):
    """The result of a comparison by Yosys."""

    equivalence: Equivalence
    steps: int = 0
    """For ``bounded``: the number of steps for which no difference was found."""
    why: str = ""
    """For ``unknown``: the reason."""


async def compare(
    problem: Problem, right: Mapping[str, str], other: Mapping[str, str], provider: SandboxProvider
) -> Finding:
    """Compare the RTL of a reference and a mutant (text by path), with the sources and tops that hidden tests name.

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
    # With several top modules, the weakest result counts, but a difference outweighs all others.
    order: tuple[Equivalence, ...] = ("differs", "unknown", "bounded", "proved")
    return min(findings, key=lambda finding: (order.index(finding.equivalence), finding.steps))


async def _run(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.exec(["yosys", "-p", script], timeout=_WHOLE)).output


async def _prove(sandbox: Sandbox, sources: Sequence[str], top: str, texts: Sequence[str]) -> Finding:
    """``proved``; ``unknown`` if a proof would not be conclusive; empty if a search for a difference should follow."""
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
    """The first construct that Yosys may read differently from simulators; empty if there is none."""
    for text in texts:
        if match := _MARKED.search(text):
            return repr(match[0])
        if match := _DIFFERENT.search(plain(text)):
            return repr(" ".join(match[0].split()))
    return ""


def other_parameters(texts: Iterable[str], top: str) -> list[tuple[str, int]]:
    """The name and another value of each parameter of the module `top` whose default is a plain number."""
    for text in texts:
        if match := re.search(rf"\bmodule\s+{re.escape(top)}\b(.*?)\bendmodule\b", plain(text), re.DOTALL):
            found = [pair for several in _PARAMETERS.findall(match[1]) for pair in _PARAMETER.findall(several)]
            return [(name, 1 - int(value) if int(value) < 2 else int(value) + 1) for name, value in dict(found).items()]
    return []


def _both(sources: Sequence[str], top: str, parameter: str = "") -> list[str]:
    """Yosys commands that read both designs as modules ``gold`` and ``gate``."""
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
    # Without -enable_undef, x would count as 0, and a comparison with x would hide differences.
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
    """The finding; None if even the search of the shortest sequences did not finish."""
    reached = 0
    for part in re.split(r"^steps (?=\d+$)", output, flags=re.MULTILINE)[1:]:
        if _PROVED in part:
            reached = int(part.split(maxsplit=1)[0])
        elif _DIFFERS in part:
            return Finding("differs")
    return Finding("bounded", steps=reached) if reached else None
