"""Calls a function in the Python of a framework's environment: ``python -m tests.integrations.drive MODULE FUNCTION``.
The function ``play_all`` calls ``play`` for each of a list of arguments.

Reads the arguments from stdin, and prints the result as the last line of stdout. Fails if sandboxes are left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import pickle
import sys
from typing import Any

from tests.sandboxes.providers import owned


def as_json(value: Any) -> Any:
    """What JSON cannot write by itself."""
    return dataclasses.asdict(value)


if __name__ == "__main__":
    arguments = pickle.load(sys.stdin.buffer)
    with contextlib.redirect_stdout(sys.stderr):
        module = importlib.import_module(sys.argv[1])
        if sys.argv[2] == "play_all":
            result = [module.play(*job) for job in arguments[0]]
        else:
            result = getattr(module, sys.argv[2])(*arguments)
    assert not owned(every=True)
    print(json.dumps(result, default=as_json))
