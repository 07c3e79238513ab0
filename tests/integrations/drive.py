"""Calls a function in the Python of a framework's environment: ``python -m tests.integrations.drive MODULE FUNCTION``.

Reads the arguments from stdin, and prints the result as the last line of stdout. Fails if containers are left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import pickle
import socket
import sys
from typing import Any

from rtl_agent_gym.sandboxes.client import OWNER_LABEL
from rtl_agent_gym.sandboxes.daemon import connect


def as_json(value: Any) -> Any:
    """What JSON cannot write by itself."""
    return dataclasses.asdict(value)


def containers() -> list[str | None]:
    """Containers of this process."""
    with contextlib.closing(connect()) as client:
        mine = f"{OWNER_LABEL}={socket.gethostname()}:{os.getpid()}"
        return [container.name for container in client.containers.list(all=True, filters={"label": mine})]


if __name__ == "__main__":
    arguments = pickle.load(sys.stdin.buffer)
    with contextlib.redirect_stdout(sys.stderr):
        result = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*arguments)
    assert not containers()
    print(json.dumps(result, default=as_json))
