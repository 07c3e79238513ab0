"""Plays scripts over HTTP with our resources server, as NeMo Gym's simple agent does; runs where that is installed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import httpx
import uvicorn
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.server_utils import ServerClient

from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.integrations.nemo_gym import RTLResourcesServer, RTLServerConfig, rows
from rtl_agent_gym.integrations.session import FAULT, ToolSession
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import ToolCall
from tests.integrations.conformance import Played, Script, gray, in_short, rules_of
from tests.sandboxes.providers import kill


@asynccontextmanager
async def serving(rules: dict[str, Any], **more: Any) -> AsyncIterator[tuple[RTLResourcesServer, str]]:
    """The server, and its address. NeMo Gym's client, with which a server calls others, is not used by this one."""
    config = RTLServerConfig(host="127.0.0.1", port=0, entrypoint="", name="rtl", rules=rules, **more)
    server = RTLResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))
    web = uvicorn.Server(uvicorn.Config(server.setup_webserver(), host="127.0.0.1", port=0, log_level="warning"))
    task = asyncio.create_task(web.serve())
    try:
        while not web.started:
            assert not task.done()
            await asyncio.sleep(0.05)
        yield server, f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}"
    finally:
        web.should_exit = True
        await task


def conversation(given: tuple[ToolCall, ...] | str) -> dict[str, Any]:
    """The response that ends with a turn."""
    if isinstance(given, str):
        part = {"type": "output_text", "text": given, "annotations": []}
        last: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
        last["content"] = [part]
    else:
        last = {"type": "function_call_output", "call_id": "c", "output": "…"}
    fixed = {"id": "r", "object": "response", "created_at": 0, "model": "stub", "tool_choice": "auto", "tools": []}
    return fixed | {"parallel_tool_calls": False, "output": [last]}


async def converse(server: RTLResourcesServer, url: str, script: Script) -> tuple[dict[str, Any], list[str]]:
    """The answer to ``/verify`` after a script, and what the model read in each turn with calls."""
    (row,) = rows(ids=[gray().id])
    seen = []
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        (await client.post("/seed_session", json=row)).raise_for_status()
        for number, given in enumerate(script.turns, 1):
            if number == script.fault_in:
                (running,) = server._running.values()
                kill(running.session.episode.sandbox)
            if not isinstance(given, str):
                replies = [await client.post(f"/{call.name}", json=json.loads(call.arguments)) for call in given]
                seen.append("\n".join(reply.raise_for_status().text for reply in replies))
        ended = {"response": conversation(script.turns[-1]), "instance_config": {"split": "train"}}
        answer = await client.post("/verify", json=row | ended)
        assert not server._running
        return answer.raise_for_status().json(), seen


def play(script: Script, folder: Path) -> Played:
    """Play it in this process."""

    async def served() -> Played:
        async with serving(rules_of(script, folder)) as (server, url):
            answer, seen = await converse(server, url, script)
        read = tuple(in_short(text) for text in seen if text != FAULT)
        if answer["mask_sample"]:
            assert (answer["failure_kind"], answer["numbers"]) == ("provider_unavailable", {})
            assert answer["instance_config"] == {"split": "train", "mask_sample": True}  # NeMo RL reads it there
            return Played(None, None, read)
        return Played(answer["reward"], bool(answer["numbers"]["tests_passed"]), read)

    return asyncio.run(served())


@asynccontextmanager
async def seeded(**more: Any) -> AsyncIterator[tuple[RTLResourcesServer, httpx.AsyncClient, dict[str, Any]]]:
    """The server, a client for which an episode has begun, and the episode's row."""
    async with serving({}, **more) as (server, url), httpx.AsyncClient(base_url=url, timeout=None) as client:
        (row,) = rows(ids=[gray().id])
        (await client.post("/seed_session", json=row)).raise_for_status()
        yield server, client, row


def collected() -> list[str]:
    """The agents to which NeMo Gym's collection gives a row, by default and with an agent that is named."""
    made = [*rows(ids=[gray().id]), *rows(ids=[gray().id], agent="other")]
    return [row["agent_ref"]["name"] for row in RolloutCollectionHelper().preprocess_examples(made)]


def forgotten() -> dict[str, Any]:
    """What a call is told after an episode that nobody has called has ended."""

    async def served() -> dict[str, Any]:
        async with seeded(idle_seconds=0.01) as (server, client, _):
            assert server._ending is not None
            await asyncio.wait_for(server._ending, 60)
            refused = await client.post("/execute_bash", json={"command": "ls"})
            return {"status": refused.status_code, "said": refused.json()["detail"]}

    return asyncio.run(served())


def forged() -> list[int]:
    """The statuses of calls without the row's digest, by paths that a model names, and of the agent's own verify."""
    other = next(problem for problem in load_problems("bundled") if problem.id != gray().id)

    async def served() -> list[int]:
        async with seeded() as (server, client, row):
            ended = {"response": conversation("Done."), "responses_create_params": {"input": []}}
            wrong: list[tuple[str, dict[str, Any]]] = [
                ("/verify", ended),
                ("/verify", ended | {"digest": other.digest}),
                ("/seed_session", {"problem_id": other.id}),
                ("/seed_session", {"problem_id": other.id, "digest": other.digest}),
                ("/seed_session", {"problem_id": "x", "problems": "/etc/passwd"}),
            ]
            found = [(await client.post(path, json=body)).status_code for path, body in wrong]
            async with httpx.AsyncClient(base_url=client.base_url, timeout=None) as stranger:
                claimed = row | {"problem_id": other.id}
                found.append((await stranger.post("/seed_session", json=claimed)).status_code)
            (running,) = server._running.values()
            assert running.session.problem.id == gray().id
            return [*found, (await client.post("/verify", json=row | ended)).status_code]

    return asyncio.run(served())


def replaced() -> list[int]:
    """The statuses of a seed in a session whose episode is being graded, after another call, and of that grading."""
    finish, asked_again = ToolSession.finish, asyncio.Event()

    async def late(session: ToolSession, *reason: Any) -> Any:
        await asked_again.wait()
        return await finish(session, *reason)

    async def served() -> list[int]:
        async with seeded() as (server, client, row):
            (running,) = server._running.values()
            verify = client.post("/verify", json=row | {"response": conversation("Done.")})
            grading = asyncio.ensure_future(verify)
            async with asyncio.timeout(60):
                while not running.calls:
                    await asyncio.sleep(0.01)
            await client.post("/execute_bash", json={"command": "ls"})
            again = await client.post("/seed_session", json=row)
            asked_again.set()
            return [again.status_code, (await grading).status_code]

    with patch.object(ToolSession, "finish", late):
        return asyncio.run(served())


def together(how: str) -> list[str]:
    """What two calls are told that are sent at once, the first of which ends the episode, or meets a ``fault``."""
    act, calls = Episode.act, 0

    async def ending(episode: Episode, given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            async with asyncio.timeout(60):
                while len(sessions[0]._turns) < 2:
                    await asyncio.sleep(0.01)
            if how == "fault":
                kill(episode.sandbox)
        turn = await act(episode, given, **more)
        await episode.finish()
        return turn

    sessions: list[ToolSession] = []

    async def served() -> list[str]:
        async with seeded() as (server, client, row):
            sessions.extend(running.session for running in server._running.values())
            sent = [client.post("/execute_bash", json={"command": "echo one"}) for _ in range(2)]
            told = [reply.text for reply in await asyncio.gather(*sent)]
            await client.post("/verify", json=row | {"response": conversation("Done.")})
            return sorted(told)

    with patch.object(Episode, "act", ending):
        return asyncio.run(served())


def waiting() -> int:
    """The number of episodes when a second one begins while the first waits for its sandbox."""
    start, room = ToolSession.start, asyncio.Event()

    async def late(session: ToolSession) -> Any:
        await room.wait()
        return await start(session)

    async def served() -> int:
        async with serving({}, idle_seconds=0.01) as (server, url):
            (row,) = rows(ids=[gray().id])
            clients = [httpx.AsyncClient(base_url=url, timeout=None) for _ in range(2)]
            begun = []
            for client in clients:
                begun.append(asyncio.ensure_future(client.post("/seed_session", json=row)))
                await asyncio.sleep(0.5)
            sessions = [running.session for running in server._running.values()]
            room.set()
            await asyncio.gather(*begun)
            await asyncio.gather(*(session.close() for session in sessions))
            await asyncio.gather(*(client.aclose() for client in clients))
            return len(sessions)

    with patch.object(ToolSession, "start", late):
        return asyncio.run(served())
