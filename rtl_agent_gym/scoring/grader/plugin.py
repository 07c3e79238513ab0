"""A pytest plugin: which tests there are and how each ended, told to the supervisor of the grading.

The supervisor names it in ``PYTEST_PLUGINS``. It changes nothing about the run but the seed of `random`: tests that
draw their parameters draw the same ones each time, so that equal designs get equal scores.
"""

import ast
import functools
import os
import random

from rtl_gym_witness import tell

HARNESS = ("/src/", "/code/src/")
"""Where a harness has its own Python files."""
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_unfinished = set()


def pytest_configure(config):
    """Before anything is collected."""
    seed = os.environ.get("RTL_GYM_SEED")
    if seed:
        random.seed(int(seed))


def pytest_collection_finish(session):
    """After everything has been collected."""
    tell(source="pytest", items=[item.nodeid for item in session.items])


def pytest_runtest_makereport(item, call):
    """When a phase of a test has ended, before its report is made."""
    if call.excinfo is not None and any(
        _goes_on(str(entry.path), entry.lineno + 1) for entry in call.excinfo.traceback
    ):
        _unfinished.add(item.nodeid)


def pytest_runtest_logreport(report):
    """After each phase (setup, call, teardown) of each test."""
    more = {"unfinished": True} if report.nodeid in _unfinished else {}
    tell(source="pytest", item=report.nodeid, when=report.when, outcome=report.outcome, **more)


def _goes_on(path, line):
    """Whether what failed in this line of a harness would have been done again: in a loop, or by a later line.

    A test that runs its configurations one after the other stops at the first that fails, and how many there would have
    been is not known.
    """
    tree = _parsed(path) if path.startswith(HARNESS) else None
    if tree is None:
        return False
    routines = [
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module))
    ]
    around = [node for node in routines if isinstance(node, ast.Module) or node.lineno <= line <= node.end_lineno]
    inner = max(around, key=lambda node: getattr(node, "lineno", 0))
    parts = list(ast.walk(inner))
    if any(isinstance(node, LOOPS) and node.lineno <= line <= node.end_lineno for node in parts):
        return True
    found = [node for node in parts if isinstance(node, ast.Call)]
    failed = {_name(node) for node in found if node.lineno <= line <= node.end_lineno} - {None}
    return any(node.lineno > line and _name(node) in failed for node in found)


@functools.cache
def _parsed(path):
    try:
        with open(path, "rb") as stream:
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _name(call):
    """The last part of the name of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", None))
