"""The file ``task.toml`` of Harbor's schema 1.4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...problems import Problem, category_name
from ...sandboxes import SandboxSpec
from ...scoring import TIME_LIMIT
from ...scoring.compose import read_services
from .inside import collect
from .inside.grade import PATIENCE

ORGANIZATION = "rtl-agent-gym"
"""The first part of every task's name."""
AGENT_SECONDS = 3600.0
"""Time limit of the agent; Harbor's ``--agent-timeout-multiplier`` changes it."""
_VERIFIER_SPARE = 120.0
"""Seconds of the verifier beyond what the supervisor may take."""
_READY = f"mkdir -p /code/rtl /code/verif /code/docs /code/rundir && chown -R {collect.AGENT}:{collect.AGENT} /code"


def task_toml(problem: Problem, image: str) -> str:
    """The text of the file.

    Args:
        problem: The problem; its id becomes the second part of the task's name.
        image: The simulation image, as the daemon or the registry names it.
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
    return f"{text}\n[[verifier.collect]]\nuser = \"root\"\ntimeout_sec = 120.0\ncommand = '''\n{_collect()}'''\n"


def _collect() -> str:
    """The collect hook: the program as a here-document."""
    program = Path(collect.__file__).read_text(encoding="utf-8")
    command = f"/usr/bin/python3 -IB - <<'END_OF_PROGRAM'\n{program}END_OF_PROGRAM\n"
    if "'''" in command:
        raise UsageError("the collect program cannot be a literal of TOML")
    return command


def _table(head: str, values: dict[str, Any]) -> str:
    # A JSON value of these kinds is one of TOML, too, but for DEL.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join([*([head] if head else []), *lines, ""]).replace("\x7f", "\\u007f")
