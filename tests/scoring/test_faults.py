"""The machine fails while something is graded: tried again, then an error with the number of retries, never a score."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tempfile
from collections.abc import AsyncIterator
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

from .conftest import GOLDEN, TARGET

pytestmark = [
    pytest.mark.docker,
    # The Docker SDK drops the sockets of a connection that breaks without closing them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "GRADING", retries.GRADING._replace(longest=0.2))


class Switch:
    """The daemon behind a socket that can be cut: for its clients, a daemon that is killed and may come back."""

    def __init__(self, path: Path, real: str) -> None:
        self.path, self.real = path, real
        self.server: asyncio.Server | None = None
        self.open: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def on(self) -> None:
        self.server = await asyncio.start_unix_server(self.serve, self.path)

    async def off(self) -> None:
        if self.server is not None:
            self.server.close()
        for writer in list(self.open):
            writer.transport.abort()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)
        self.server = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self.real)
        pair = {writer, far_writer}
        self.open |= pair
        tasks = [asyncio.ensure_future(pump(reader, far_writer)), asyncio.ensure_future(pump(far_reader, writer))]
        self.tasks |= set(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        self.open -= pair
        self.tasks -= set(tasks)
        for end in pair:
            end.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@pytest.fixture
async def switch(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Switch]:
    with tempfile.TemporaryDirectory(prefix="rtl-gym-", dir="/tmp") as folder:
        made = Switch(Path(folder, "d.sock"), daemon_host().removeprefix("unix://"))
        await made.on()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{made.path}")
        yield made
        await made.off()
    gc.collect()  # here, where its complaints are expected


@pytest.mark.daemon
@pytest.mark.parametrize("returns", [True, False])
async def test_a_daemon_that_goes_away_during_a_grading(switch: Switch, adder: Problem, returns: bool) -> None:
    provider = DockerSandboxes()
    async with Scorer(provider) as scorer:
        assert (await scorer.score(adder, {TARGET: GOLDEN})).retries == 0
        grading = asyncio.ensure_future(scorer.score(adder, {TARGET: GOLDEN}))
        while not provider._sandboxes:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await switch.off()
        if returns:
            await switch.on()
            score = await grading
            assert score.passed
            assert score.retries >= 1
        else:
            with pytest.raises(SandboxError) as caught:
                await grading
            assert caught.value.retries == retries.GRADING.attempts - 1
    if not returns:
        await switch.on()
    await provider.close()


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
