"""Verdicts wait until their machine has correctly graded a canary that began after them.

A canary is a pair of designs, one known to be correct and one known to be wrong. A machine that grades incorrectly
looks like any other until it is checked, and a verdict cannot be withdrawn once an optimizer step has used it. So no
verdict leaves the cluster before its machine's next canary. If the canary fails, everything that the machine has graded
since its last correct canary is graded again elsewhere.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import SandboxError, SandboxLost
from ..problems import Problem, load_problems
from ..retries import retrying
from .machine import Origin
from .node_client import NodeClient

PROBLEM = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
CANARY_TIMEOUT = 120.0
"""Time limit of a canary's grading, in seconds."""
ORIGIN = Origin("canaries")
"""A separate queue for a machine's CPUs, so that canaries do not wait for all submissions queued there."""
POLL_SECONDS = 0.05

logger = logging.getLogger(__name__)


@functools.cache
def known() -> tuple[Problem, dict[str, str], dict[str, str]]:
    """A problem, a correct design and a wrong design; designs are files by path."""
    [problem] = load_problems("bundled", ids=[PROBLEM])
    right = dict(problem.golden or {})
    wrong = {path: text.replace("valid <= ", "valid <= ~") for path, text in right.items()}
    assert wrong != right
    return problem, right, wrong


async def canary(call: Callable[..., Awaitable[Any]]) -> str:
    """Grade both designs; return what the machine gets wrong, empty if nothing.

    `call` calls a method of the `Machine`. The designs get a comment that differs each time, so that no cached grading
    is used. Raises `SandboxError` if the grading fails in every attempt.
    """
    problem, right, wrong = known()
    for expected, files in ((True, right), (False, wrong)):
        marked = {path: f"{text}\n// {secrets.token_hex(8)}\n" for path, text in files.items()}
        given = (problem, marked, CANARY_TIMEOUT, None, None, False, ORIGIN)
        score = await retrying(functools.partial(call, "score", *given))
        if score.passed != expected:
            what = "fails a right design" if expected else "passes a wrong design"
            return f"it {what}: {score.reason}"
    return ""


class Confirmations:
    """The verdicts of one machine that wait for its next canary.

    They wait at most `seconds` for others, so that one canary confirms many. The canary is graded immediately if the
    machine grades nothing else.
    """

    def __init__(self, machine: NodeClient, seconds: float) -> None:
        self._machine, self._seconds = machine, seconds
        self._waiting: list[asyncio.Future[None]] = []
        self._checking: asyncio.Task[None] | None = None

    async def confirm(self) -> None:
        """Return when a canary that began after this call has been graded correctly.

        Raises `SandboxLost` if it was graded incorrectly, or not at all: the verdict must then not be used.
        """
        if self._machine.lost:
            raise self._refusal()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self._check())
        await future

    async def _check(self) -> None:
        verdicts: list[asyncio.Future[None]] = []
        try:
            while self._waiting:
                end = time.monotonic() + self._seconds
                while self._machine.grading and time.monotonic() < end:  # more verdicts may come
                    await asyncio.sleep(POLL_SECONDS)
                verdicts, self._waiting = self._waiting, []
                if why := await self._canary():
                    verdicts, self._waiting = verdicts + self._waiting, []
                    self._distrust(why, len(verdicts))
                for future in verdicts:
                    if why and not future.done():  # otherwise its caller was cancelled
                        future.set_exception(self._refusal())
                    elif not future.done():
                        future.set_result(None)
        finally:  # closed, or a bug here: nothing is confirmed
            for future in verdicts + self._waiting:
                if not future.done():
                    future.set_exception(self._refusal("its canaries have been stopped"))

    async def _canary(self) -> str:
        """What the machine gets wrong, or why it cannot grade; empty if it grades correctly."""
        machine, why = self._machine, ""
        try:
            await machine.call("seal")
            why = await canary(machine.call)
            machine.wrong = bool(why)
            await machine.call("drop" if why else "keep")
        except SandboxError as error:
            return why or str(error)
        return why

    def _refusal(self, why: str = "") -> SandboxLost:
        machine = self._machine
        return SandboxLost(f"a verdict of machine {machine.name} cannot be confirmed: {machine.lost or why}")

    def _distrust(self, why: str, verdicts: int) -> None:
        machine = self._machine
        machine.lost = machine.lost or (f"quarantined: {why}" if machine.wrong else f"its canary failed: {why}")
        logger.warning(
            "machine %s gets no more work: %s; its %d verdicts since the last correct canary have not been used, and "
            "are graded again on other machines",
            machine.name, machine.lost, verdicts,
        )  # fmt: skip

    async def close(self) -> None:
        """Stop grading canaries. Verdicts that are still waiting are never released."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
