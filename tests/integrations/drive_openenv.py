"""Plays scripts with ``rtl-agent-gym serve`` in one process and our client in another, both in OpenEnv's Python."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.sandboxes.daemon import connect
from tests.integrations.conformance import Played, Script, gray, in_short
from tests.sandboxes.providers import kill


@contextlib.asynccontextmanager
async def serving(*options: str, **variables: str) -> AsyncIterator[tuple[str, Process]]:
    """A server on a free port. Its end must be a clean one, and leave no container."""
    from tests.integrations.ecosystem import ROOT, clean, environment

    python = await asyncio.to_thread(environment, "openenv")
    command = ("-m", "rtl_agent_gym", "serve", "--port", "0", *options)
    process = await asyncio.create_subprocess_exec(
        str(python), *command, stdout=DEVNULL, stderr=PIPE, cwd=ROOT, env=clean() | variables
    )
    assert process.stderr is not None
    try:
        line = (await process.stderr.readline()).decode()
        found = re.search(r" at (http://\S+) ", line)
        assert found is not None, line + (await process.stderr.read()).decode()
        yield found[1], process
        process.send_signal(signal.SIGINT)
        errors = await process.stderr.read()
        assert (await process.wait(), errors.decode()) == (0, "")
        assert not containers(process.pid)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def containers(process: int, role: str = "") -> list[str]:
    """The names of a process's containers."""
    named = re.compile(rf"rtl-gym-{role or '[a-z]+'}-{process}-")
    with contextlib.closing(connect()) as client:
        names = [str(found.name) for found in client.containers.list(all=True, ignore_removed=True)]
    return [name for name in names if named.match(name)]


def container_with(names: list[str], path: str, text: str) -> str:
    """The one of these containers whose file has this text."""
    with contextlib.closing(connect()) as client:
        outputs = {name: client.containers.get(name).exec_run(["cat", path]).output for name in names}
    contents = {name: output.decode().strip() for name, output in outputs.items() if isinstance(output, bytes)}
    (found,) = (name for name, content in contents.items() if content == text)
    return found


class OpenEnvPlayer:
    name = "OpenEnv 0.10"

    async def play(self, script: Script, folder: Path) -> Played:
        from tests.integrations.ecosystem import call, read_played  # not in OpenEnv's Python, which has no pytest

        rules = script.config
        options = {
            "--max-turns": rules.max_turns,
            "--command-timeout": rules.command_timeout,
            "--harness-feedback": rules.harness_feedback,
            "--transcript-dir": folder,
        }
        async with serving(*(str(word) for pair in options.items() for word in pair)) as (url, server):
            return read_played(await call("openenv", "play", script, url, server.pid))


def divided(script: Script) -> list[float]:
    """What each turn of a script earned."""
    from rtl_agent_gym.integrations.openenv import RTLAction, ServedEnvironment

    async def played() -> list[float]:
        rules = script.config.with_options(turn_rewards="files", turn_grading_time=None)
        served = ServedEnvironment([gray()], rules)
        await served.reset_async()
        for given in script.turns:
            action = {"answer": given} if isinstance(given, str) else {"calls": [asdict(call) for call in given]}
            observation = await served.step_async(RTLAction(**action))
        return list(observation.metadata["turn_rewards"])

    return asyncio.run(played())


def play(script: Script, url: str, server: int) -> Played:
    """Play it with our client in this process."""
    return asyncio.run(_play(script, url, server))


async def _play(script: Script, url: str, server: int) -> Played:
    from rtl_agent_gym.integrations.openenv import RTLClient

    observations: list[str] = []
    total = 0.0
    try:
        async with RTLClient(url) as env:
            opening = (await env.reset(problem_id=gray().id)).observation
            assert [message["role"] for message in opening["messages"]] == ["system", "user"]
            assert [tool["function"]["name"] for tool in opening["tools"]] == ["execute_bash"]
            for number, given in enumerate(script.turns, 1):
                if number == script.fault_in:
                    (sandbox,) = containers(server, "agent")
                    kill(sandbox)
                action = {"answer": given} if isinstance(given, str) else {"calls": [asdict(call) for call in given]}
                result = await env.step(action)
                total += result.reward
                replies = result.observation["replies"]
                if not isinstance(given, str):
                    assert len(replies) == len(given)
                    observations.append(in_short("\n".join(replies)))
            assert result.done
    except SandboxError:
        return Played(None, None, tuple(observations))
    assert result.metadata["numbers"]["reward"] == total
    return Played(total, result.metadata["score"]["passed"], tuple(observations), result.metadata["numbers"])
