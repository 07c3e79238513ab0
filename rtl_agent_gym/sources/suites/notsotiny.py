"""NotSoTiny in CVDP's format: a JSON Lines file of rows whose harnesses compare designs in Yosys."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from ...errors import ProblemError, UsageError
from ...problems.compose import COMPOSE_FILE
from ...problems.model import Problem
from ...problems.paths import expand_home
from ...problems.registry import Located
from ...problems.rows import Place, problem_from_row, read_rows
from .common import harness_file, ports

PREFIX = "notsotiny:"
"""The prefix of such a source."""

_ABSENT = ("eqy", "sby", "openlane", "librelane", "openroad", "sv2v", "vcs", "xrun", "verific")
"""Programs that such a harness may call, but that the simulation image does not have."""
_CALL = re.compile(
    rf"""["'](?P<quoted>{"|".join(_ABSENT)})["']|(?:^|[;&|]|command\s*:)\s*(?P<plain>{"|".join(_ABSENT)})\s+[\w./-]""",
    re.MULTILINE,
)
_PROGRAMS = {"bash", "make", "pytest", "python", "python3", "sh", "yosys"}
"""Programs that may run after the check of a design's text. Since the check starts them, a missing program would look
like a failing design."""
_TURTLE = re.compile(r"^\s*(?:from|import)\s+turtle\b", re.MULTILINE)
_CHECK, _LINES, _PORTS = "src/design_text.py", "src/own_lines.json", "src/own_ports.json"
_FILES = "src/own_files.json"
_MARKS = re.compile(r'[$`"]|\b(?:assume|assert|cover|restrict|bind|blackbox|whitebox|lib_whitebox)\b')


def read_source(source: str) -> Iterator[Located]:
    """The problems of ``notsotiny:FILE``, in the file's order.

    Rows whose harness calls a program that the simulation image lacks are marked as unscorable, with the reason.

    Raises:
        UsageError: There is no such file, or it contains no row.
    """
    name = source.removeprefix(PREFIX)
    path = expand_home(name)
    if not name or not os.path.isfile(path):  # unlike `Path.is_file`, also False for names that are too long
        raise UsageError(f"{source!r}: there is no file {name!r}; give {PREFIX}FILE, a JSON Lines file of CVDP's rows")
    empty = True
    for place, row in read_rows(path, str(path)):
        empty = False
        yield row if isinstance(row, ProblemError) else _read(row, place), place
    if empty:
        raise UsageError(f"{source!r}: the file {path} contains no row; expected a JSON object on each line")


def _read(row: dict[str, Any], place: Place) -> Problem | ProblemError:
    try:
        problem = problem_from_row(row, place)
    except ProblemError as error:
        return error
    if problem.unscorable is not None:
        return problem
    texts = "\n".join(text for path, text in problem.harness.items() if not path.endswith((".v", ".sv", ".vh", ".svh")))
    if reason := _missing(texts):
        return problem.model_copy(update={"unscorable": reason})
    try:
        return _guarded(problem) if re.search(r"\byosys\b", texts) else problem
    except ProblemError as error:
        return place.error(error.message, field=error.field, problem_id=problem.id)


def _missing(texts: str) -> str | None:
    if match := _CALL.search(texts):
        return f"its harness calls {match['quoted'] or match['plain']}, which the simulation image does not have"
    if _TURTLE.search(texts):
        return "its harness imports the package turtle (TuRTLe), which the simulation image does not have"
    return None


def _guarded(problem: Problem) -> Problem:
    """The problem with a check of the design's text before each service; see ``harness/design_text.py``.

    Raises:
        ProblemError: A shell could not read a service's command.
    """
    document = yaml.safe_load(problem.harness[COMPOSE_FILE])
    for name, service in document["services"].items():
        try:
            words = [*_words(service.pop("entrypoint", None)), *_words(service.get("command"))]
        except ValueError as error:
            message = f"the command of service {name!r} cannot be read: {error}"
            raise ProblemError(message, field=f"harness.{COMPOSE_FILE}") from error
        program = words[0] if words else "the command of its image"
        if program.rpartition("/")[2] not in _PROGRAMS:
            reason = f"its harness starts {program!r}, and only these are known here: {', '.join(sorted(_PROGRAMS))}"
            return problem.model_copy(update={"unscorable": reason})
        service["command"] = ["python3", f"/{_CHECK}", *words]
    own = {**problem.context, **{f"golden/{path}": text for path, text in (problem.golden or {}).items()}}
    found = (line.strip() for text in own.values() for line in text.splitlines() if _MARKS.search(line))
    lines = {line for line in found if "/*" not in line and "*/" not in line}
    digests = {f"/code/{path}": hashlib.sha256(text.encode()).hexdigest() for path, text in problem.context.items()}
    golden = "\n".join(text for path, text in (problem.golden or {}).items() if path.endswith((".v", ".sv")))
    task = problem.prompt + "\n".join(problem.context.values())
    heads = {
        name: found
        for name, found in ports(golden).items()
        if re.search(rf"\bmodule\s+{re.escape(name)}\b", task) and all(port.width for port in found)
    }
    harness = {
        **problem.harness,
        COMPOSE_FILE: yaml.safe_dump(document, sort_keys=False),
        _CHECK: harness_file("design_text.py"),
        _LINES: json.dumps(sorted(lines), indent=1) + "\n",
        _PORTS: json.dumps(heads, indent=1) + "\n",
        _FILES: json.dumps(digests, indent=1) + "\n",
    }
    return problem.model_copy(update={"harness": harness})


def _words(value: object) -> list[str]:
    if value is None:
        return []
    return [str(word) for word in value] if isinstance(value, list) else shlex.split(str(value))
