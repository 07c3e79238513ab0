"""Problems as task folders of Harbor: the text, the settings (``task.toml``, schema 1.4), and the grading program.

The program consists of this package's own modules and needs only the standard library. The grader, the rules that sort
files, and those that decide verdict and blame from a report are copied unchanged. If they import a class or a constant
from a module that needs an installed package, a substitute replaces that module.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from ...episodes.prompt import tool_opening
from ...episodes.rules import EpisodeConfig
from ...errors import UsageError, writing
from ...problems import Problem, category_name
from ...problems.compose import COMPOSE_FILE, SIM_IMAGES, instructions
from ...sandboxes import WORK_DIR, SandboxSpec
from ...scoring import TIME_LIMIT
from ...scoring.compose import needs_build, read_services
from ...scoring.harness import Defences, default_seed, service_request, settings_of
from ...scoring.trials import PROGRAM
from . import collect
from .grade import PATIENCE

ORGANIZATION = "rtl-agent-gym"
"""The first part of every task's name."""
AGENT_SECONDS = 3600.0
"""Time limit of the agent; Harbor's ``--agent-timeout-multiplier`` changes it."""
_VERIFIER_SPARE = 120.0
"""Seconds that the verifier gets in addition to the supervisor's."""
_READY = f"mkdir -p /code/rtl /code/verif /code/docs /code/rundir && chown -R {collect.AGENT}:{collect.AGENT} /code"
_FILES = Path(__file__).with_name("files")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_WHERE = """
# Where you work

Everything is below /code, where commands start. What counts is what the files below /code/rtl, /code/verif and
/code/docs hold when you finish; /code/rundir is scratch space. There are `iverilog` and `vvp` (Icarus Verilog),
`verilator`, `yosys`, and Python with cocotb in /venv/bin. Hidden tests check the files afterwards.
"""
_SOLVE = "#!/bin/sh\n# The reference solution.\nset -eu\ncp -r /solution/files/. /code/\n"

PACKAGE = "rtl_agent_gym"
_ROOT = Path(__file__).resolve().parents[2]

COPIED = (
    "errors.py",
    "problems/paths.py",
    "scoring/blame.py",
    "scoring/outcomes.py",
    "scoring/submission.py",
    "scoring/used_by_tests.py",
    "integrations/harbor/collect.py",
    "integrations/harbor/grade.py",
)
"""Modules that are copied unchanged, in addition to the grader's."""

_PROBLEM = '''\
"""The fields of a problem that grading reads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    id: str
    context: dict
    targets: tuple
    harness: dict
    agentic: bool
    checkout: str = ""  # heavy rows are not exported
'''
_OUTCOME = '''\
"""One test and how it ended."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TestOutcome:
    name: str
    outcome: str
'''


_SUBSTITUTES = {
    "problems/compose.py": f"COMPOSE_FILE = {COMPOSE_FILE!r}\n",
    "problems/model.py": _PROBLEM,
    "sandboxes/__init__.py": f"WORK_DIR = {WORK_DIR!r}\n",
    "scoring/score.py": _OUTCOME,
}


def task_files(problem: Problem, image: str) -> dict[str, str]:
    """The files of a problem's task, by path relative to the task's folder. Equal for equal arguments.

    Args:
        problem: The problem, with its hidden tests, which are written only to ``tests/``.
        image: The simulation image, as the daemon or a registry names it.

    Raises:
        UsageError: The problem cannot be a task; the message says why.
    """
    if not _NAME.fullmatch(problem.id) or ".." in problem.id:
        raise UsageError(f"the id {problem.id!r} cannot be a task's name; expected letters, digits, '-', '_' and '.'")
    if PROGRAM in problem.harness:
        raise UsageError(
            f"{problem.id}: the submitted bench runs before the hidden tests, which a Harbor task's verifier cannot do"
        )
    opening = tool_opening(problem, EpisodeConfig())
    files = {
        "task.toml": task_toml(problem, image),
        "instruction.md": f"{opening.messages[-1]['content'].strip()}\n{_WHERE}",  # for agents with their own shell
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
        UsageError: The problem cannot be a task, or its folder exists already.
        SandboxError: The disk is full.
    """
    files = task_files(problem, image)
    task = folder / problem.id
    if task.exists():
        raise UsageError(f"{task} exists already; remove it, or choose another folder")
    with writing("the task", task):
        (task / "environment").mkdir(parents=True)
        for path, text in files.items():
            place = task / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode())
            if text.startswith("#!"):
                place.chmod(0o755)
    return task


def _graded(problem: Problem) -> str:
    """What both verifiers read: the problem without its solution, its seed, and the request for a supervisor."""
    services = read_services(problem)
    graded = {
        "problem": problem.model_copy(update={"golden": None, "reference_response": ""}).model_dump(mode="json"),
        "seed": default_seed(problem),
        "request": {
            "services": [service_request(service, problem, number=number) for number, service in enumerate(services)],
            "seconds": TIME_LIMIT,
            "settings": settings_of(problem, Defences()),
            "lint": None,
        },
    }
    return json.dumps(graded, indent=1, sort_keys=True) + "\n"


def _dockerfile(problem: Problem, image: str) -> str:
    """The verifier's Dockerfile, with what the row's own Dockerfile adds to the simulation image."""
    named = {service.dockerfile for service in read_services(problem)}
    texts = {problem.harness[name] if name and needs_build(problem.harness[name]) else "" for name in named}
    if len(texts) > 1:
        raise UsageError(f"{problem.id}: its services need different images, but a Harbor task has one for its tests")
    (text,) = texts
    lines = instructions(text)
    refused = sorted({word for word, _ in lines} & {"COPY", "ADD"})
    if refused or sum(word == "FROM" for word, _ in lines) > 1:
        what = refused[0] if refused else "several stages"
        raise UsageError(f"{problem.id}: its Dockerfile has {what}, which a Harbor task does not support")
    if wrong := [rest for word, rest in lines if word == "FROM" and rest not in SIM_IMAGES]:
        raise UsageError(f"{problem.id}: its Dockerfile builds on {wrong[0]}; expected {SIM_IMAGES[0]}")
    extra = "".join(f"{word} {rest}\n" for word, rest in lines if word != "FROM")
    return (_FILES / "Dockerfile").read_text(encoding="utf-8").replace("{image}", image).replace("{extra}", extra)


def task_toml(problem: Problem, image: str) -> str:
    """The text of ``task.toml``.

    Args:
        problem: The problem; its id becomes the second part of the task's name.
        image: The simulation image, as the daemon or a registry names it.
    """
    limits: dict[str, Any] = {"cpus": int(SandboxSpec.cpus), "memory_mb": SandboxSpec.memory >> 20}
    tables: list[tuple[str, dict[str, Any]]] = [
        ("", {"schema_version": "1.4", "artifacts": [collect.TARGET]}),
        ("[task]", {"name": f"{ORGANIZATION}/{problem.id}", "keywords": ["RTL", "SystemVerilog", "CVDP"]}),
        (
            "[metadata]",
            {
                "problem_id": problem.id,
                "problem_digest": problem.digest,
                "category": category_name(problem.category),
                "difficulty": problem.difficulty,
            },
        ),
        ("[environment]", {"docker_image": image, "workdir": "/code", **limits}),
        ("[environment.healthcheck]", {"command": _READY}),
        ("[agent]", {"timeout_sec": AGENT_SECONDS, "user": collect.AGENT}),
        (
            "[verifier]",
            {
                "timeout_sec": PATIENCE * TIME_LIMIT * len(read_services(problem)) + _VERIFIER_SPARE,
                "environment_mode": "separate",
                "user": "root",
            },
        ),
        ("[verifier.environment]", limits),
    ]
    text = "\n".join(_table(head, values) for head, values in tables)
    hook = _collect(problem)
    return f"{text}\n[[verifier.collect]]\nuser = \"root\"\ntimeout_sec = 120.0\ncommand = '''\n{hook}'''\n"


def _collect(problem: Problem) -> str:
    """The collect hook: the program as a here-document, with the paths of the problem's own files."""
    program = Path(collect.__file__).read_text(encoding="utf-8")
    first = shlex.quote(json.dumps(list(dict.fromkeys([*problem.targets, *problem.context]))))
    command = f"/usr/bin/python3 -IB - {first} <<'END_OF_PROGRAM'\n{program}END_OF_PROGRAM\n"
    if "'''" in command:
        raise UsageError("the collect program cannot be a literal of TOML")
    return command


def _table(head: str, values: dict[str, Any]) -> str:
    # JSON values of these types are valid in TOML, too, except for the character DEL.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join([*([head] if head else []), *lines, ""]).replace("\x7f", "\\u007f")


def program_files() -> dict[str, str]:
    """The modules of the program, by path relative to the folder that Python imports them from."""
    copied = [*COPIED, *(f"scoring/grader/{path.name}" for path in sorted(_ROOT.glob("scoring/grader/*.py")))]
    files = {path: (_ROOT / path).read_text(encoding="utf-8") for path in copied} | _SUBSTITUTES
    for path in list(files):
        for folder in Path(path).parents:
            files.setdefault((folder / "__init__.py").as_posix(), "")
    return {f"{PACKAGE}/{path}": text for path, text in sorted(files.items())}
