"""The network to the model's endpoint is lost for two minutes: the requests wait, and every episode gets its result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rtl_agent_gym import EpisodeConfig, evaluate
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.evaluation import EvaluationConfig, Observer
from rtl_agent_gym.policies import ModelOptions
from tests.policies.stub_server import ChatServer, call

from .moments import Moment

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1500)]
AWAY = 120.0


class Gate:
    """A port that leads to another, until it is closed: then connections break, and new ones are refused."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, 0
        self.server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        for writer in list(self.writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        pair = {writer, far_writer}
        self.writers |= pair
        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        finally:
            self.writers -= pair
            for end in pair:
                end.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@contextlib.asynccontextmanager
async def gate(server: ChatServer) -> AsyncIterator[Gate]:
    made = Gate(int(server.url.split(":")[2].split("/")[0]))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def test_an_endpoint_that_is_away_for_two_minutes_costs_no_episode(tmp_path: Path, moment: Moment) -> None:
    after, pause = moment.number(1, 6), moment.within(0, 2)
    faults: list[SandboxError] = []
    done, enough = 0, asyncio.Event()

    def finished(_: object) -> None:
        nonlocal done
        done += 1
        if done >= after:
            enough.set()

    observer = Observer(faulted=lambda problem, sample, error: faults.append(error), finished=finished)
    script = [call("ls"), call("sleep 1"), call("pwd"), {"content": "Done."}]
    with ChatServer(script) as server:
        async with gate(server) as way:
            config = EvaluationConfig(
                ids=("cvdp_agentic_rtlgym_fixed_priority_arbiter_0001",),
                samples=20,
                concurrency=4,
                policy="chat:org/model",
                model=ModelOptions(base_url=f"http://127.0.0.1:{way.port}/v1"),
                reward="proxy",
                episode=EpisodeConfig(command_timeout=10.0),
                folder=tmp_path,
                cache=False,
            )
            playing = asyncio.ensure_future(evaluate(config, observer=observer))
            try:
                await asyncio.wait_for(enough.wait(), 600)
                await asyncio.sleep(pause)
                await way.close()
                before = len(server.requests)
                await asyncio.sleep(AWAY)
                assert len(server.requests) == before
                await way.open()
                evaluation = await playing
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
    print(f"{len(faults)} attempts at an episode were lost")
    assert (evaluation.summary.finished, evaluation.summary.faults) == (20, 0)
    assert {result.turns for result in evaluation.results} == {4}
