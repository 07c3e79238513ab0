"""The command line, called in this process: a process of its own takes a second only to import what it needs."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from pathlib import Path
from unittest import mock

from rtl_agent_gym.cli import main

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``rtl-agent-gym ARGUMENTS`` here, with these variables set: what it prints, and how it would exit.

    For what a process alone can show (signals, terminals, closed streams), start one.
    """
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        contextlib.chdir(ROOT),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main([*arguments])
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(["rtl-agent-gym", *arguments], code, out.getvalue(), err.getvalue())
