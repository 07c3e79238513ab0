"""Whether a machine grades a design right that is known to be right, and one that is known to be wrong."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from ..problems import Problem, load_problems
from ..scoring.retrying import retrying
from .machine import Origin

PROBLEM = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
SECONDS = 120.0
ORIGIN = Origin("canaries")
"""As which they queue for a machine's processors: not behind all submissions that wait there."""


@functools.cache
def known() -> tuple[Problem, dict[str, str], dict[str, str]]:
    """A problem, a right design and a wrong one: files by path."""
    [problem] = load_problems("bundled", ids=[PROBLEM])
    right = dict(problem.golden or {})
    wrong = {path: text.replace("valid <= ", "valid <= ~") for path, text in right.items()}
    assert wrong != right
    return problem, right, wrong


async def canary(call: Callable[..., Awaitable[Any]]) -> str:
    """What a machine gets wrong; empty if nothing.

    `call` calls a method of the `Machine`. The designs get a comment that differs each time, so that no cached grading
    answers.

    Raises:
        SandboxError: The machine cannot grade, in every try.
    """
    problem, right, wrong = known()
    for expected, files in ((True, right), (False, wrong)):
        marked = {path: f"{text}\n// {secrets.token_hex(8)}\n" for path, text in files.items()}
        score = await retrying(functools.partial(call, "score", problem, marked, SECONDS, None, None, False, ORIGIN))
        if score.passed != expected:
            what = "fails a right design" if expected else "passes a wrong design"
            return f"it {what}: {score.reason}"
    return ""
