"""A real daemon is killed while it grades: a second one, with folders and network of its own, so that no other dies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
from collections.abc import Iterator

import pytest

from rtl_agent_gym import retries
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from tests.second_daemon import SecondDaemon, second_daemon

from .conftest import GOLDEN, TARGET

pytestmark = [
    pytest.mark.docker,
    pytest.mark.daemon,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # The Docker SDK drops the sockets of a connection that breaks without closing them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[SecondDaemon]:
    with second_daemon() as made:
        yield made


@pytest.mark.parametrize("returns", [True, False])
async def test_a_daemon_that_is_killed_during_a_grading(
    daemon: SecondDaemon, adder: Problem, returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    if not returns:
        monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(longest=0.2))
    provider = DockerSandboxes()
    async with Scorer(provider) as scorer:
        assert (await scorer.score(adder, {TARGET: GOLDEN})).retries == 0
        grading = asyncio.ensure_future(scorer.score(adder, {TARGET: GOLDEN}))
        while not provider._sandboxes:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        daemon.kill()
        assert not grading.done()
        if returns:
            await asyncio.to_thread(daemon.start)
            score = await grading
            assert score.passed
            assert score.retries >= 1
        else:
            with pytest.raises(SandboxError) as caught:
                await grading
            assert caught.value.retries == retries.GRADING.attempts - 1
            await asyncio.to_thread(daemon.start)
    with contextlib.suppress(SandboxError):
        await provider.close()
    gc.collect()
    names = subprocess.run(
        ["docker", "-H", daemon.host, "ps", "-q"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not names, "what the killed daemon ran has outlived it"
