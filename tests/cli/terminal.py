"""The command line on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pexpect

from tests.cli.in_process import ROOT

COMMAND = [sys.executable, "-c", "from rtl_agent_gym.cli import main; main()"]


@contextmanager
def terminal(*arguments: str, code: int = 0, columns: int = 120) -> Iterator[Any]:
    """``rtl-agent-gym ARGUMENTS`` for `pexpect`. After the block, it must end with this exit code."""
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], *arguments],
        cwd=str(ROOT),
        timeout=60,
        encoding="utf-8",
        dimensions=(40, columns),
    )
    try:
        yield child
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == code
    finally:
        child.close(force=True)
