"""The machine fails while something is graded: tried again, then an error with the number of retries, never a score."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rtl_agent_gym import retries
from rtl_agent_gym.errors import DaemonError, ImageError, SandboxError, UsageError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox, SandboxSpec
from rtl_agent_gym.sandboxes.daemon import daemon_host
from rtl_agent_gym.scoring import Score, Scorer
from rtl_agent_gym.scoring.compose import HarnessImages
from tests.sandboxes.providers import ProviderAround, kill
from tests.second_daemon import SecondDaemon, second_daemon
from tests.switch import Switch

from .conftest import GOLDEN, TARGET

GRADING = retries.GRADING
"""With the waits that users have."""

pytestmark = [
    pytest.mark.docker,
    # The Docker SDK drops the sockets of a connection that breaks without closing them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(attempts=3, longest=0.2))


@pytest.fixture
async def switch(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Switch]:
    with tempfile.TemporaryDirectory(prefix="rtl-gym-", dir="/tmp") as folder:
        async with Switch(Path(folder, "d.sock"), Path(daemon_host().removeprefix("unix://"))) as made:
            monkeypatch.setenv("DOCKER_HOST", f"unix://{made.near}")
            yield made
    gc.collect()  # here, where its complaints are expected


async def grade_while_it_is_gone(
    provider: DockerSandboxes,
    adder: Problem,
    leave: Callable[[], Awaitable[None]],
    come_back: Callable[[], Awaitable[None]],
    returns: bool,
) -> None:
    """Let Docker's daemon leave during a grading. If it returns at once, the grading is repeated; else it fails."""
    async with Scorer(provider) as scorer:
        assert (await scorer.score(adder, {TARGET: GOLDEN})).retries == 0
        grading = asyncio.ensure_future(scorer.score(adder, {TARGET: GOLDEN}))
        while not provider._sandboxes:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not grading.done()
        await leave()
        if returns:
            await come_back()
            score = await grading
            assert score.passed
            assert score.retries >= 1
        else:
            with pytest.raises(SandboxError) as caught:
                await grading
            assert caught.value.retries == retries.GRADING.attempts - 1
            await come_back()


@pytest.mark.daemon
@pytest.mark.parametrize("returns", [True, False])
async def test_a_daemon_that_goes_away_during_a_grading(switch: Switch, adder: Problem, returns: bool) -> None:
    provider = DockerSandboxes()
    await grade_while_it_is_gone(provider, adder, switch.off, switch.on, returns)
    await provider.close()


@pytest.fixture(scope="module")
def daemon() -> Iterator[SecondDaemon]:
    """A second one, with folders and network of its own, so that no other dies."""
    with second_daemon() as made:
        yield made


@pytest.mark.daemon
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("returns", [True, False])
async def test_a_daemon_that_is_killed_during_a_grading(
    daemon: SecondDaemon, adder: Problem, returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    if returns:  # it takes seconds to start
        monkeypatch.setattr(retries, "GRADING", GRADING)

    async def kill_it() -> None:
        daemon.kill()

    provider = DockerSandboxes()
    await grade_while_it_is_gone(provider, adder, kill_it, lambda: asyncio.to_thread(daemon.start), returns)
    with contextlib.suppress(SandboxError):
        await provider.close()
    gc.collect()
    listed = ["docker", "-H", daemon.host, "ps", "-q"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert not names, "what the killed daemon ran has outlived it"


async def test_no_daemon_at_all(adder: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTL_GYM_SANDBOX", "docker")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    async with Scorer() as scorer:
        with pytest.raises(DaemonError) as caught:
            await scorer.score(adder, {TARGET: GOLDEN})
    assert caught.value.retries == retries.GRADING.attempts - 1


async def test_an_image_that_is_gone(provider: DockerSandboxes, adder: Problem) -> None:
    async with Scorer(provider) as scorer:
        scorer._images = HarnessImages("sha256:" + "0" * 64)
        with pytest.raises(ImageError) as caught:
            await scorer.score(adder, {TARGET: GOLDEN})
    assert caught.value.retries == retries.GRADING.attempts - 1


async def test_a_full_disk(provider: DockerSandboxes, adder: Problem) -> None:
    class Full(ProviderAround):
        """The provider, with a work folder that the files do not fit in."""

        async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
            assert spec is not None
            return await provider.create(replace(spec, disk=4096))

    async with Scorer(Full(provider)) as scorer:
        with pytest.raises(SandboxError, match="space") as caught:
            await scorer.score(adder, {TARGET: GOLDEN, "rtl/more.sv": "// x\n" * 5000})
    assert caught.value.retries == retries.GRADING.attempts - 1


async def test_a_sandbox_in_waiting_that_was_killed_is_not_used(provider: DockerSandboxes, adder: Problem) -> None:
    async with Scorer(provider, waiting=1) as scorer:
        assert (await scorer.score(adder, {TARGET: GOLDEN})).passed
        pool = scorer._pool
        assert pool is not None
        while not (waiting := [box.result() for shelf in pool._shelves for box in shelf.waiting if box.done()]):
            await asyncio.sleep(0.1)
        kill(waiting[0])
        score = await scorer.score(adder, {TARGET: GOLDEN})
        assert score.passed
        assert score.retries == 0
    assert not provider._sandboxes


async def test_a_closed_scorer_says_so_and_starts_nothing(adder: Problem) -> None:
    scorer = Scorer(waiting=2)
    assert (await scorer.score(adder, {TARGET: GOLDEN})).passed
    grading = asyncio.ensure_future(scorer.score(adder, {TARGET: GOLDEN.replace("sum <=", "sum  <=")}))
    await asyncio.sleep(0.4)
    await scorer.close()
    (found,) = await asyncio.gather(grading, return_exceptions=True)
    assert isinstance(found, Score | SandboxError | UsageError), found
    assert scorer._provider is None
    with pytest.raises(UsageError, match="closed"):
        await scorer.score(adder, {TARGET: GOLDEN})
