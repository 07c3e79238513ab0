"""Problems as task folders of Harbor."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ...episodes.rules import EpisodeConfig
from ...episodes.tools import tool_opening
from ...errors import UsageError, cannot_write
from ...problems import Problem
from ...problems.compose import SIM_IMAGES, instructions
from ...scoring import TIME_LIMIT
from ...scoring.compose import read_services
from ...scoring.harness import Defences, default_seed, service_request
from ...scoring.images import needs_build
from .task_program import program_files
from .task_toml import task_toml

_FILES = Path(__file__).with_name("files")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_WHERE = """
# Where you work

Everything is below /code, where commands start. What counts is what the files below /code/rtl, /code/verif and
/code/docs hold when you finish; /code/rundir is scratch space. There are `iverilog` and `vvp` (Icarus Verilog),
`verilator`, `yosys`, and Python with cocotb in /venv/bin. Hidden tests check the files afterwards.
"""
_SOLVE = "#!/bin/sh\n# The reference solution.\nset -eu\ncp -r /solution/files/. /code/\n"


def task_files(problem: Problem, image: str) -> dict[str, str]:
    """The files of a problem's task, by path relative to the task's folder. Equal for equal arguments.

    Args:
        problem: The problem, with its hidden tests. These go to ``tests/`` alone.
        image: The simulation image, as the daemon or a registry names it.

    Raises:
        UsageError: The problem cannot be a task; the message says why.
    """
    if not _NAME.fullmatch(problem.id) or ".." in problem.id:
        raise UsageError(f"the id {problem.id!r} cannot be a task's name; expected letters, digits, '-', '_' and '.'")
    files = {
        "task.toml": task_toml(problem, image),
        "instruction.md": _instruction(problem),
        "tests/problem.json": _graded(problem),
        "tests/Dockerfile": _dockerfile(problem, image),
        "tests/test.sh": (_FILES / "test.sh").read_text(encoding="utf-8"),
        "tests/guard": (_FILES / "guard").read_text(encoding="utf-8"),
    }
    files |= {f"tests/{path}": text for path, text in program_files().items()}
    files |= {f"environment/{path}": text for path, text in problem.context.items()}
    if problem.golden is not None:
        files |= {f"solution/files/{path}": text for path, text in problem.golden.items()}
        files["solution/solve.sh"] = _SOLVE
    return dict(sorted(files.items()))


def write_task(problem: Problem, folder: Path, image: str) -> Path:
    """Write a problem's task to a new folder below `folder`, and return it.

    Raises:
        UsageError: The problem cannot be a task, or there is something at its place already.
        SandboxError: The disk is full.
    """
    files = task_files(problem, image)
    task = folder / problem.id
    if task.exists():
        raise UsageError(f"{task} exists already; remove it, or choose another folder")
    try:
        (task / "environment").mkdir(parents=True)
        for path, text in files.items():
            place = task / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode())
            if text.startswith("#!"):
                place.chmod(0o755)
    except OSError as error:
        raise cannot_write("the task", task, error) from error
    return task


def _instruction(problem: Problem) -> str:
    """The task's text as agents with a shell of their own read it."""
    opening = tool_opening(problem, EpisodeConfig())
    return f"{opening.messages[-1]['content'].strip()}\n{_WHERE}"


def _graded(problem: Problem) -> str:
    """What both verifiers read: the problem without its solution, its seed, and the request for a supervisor."""
    services = read_services(problem)
    graded = {
        "problem": problem.model_copy(update={"golden": None, "reference_response": ""}).model_dump(mode="json"),
        "seed": default_seed(problem),
        "request": {
            "services": [service_request(service, problem) for service in services],
            "seconds": TIME_LIMIT,
            "settings": vars(Defences()),
            "lint": None,
        },
    }
    return json.dumps(graded, indent=1, sort_keys=True) + "\n"


def _dockerfile(problem: Problem, image: str) -> str:
    """The verifier's image, with what a Dockerfile of the row adds to the simulation image."""
    named = {service.dockerfile for service in read_services(problem)}
    texts = {problem.harness[name] if name and needs_build(problem.harness[name]) else "" for name in named}
    if len(texts) > 1:
        raise UsageError(f"{problem.id}: its services need different images, and a task has one for its tests")
    (text,) = texts
    lines = instructions(text)
    refused = sorted({word for word, _ in lines} & {"COPY", "ADD"})
    if refused or sum(word == "FROM" for word, _ in lines) > 1:
        what = refused[0] if refused else "several stages"
        raise UsageError(f"{problem.id}: its Dockerfile has {what}, which a task cannot take over")
    if wrong := [rest for word, rest in lines if word == "FROM" and rest not in SIM_IMAGES]:
        raise UsageError(f"{problem.id}: its Dockerfile builds on {wrong[0]}; expected {SIM_IMAGES[0]}")
    extra = "".join(f"{word} {rest}\n" for word, rest in lines if word != "FROM")
    return (_FILES / "Dockerfile").read_text(encoding="utf-8").replace("{image}", image).replace("{extra}", extra)
