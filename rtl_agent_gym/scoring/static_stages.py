"""The stages that need no simulation, from pyslang's reading of the files: syntax, and the ports of the top module.

Verilator gives a second opinion on the syntax. The ports are compared with those that the problem requires.
"""

from __future__ import annotations

import difflib
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..problems.model import Problem
from ..visible import first_few
from .frontend import Frontend, Port, Reading
from .submission import SubmittedFiles

SYNTAX = "syntax: "
"""The beginning of pyslang's complaint in a reason."""
HDL = (".v", ".sv", ".vh", ".svh")
_VERILATOR_ERROR = re.compile(
    r"^%Error(?:-(?P<code>\w+))?: (?P<file>[^:\n]+):(?P<line>\d+)(?::\d+)?: (?P<text>.*)$", re.MULTILINE
)
_INCOMPLETE = re.compile(r"^%Error: .*: (?:Cannot find include file|Define or directive not defined): ", re.MULTILINE)
_NOT_SYNTAX = {"NEEDTIMINGOPT", "UNSUPPORTED", "MODMISSING", "PINNOTFOUND", "PROCASSWIRE", "BLKANDNBLK"}
_DIRECTIONS = {"in": "input", "out": "output", "inout": "inout", "ref": "ref", "interface": "interface"}
_INCLUDED = re.compile(rb'`include[ \t]+"(?:[^"\n]*/)?([^"/\n]+)"')
_MOST, _LONGEST = 200, 100
"""Maximum number of surplus ports, and length of their names, in the search for a misnamed port. Module names in
messages are cut at the same length."""
_DRIVEN = re.compile(r"\bdut\.([A-Za-z]\w*)(?:\.value\s*=(?!=)|\.setimmediatevalue\()|\bClock\(\s*dut\.([A-Za-z]\w*)")


def is_hdl(path: str) -> bool:
    """Whether a file is read as SystemVerilog."""
    return path.endswith(HDL)


def readable(tree: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a work folder that pyslang may read: HDL files, and others, such as ``x.inc``, that have the name of
    an included file.
    """
    others = {posixpath.basename(path).encode(errors="surrogateescape") for path in tree if not is_hdl(path)}
    texts = (content for content in tree.values() if others and b"`include" in content)
    named = others.intersection(match[1] for content in texts for match in _INCLUDED.finditer(content))
    names = {os.fsdecode(name) for name in named}
    return {path: content for path, content in tree.items() if is_hdl(path) or posixpath.basename(path) in names}


@dataclass(frozen=True)
class Build:
    """What is read of a submission, and how; paths are relative to the work folder."""

    sources: tuple[str, ...]
    """In the order of compilation."""
    folders: tuple[str, ...] = ()
    """Include folders."""
    defines: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        submission: SubmittedFiles,
        sources: Sequence[str],
        folders: Sequence[str] | None = None,
        defines: Sequence[str] = (),
    ) -> Build:
        """The files to read: the harness's sources in its order, then other targets.

        Headers are read where they are included, unless they are targets that nothing includes. If the harness's
        include folders are not known, or it does not compile a target, such as a testbench, the work folder and every
        folder with an HDL file are searched, too: nobody knows how the agent compiles it.
        """
        tree = submission.tree
        named = [path for path in dict.fromkeys(sources) if path in tree]
        text = b"\n".join(tree[path] for path in named).decode("latin-1")
        left = [path for path in submission.problem.targets if path in tree and is_hdl(path) and path not in named]
        left = [path for path in left if path.rsplit("/", 1)[-1] not in text]
        if not any(b"`include" in content for path, content in tree.items() if is_hdl(path)):
            folders = ()  # so that equal readings are equal objects
        elif folders is None or left:
            everywhere = ["", *sorted({posixpath.dirname(path) for path in tree if is_hdl(path)})]
            folders = list(dict.fromkeys([*(folders or ()), *everywhere]))
        return cls((*named, *left), tuple(folders), tuple(defines))


def judge_syntax(submission: SubmittedFiles, reading: Reading, compiled: Sequence[str] = ()) -> tuple[float, str]:
    """The syntax stage from pyslang's reading: the share of the target files that were submitted and have no syntax
    error, and the first complaint, empty if there is none. Targets in other languages only need to exist.

    Where the reading lacks an included file, such as one that comes with the simulator, the sources that a compiler of
    the harness accepted, `compiled`, count as free of errors.
    """
    targets = submission.problem.targets
    if reading.fault:
        return 0.0, f"{SYNTAX}{reading.fault}"
    broken = {path for path, _, _ in reading.errors}
    if reading.unread:
        broken -= set(compiled)
    good = [t for t in targets if t not in broken and t not in submission.missing]
    first = next((error for error in reading.errors if error[0] in targets and error[0] in broken), None)
    reason = f"{SYNTAX}{first[0]}:{first[1]}: {first[2]}" if first else ""
    return len(good) / len(targets) if targets else float(not broken), reason


def disagreement(complained: bool, lint: str | None) -> str:
    """Which of the two front ends complained if only one did; empty if they agree or Verilator did not run.

    Only syntax errors count, not unsupported features or missing modules, and none where Verilator, which does not know
    the folders and macros of the harness's build, lacked a header or a macro. `complained` says whether pyslang did;
    `lint` is what Verilator printed, None if it did not run.
    """
    if lint is None or _INCOMPLETE.search(lint):
        return ""
    found = [m for m in _VERILATOR_ERROR.finditer(lint) if "syntax error" in m["text"] and m["code"] not in _NOT_SYNTAX]
    if found and not complained:
        file, line, text = found[0].group("file", "line", "text")
        return f"Verilator alone complains of the syntax: {file.removeprefix('/code/')}:{line}: {text}"
    if complained and not _VERILATOR_ERROR.search(lint):
        return "pyslang alone complains of the syntax, Verilator does not"
    return ""


@dataclass(frozen=True)
class Demand:
    """The ports that a problem requires of one module."""

    module: str
    ports: tuple[Port, ...]
    names_only: bool = False
    """Whether only the ports' names are known."""


async def demands(problem: Problem, tops: Mapping[str, Sequence[str]], frontend: Frontend) -> list[Demand]:
    """The ports that a problem requires of the modules under test, `tops`, each with the names of the Python modules
    that test it.

    The module's header is taken from the prompt, the documents, or the given RTL, in this order. Without a header, only
    the names that the tests drive are required. A header in a target file may be outdated: then ports that the module's
    tests never use are not required, and widths are not compared.
    """
    found = []
    for top, tests in tops.items():
        header, old = _find_header(problem, top)
        driven = [Port(name, "in", None) for name in _driven(problem, tests)]
        ports: tuple[Port, ...] = ()
        if header is not None:
            reading = await frontend.read({"header.sv": header.encode()}, ["header.sv"], [top])
            ports = reading.ports.get(top, ())
        if old:
            used = _used(problem, tests, tops)
            kept = [port for port in ports if port.name in used] or ports
            ports = tuple(replace(port, width=None) for port in kept)
        if ports:
            found.append(Demand(top, ports))
        elif driven:
            found.append(Demand(top, tuple(driven), names_only=True))
    return found


def _find_header(problem: Problem, top: str) -> tuple[str | None, bool]:
    """The header of module `top`, with the body only if the ports are declared there, or None if the problem shows
    none; and whether its file is a target.
    """
    documents = [(text, False) for path, text in problem.context.items() if path.startswith("docs/")]
    rtl = [(text, path in problem.targets) for path, text in problem.context.items() if path.startswith("rtl/")]
    pattern = re.compile(rf"\bmodule\s+{re.escape(top)}\b(?=\s*[#(;])[^;]*;")
    for text, old in [(problem.prompt, False), *documents, *rtl]:
        match = pattern.search(_without_comments(text))
        if match is None:
            continue
        if re.search(r"\b(?:input|output|inout)\b", match.group()):
            return match.group() + "\nendmodule\n", old
        body = re.compile(rf"{re.escape(match.group())}.*?\bendmodule\b", re.DOTALL).search(_without_comments(text))
        if body is not None:
            return body.group() + "\n", old
    return None, False


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def _used(problem: Problem, tests: Sequence[str], tops: Mapping[str, Sequence[str]]) -> set[str]:
    """Signals used by a module's tests or by what they may import: all Python files but the tests of other modules."""
    others = {name for names in tops.values() for name in names} - set(tests)
    texts = [text for module, text in _modules(problem) if module not in others]
    return set(re.findall(r"\bdut\.([A-Za-z]\w*)", "\n".join(texts)))


def _driven(problem: Problem, tests: Sequence[str]) -> list[str]:
    found = (match for module, text in _modules(problem) if module in tests for match in _DRIVEN.findall(text))
    return list(dict.fromkeys(a or b for a, b in found))


def _modules(problem: Problem) -> list[tuple[str, str]]:
    """The name and the text of each Python module of a harness."""
    found = [(path.rpartition("/")[2], text) for path, text in problem.harness.items()]
    return [(name.removesuffix(".py"), text) for name, text in found if name.endswith(".py")]


def judge_interface(asked: Sequence[Demand], reading: Reading) -> tuple[float, list[str]]:
    """The interface stage: the share of the required ports that exist with their direction and width, 1 if none are
    required, and a description of each difference.
    """
    shares: list[float] = []
    differences: list[str] = []
    for demand in asked:
        ports = reading.ports.get(demand.module)
        if ports is None:
            there = ", ".join(name[:_LONGEST] for name in first_few(reading.modules)) or "none"
            differences.append(f"module {demand.module} is missing (modules found: {there})")
            shares.append(0.0)
            continue
        wrong = list(_compare(demand, {port.name: port for port in ports}))
        differences += wrong
        shares.append(1.0 - len(wrong) / len(demand.ports))
    return sum(shares) / len(shares) if shares else 1.0, differences


def _compare(demand: Demand, ports: Mapping[str, Port]) -> Iterator[str]:
    """A description of each required port that is missing or different."""
    required = {asked.name for asked in demand.ports}
    extra = [port for name, port in ports.items() if name not in required and len(name) <= _LONGEST][:_MOST]
    for asked in demand.ports:
        name, port = asked.name, ports.get(asked.name)
        if port is None:
            like = _alike(asked, extra, demand.names_only)
            yield f"{like} instead of {name}" if like else f"{name} is missing"
        elif not demand.names_only and port.direction != asked.direction:
            yield f"{name} is {_DIRECTIONS[port.direction]}, expected {_DIRECTIONS[asked.direction]}"
        elif asked.width is not None and port.width is not None and asked.width != port.width:
            yield f"{name} has {port.width} bit{'s' * (port.width > 1)}, expected {asked.width}"


def _alike(asked: Port, extra: list[Port], names_only: bool) -> str | None:
    """The surplus port that is most likely meant to be `asked`; it is removed from `extra`."""
    fitting = [
        port for port in extra if names_only or (port.direction == asked.direction and port.width == asked.width)
    ]
    names = difflib.get_close_matches(asked.name, [port.name for port in fitting], n=1, cutoff=0.3)
    if not names and len(fitting) == 1:
        names = [fitting[0].name]
    extra[:] = [port for port in extra if port.name not in names]
    return names[0] if names else None
