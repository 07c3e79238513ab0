"""Observations of everyday commands hold what a script of them writes, and nothing of the shell's own."""

from __future__ import annotations

import re

import pytest

from rtl_agent_gym.sandboxes import Sandbox
from tests.sandboxes.one_liners import ONE_LINERS
from tests.sandboxes.providers import on_both_providers

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_both_providers(metafunc, test_the_observation_is_what_a_script_writes)


LINE = re.compile(r"^bash: line \d+: (?! *\d+ [A-Z])", re.MULTILINE)
"""Where a script's errors say which line they are of; an interactive shell's do not."""
ENDED = re.compile(r"^(?:bash: line \d+: +\d+ )?(?:Aborted|Killed|Segmentation fault|Terminated)\b.*\n", re.MULTILINE)
"""A script's message about a child that a signal ended, with its process id. The shell leaves it to the exit code."""


async def test_the_observation_is_what_a_script_writes(shared_sandbox: Sandbox) -> None:
    observed = dict[tuple[str, ...], tuple[str, int | None]]()
    expected = dict[tuple[str, ...], tuple[str, int | None]]()
    for turns in ONE_LINERS:
        script = await shared_sandbox.exec(["bash", "-c", "\n".join(turns)], timeout=60)
        await shared_sandbox.exec(["sh", "-c", "rm -rf /tmp/* /code/*"])
        results = [await shared_sandbox.run(turn, timeout=60) for turn in turns]
        await shared_sandbox.exec(["sh", "-c", "rm -rf /tmp/* /code/*"])
        await shared_sandbox.run("cd /code; trap - EXIT; exec true")  # a new shell for the next
        observed[turns] = "".join(result.output for result in results), results[-1].exit_code
        expected[turns] = LINE.sub("bash: ", ENDED.sub("", script.output)), script.exit_code
    assert observed == expected
