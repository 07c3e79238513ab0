"""RTLLM v2: a folder for each design, at any depth, with its description, its testbench and its reference."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.registry import Located
from rtl_agent_gym.sources.suites.common import (
    instantiated,
    module_names,
    open_folder,
    read_each,
    read_task,
    read_text,
    rename,
    root_modules,
    testbench_problem,
)

PREFIX = "rtllm:"
"""What such a source begins with."""
_DESCRIPTION, _TESTBENCH = "design_description.txt", "testbench.v"
_HOLDS = f"RTLLM v2 or a part of it: folders with {_DESCRIPTION} and {_TESTBENCH}"
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_DUMP = re.compile(r'\$dumpfile\s*\(\s*"[^"\n]*"')


def read_source(source: str) -> Iterator[Located]:
    """The problems of ``rtllm:FOLDER``, sorted by their folders. Links to folders are followed, each folder once.

    Folders whose names begin with ``_`` or ``.`` are left out: the benchmark keeps designs of models there.

    Raises:
        UsageError: There is no such folder, it holds no problem, or a folder in it cannot be read.
    """
    path = open_folder(source, PREFIX, _HOLDS)
    yield from read_each(_folders(path), _read, source, path, _HOLDS)


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


def _read(folder: Path) -> Problem:
    name = folder.resolve().name
    task = read_task(folder / _DESCRIPTION, name)
    testbench = read_text(folder / _TESTBENCH, name)
    where = str(folder / _TESTBENCH)
    tops, declared = root_modules(testbench), module_names(testbench)
    if len(tops) != 1:
        raise ProblemError(
            f"expected one module that no other uses, got {', '.join(tops) or 'none'}", source=where, problem_id=name
        )
    kinds = [kind for kind in instantiated(testbench) if kind not in declared]
    if len(kinds) != 1:
        got = ", ".join(kinds) or "none"
        raise ProblemError(f"expected one module from outside, the design, got {got}", source=where, problem_id=name)
    top = kinds[0]
    return testbench_problem(
        name,
        prompt=task,
        top=top,
        target=f"rtl/{top}.v",
        testbench=testbench,
        testbench_top=tops[0],
        verdict="passed",
        hidden={},
        golden=_golden(folder, name, top),
        data=_data(folder, testbench, name),
    )


def _golden(folder: Path, name: str, top: str) -> str | None:
    """The reference under the name that the testbench uses; None if there is no file ``verified_*.v``."""
    files = sorted(folder.glob("verified_*.v"))
    if not files:
        return None
    text = "\n".join(read_text(file, name) for file in files)
    if top in module_names(text):
        return text
    roots = root_modules(text)
    if len(roots) != 1:
        raise ProblemError(
            f"expected the module {top}, or one that no other uses, got {', '.join(roots) or 'none'}",
            source=str(files[0]),
            problem_id=name,
        )
    return rename(text, roots[0], top)


def _data(folder: Path, testbench: str, name: str) -> dict[str, str]:
    """The files of the folder whose names the testbench has in quotation marks, without the waveforms that it writes,
    which an earlier simulation may have left there.
    """
    found = {}
    for literal in _LITERAL.findall(_DUMP.sub("", testbench)):
        word = literal.removeprefix("./")
        if word and "/" not in word and os.path.isfile(folder / word):
            found[word] = read_text(folder / word, name)
    return found
