"""A pytest plugin that reports the tests and their outcomes to the supervisor.

The supervisor's request names it in ``PYTEST_PLUGINS``. Apart from seeding `random`, it does not change the run. With
the seed, tests that draw random parameters draw the same ones each time, so that equal designs get equal scores.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import os
import random
from collections.abc import Iterable
from typing import Any

from .messages import MEASURES, TEXTS
from .witness import GRADED, send

LONGEST = 400
"""Maximum characters of a text property; a design may choose some of them."""
HARNESS = ("/src/", "/code/src/")
"""Folders of a harness's own Python files."""
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_unfinished: set[str] = set()
_late: set[str] = set()


def pytest_configure(config: Any) -> None:
    """Runs before collection."""
    if seed := os.environ.get(GRADED):
        random.seed(int(seed))


def pytest_collection_finish(session: Any) -> None:
    """Runs after collection."""
    send({"kind": "items", "items": [item.nodeid for item in session.items]})


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    """Runs after a phase of a test, before its report is made."""
    if call.excinfo is not None and call.excinfo.type is TimeoutError:
        _late.add(item.nodeid)
    if call.excinfo is not None and any(
        _would_repeat(str(entry.path), entry.lineno + 1) for entry in call.excinfo.traceback
    ):
        _unfinished.add(item.nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Runs after each phase of each test."""
    send(
        {
            "kind": "phase",
            "item": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "unfinished": report.nodeid in _unfinished,
            "late": report.nodeid in _late,
            "measures": _measures(report.user_properties),
        }
    )


def _measures(properties: Iterable[tuple[str, Any]]) -> dict[str, float | str]:
    """The properties in `MEASURES`. Those that should be numbers are omitted unless they are finite."""
    found: dict[str, float | str] = {}
    for name, value in properties:
        if name in TEXTS:
            found[name] = str(value)[:LONGEST]
        elif name in MEASURES:
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                number = value if isinstance(value, int) else float(value)
                if math.isfinite(number):
                    found[name] = number
    return found


def _would_repeat(path: str, line: int) -> bool:
    """Whether what failed in this line of a harness would have run again, in a loop or called by a later line.

    A test that runs its configurations one after another stops at the first failure; the number of remaining ones is
    unknown.
    """
    tree = _parsed(path) if path.startswith(HARNESS) else None
    if tree is None:
        return False
    around: list[Any] = [tree]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _holds(node, line):
            around.append(node)
    inner = max(around, key=lambda node: getattr(node, "lineno", 0))
    parts = list(ast.walk(inner))
    if any(isinstance(node, LOOPS) and _holds(node, line) for node in parts):
        return True
    calls = [node for node in parts if isinstance(node, ast.Call)]
    failed = {_name(node) for node in calls if _holds(node, line)} - {None}
    return any(node.lineno > line and _name(node) in failed for node in calls)


def _holds(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= node.end_lineno)


@functools.cache
def _parsed(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as stream:
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _name(call: ast.Call) -> str | None:
    return getattr(call.func, "attr", getattr(call.func, "id", None))
