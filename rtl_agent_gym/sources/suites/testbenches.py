"""Benchmarks whose hidden test is a testbench in Verilog that prints its verdict.

- VerilogEval v2: a folder with ``NAME_prompt.txt``, ``NAME_ref.sv`` and ``NAME_test.sv`` for each problem.
- RTLLM v2: a folder for each design, at any depth, with its description, its testbench and its reference.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from ...errors import ProblemError, UsageError
from ...problems.model import Problem
from ...problems.paths import expand_home
from ...problems.registry import Located
from ...problems.rows import Place, id_fault
from .common import harness_file, instantiated, module_names, plain, ports, rename, root_modules

LARGEST_FILE = 4 << 20
"""Maximum size of a benchmark's file, in bytes; the published ones have a few thousand."""

Verdict = Literal["mismatches", "passed"]
"""How a testbench reports its verdict: a line with the number of mismatches, or a text that contains "pass"."""

SIMULATION_SECONDS = 30
"""Limit on the processor time of one simulation."""
_PRINTS = re.compile(r"\$(?:display|write|strobe)[bho]?\s*\(")

TOP, REFERENCE = "TopModule", "RefModule"
_VERILOG_EVAL = "a folder of VerilogEval v2 with files such as Prob001_zero_prompt.txt (dataset_spec-to-rtl)"
_PROMPT = "_prompt.txt"

_DESCRIPTION, _TESTBENCH = "design_description.txt", "testbench.v"
_RTLLM = f"RTLLM v2 or a part of it: folders with {_DESCRIPTION} and {_TESTBENCH}"
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_DUMP = re.compile(r'\$dumpfile\s*\(\s*"[^"\n]*"')


def read_verilog_eval(source: str) -> Iterator[Located]:
    """The problems of ``verilog-eval:FOLDER``, sorted by name.

    Raises:
        UsageError: There is no such folder, or it contains no problem.
    """

    def prompts(folder: Path) -> list[Path]:
        return sorted(folder.glob(f"*{_PROMPT}"))

    return _read_folder(source, "verilog-eval:", prompts, _verilog_eval_problem, _VERILOG_EVAL)


def _verilog_eval_problem(prompt: Path) -> Problem:
    name = prompt.name.removesuffix(_PROMPT)
    testbench = _read_text(prompt.with_name(f"{name}_test.sv"), name)
    reference = _read_text(prompt.with_name(f"{name}_ref.sv"), name)
    for kind, text, expected in (("_test.sv", testbench, "tb"), ("_ref.sv", reference, REFERENCE)):
        if expected not in (found := module_names(text)):
            raise _unexpected(f"a module {expected}", found, prompt.with_name(name + kind), name)
    interface = prompt.with_name(f"{name}_ifc.txt")
    task = _read_task(prompt, name)
    if interface.is_file() and f"module {TOP}" not in task:
        task = f"{task.strip()}\n\n{_read_text(interface, name).strip()}"
    return _testbench_problem(
        name,
        prompt=task,
        top=TOP,
        target=f"rtl/{TOP}.sv",
        testbench=testbench,
        testbench_top="tb",
        verdict="mismatches",
        hidden={"reference.sv": reference},
        golden=rename(reference, REFERENCE, TOP),
        data={},
    )


def read_rtllm(source: str) -> Iterator[Located]:
    """The problems of ``rtllm:FOLDER``, sorted by their folders. Links to folders are followed, each folder once.

    Folders whose names begin with ``_`` or ``.`` are left out: the benchmark keeps designs of models there.

    Raises:
        UsageError: There is no such folder, it contains no problem, or a folder in it cannot be read.
    """
    return _read_folder(source, "rtllm:", _folders, _rtllm_problem, _RTLLM)


def _folders(path: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for folder, below, files in os.walk(path, onerror=_refuse_folder, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # a second link, or one to a folder above
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if not name.startswith(("_", ".")))
        if _DESCRIPTION in files:
            yield Path(folder)


def _refuse_folder(error: OSError) -> None:
    raise UsageError(f"{error.filename}: the folder cannot be read: {error.strerror}") from error


def _rtllm_problem(folder: Path) -> Problem:
    name = folder.resolve().name
    task = _read_task(folder / _DESCRIPTION, name)
    testbench = _read_text(folder / _TESTBENCH, name)
    tops, declared = root_modules(testbench), module_names(testbench)
    if len(tops) != 1:
        raise _unexpected("one module that no other uses", tops, folder / _TESTBENCH, name)
    kinds = [kind for kind in instantiated(testbench) if kind not in declared]
    if len(kinds) != 1:
        raise _unexpected("one module from outside, the design", kinds, folder / _TESTBENCH, name)
    top = kinds[0]
    return _testbench_problem(
        name,
        prompt=task,
        top=top,
        target=f"rtl/{top}.v",
        testbench=testbench,
        testbench_top=tops[0],
        verdict="passed",
        hidden={},
        golden=_rtllm_golden(folder, name, top),
        data=_rtllm_data(folder, testbench, name),
    )


def _rtllm_golden(folder: Path, name: str, top: str) -> str | None:
    """The reference under the name that the testbench uses; None if there is no file ``verified_*.v``."""
    files = sorted(folder.glob("verified_*.v"))
    if not files:
        return None
    text = "\n".join(_read_text(file, name) for file in files)
    if top in module_names(text):
        return text
    roots = root_modules(text)
    if len(roots) != 1:
        raise _unexpected(f"the module {top}, or one that no other uses", roots, files[0], name)
    return rename(text, roots[0], top)


def _rtllm_data(folder: Path, testbench: str, name: str) -> dict[str, str]:
    """The files in the folder whose names the testbench contains as string literals, without the waveforms that it
    writes, which an earlier simulation may have left there.
    """
    found = {}
    for literal in _LITERAL.findall(_DUMP.sub("", testbench)):
        word = literal.removeprefix("./")
        if word and "/" not in word and os.path.isfile(folder / word):
            found[word] = _read_text(folder / word, name)
    return found


def _unexpected(expected: str, found: list[str], path: Path, problem_id: str) -> ProblemError:
    message = f"expected {expected}, got {', '.join(found) or 'none'}"
    return ProblemError(message, source=str(path), problem_id=problem_id)


def _read_folder(
    source: str, prefix: str, find: Callable[[Path], Iterable[Path]], read: Callable[[Path], Problem], holds: str
) -> Iterator[Located]:
    """The problem, or its error, for each path that `find` yields for a source's folder.

    Raises:
        UsageError: There is no such folder, or nothing was found; `holds` describes what is expected.
    """
    name = source.removeprefix(prefix)
    path = expand_home(name)
    if not name or not os.path.isdir(path):  # unlike `Path.is_dir`, also False for names that are too long
        raise UsageError(f"{source!r}: there is no folder {name!r}; give {prefix}FOLDER, {holds}")
    empty = True
    for entry in find(path):
        empty = False
        place = Place(str(entry))
        try:
            yield read(entry), place
        except ProblemError as error:
            where = error.source or str(entry)
            yield ProblemError(error.message, source=where, problem_id=error.problem_id, field=error.field), place
    if empty:
        raise UsageError(f"{source!r}: the folder {path} contains no problem of the benchmark; expected {holds}")


def _read_text(path: Path, problem_id: str) -> str:
    """The text of a file, read as Latin-1 if it is not UTF-8. Line ends are kept.

    Raises:
        ProblemError: The file cannot be read, is not a regular file, is larger than `LARGEST_FILE`, or is not text.
    """

    def fault(message: str) -> ProblemError:
        return ProblemError(message, source=str(path), problem_id=problem_id)

    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait
            raise fault("expected a regular file")
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise fault(f"the file cannot be read: {error.strerror or error}; check the copy of the benchmark") from error
    if len(data) > LARGEST_FILE:
        raise fault(f"the file has more than {LARGEST_FILE >> 20} MiB; check the copy of the benchmark")
    if b"\0" in data:
        raise fault("the file is not text: it contains a zero byte, as binary data and UTF-16 do; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _read_task(path: Path, problem_id: str) -> str:
    """The task's text. Raises `ProblemError` like `_read_text`, and if it is empty."""
    text = _read_text(path, problem_id)
    if not text.strip():
        raise ProblemError("the file is empty; expected the task's text", source=str(path), problem_id=problem_id)
    return text


def _testbench_problem(
    problem_id: str,
    *,
    prompt: str,
    top: str,
    target: str,
    testbench: str,
    testbench_top: str,
    verdict: Verdict,
    hidden: Mapping[str, str],
    golden: str | None,
    data: Mapping[str, str],
) -> Problem:
    """A problem whose hidden test is a testbench in Verilog that prints its verdict.

    `prompt` does not yet say where the answer goes. `testbench_top` is the module that is simulated; `hidden` are more
    sources that are compiled after the testbench, by file name, and `data` are the files that the testbench reads.

    Raises:
        ProblemError: The id has characters that are not allowed in a row's id, or the testbench prints nothing.
    """
    if fault := id_fault(problem_id):
        raise ProblemError(fault)
    if not _PRINTS.search(plain(testbench)):
        raise ProblemError(
            "the testbench prints nothing, so it has no verdict; expected $display or $write", problem_id=problem_id
        )
    shown = [golden or "", *hidden.values(), "" if golden else testbench]
    judge = {
        "design": f"/code/{target}",
        "top": testbench_top,
        "module": top,
        "ports": {port.name: port.direction for port in ports(golden or "").get(top, ())},
        "hidden": ["testbench.sv", *hidden],
        "data": sorted(data),
        "verdict": verdict,
        "inout": any(re.search(r"\binout\b", plain(text)) for text in shown),
        "seconds": SIMULATION_SECONDS,
    }
    return Problem(
        id=problem_id,
        category=3,
        difficulty="medium",
        prompt=f"{prompt.strip()}\n\nWrite the module `{top}`, and every module that it uses, to the file `{target}`.",
        targets=(target,),
        harness={
            "docker-compose.yml": harness_file("docker-compose.yml"),
            "src/.env": harness_file("env").replace("DESIGN_FILE", target).replace("TOP_NAME", top),
            "src/judge.json": json.dumps(judge, indent=1) + "\n",
            "src/test_runner.py": harness_file("test_runner.py"),
            "src/testbench.sv": testbench,
            **{f"src/{name}": text for name, text in hidden.items()},
            **{f"src/data/{name}": text for name, text in data.items()},
        },
        golden={target: golden} if golden else None,
    )
