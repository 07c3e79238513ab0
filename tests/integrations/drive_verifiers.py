"""Plays scripts with the command ``vf-eval`` against a scripted chat service; runs where verifiers is installed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from verifiers.v1.cli.eval.main import main as vf_eval

from rtl_agent_gym.episodes.rules import RECORDED_RULES
from rtl_agent_gym.errors import RTLGymError, SandboxError, SandboxLost
from rtl_agent_gym.integrations.session import ToolSession
from rtl_agent_gym.integrations.verifiers import CVDPTaskConfig, CVDPTaskset, CVDPTasksetConfig
from tests.integrations.conformance import Played, Script, gray, in_short, kill
from tests.policies.stub_server import ChatServer, Reply

sessions: list[ToolSession] = []
"""Those that were started, in order."""


def reply(turn: Any) -> Reply:
    """A turn of a script as the service answers it."""
    return {"content": turn} if isinstance(turn, str) else {"calls": [(call.name, call.arguments) for call in turn]}


def evaluate(answer: Callable[[dict[str, Any]], Reply], *options: str) -> tuple[list[dict[str, Any]], ChatServer]:
    """The traces of ``vf-eval``, and the service with the requests that it got."""
    with ChatServer(answer, whole=True) as server, tempfile.TemporaryDirectory() as out:
        place = ["--output-dir", out, "--client.base-url", server.url, "--client.api-key-var", "NO_KEY"]
        chosen = ["--select.include.ids", gray().id, *options]
        vf_eval(["rtl_agent_gym_verifiers", "--model", "stub", "--no-push", "--no-rich", *place, *chosen])
        lines = [line for path in Path(out).rglob("traces.jsonl") for line in path.read_text().splitlines()]
    return [trace for line in lines for trace in json.loads(line)["traces"]], server


_start = ToolSession.start


start_faults: list[SandboxError] = []
"""Raised by the next starts, one each."""


async def _noted_start(self: ToolSession) -> Any:
    if start_faults:
        raise start_faults.pop()
    sessions.append(self)
    return await _start(self)


ToolSession.start = _noted_start  # type: ignore[method-assign]


def scripted(script: Script) -> Callable[[dict[str, Any]], Reply]:
    """The model that plays a script; it is cut off where the script ends."""

    def answer(body: dict[str, Any]) -> Reply:
        number = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        if number == script.fault_in:
            kill(sessions[-1].episode.sandbox.id)
        return reply(script.turns[number - 1])

    return answer


def options_of(script: Script, folder: Path) -> list[str]:
    """The options of ``vf-eval`` for the rules of a script."""
    rules = {name: getattr(script.config, name) for name in RECORDED_RULES} | {"transcript_dir": folder}
    return [part for name, value in rules.items() for part in (f"--env.taskset.task.{name}", str(value))]


def play(script: Script, folder: Path) -> Played:
    (trace,), server = evaluate(scripted(script), *options_of(script, folder))
    check(trace, server)
    seen = observations(trace)
    if not trace["ok"]:
        assert trace["errors"][-1]["type"] == "SandboxError", trace["errors"]
        assert not trace["rewards"]
        return Played(None, None, seen)
    (reward,) = (each["score"] * each["weight"] for each in trace["rewards"].values())
    whole = seen if isinstance(script.turns[-1], str) else None  # what the last turn gave is not shown
    return Played(reward, bool(trace["metrics"]["tests_passed"]), whole)


def play_all(jobs: list[tuple[Script, Path]]) -> list[Played]:
    return [play(*job) for job in jobs]


def check(trace: dict[str, Any], server: ChatServer) -> None:
    """What holds for every trace."""
    problem = gray()
    for before, after in pairwise(server.requests):
        assert after["messages"][: len(before["messages"])] == before["messages"]
    for request in server.requests:
        assert [tool["function"]["name"] for tool in request["tools"]] == ["execute_bash"]
    assert [tool["name"] for tool in trace["tools"]] == ["execute_bash"]
    leaves = set(range(len(trace["nodes"]))) - {node.get("parent") for node in trace["nodes"]}
    assert len(leaves) == 1  # one branch: one sample to train on
    text = json.dumps(trace["task"])
    assert problem.prompt.strip()[:40] in trace["task"]["data"]["prompt"]
    assert not any(json.dumps(hidden)[1:-1] in text for hidden in problem.harness.values() if len(hidden) > 40)


def retried(script: Script, folder: Path) -> dict[str, Any]:
    """The trace of a script with two retries, whose first attempt fails at its start and whose second has a fault."""
    start_faults.append(SandboxLost("no sandbox starts"))
    attempts = iter([scripted(script), scripted(replace(script, fault_in=None))])
    answer = scripted(script)

    def model(body: dict[str, Any]) -> Reply:
        nonlocal answer
        if not any(message["role"] == "assistant" for message in body["messages"]):
            answer = next(attempts)
        return answer(body)

    (trace,), _ = evaluate(model, *options_of(script, folder), "--env.agent.retries.max-retries", "2")
    return trace


def limited(script: Script, folder: Path, *options: str) -> dict[str, Any]:
    """The trace of a script that limits of verifiers cut off."""
    (trace,), _ = evaluate(scripted(script), *options_of(script, folder), *options)
    return trace


def overflowing(script: Script, folder: Path) -> dict[str, Any]:
    """The trace of a conversation that fits the model's context for one turn only."""
    answer = scripted(script)

    def model(body: dict[str, Any]) -> Reply:
        if any(message["role"] == "assistant" for message in body["messages"]):
            return {"status": 400, "error": {"message": "This model's maximum context length is 100 tokens."}}
        return answer(body)

    (trace,), _ = evaluate(model, *options_of(script, folder))
    return trace


def observations(trace: dict[str, Any]) -> tuple[str, ...]:
    """The replies to each turn with calls."""
    messages = [node["message"] for node in trace["nodes"]]
    runs = groupby(messages, key=lambda message: message["role"])
    return tuple(in_short("\n".join(reply["content"] for reply in run)) for role, run in runs if role == "tool")


def refusals(several: list[dict[str, Any]]) -> list[str]:
    """What loading says to each of several configurations of the taskset."""

    def told(options: dict[str, Any]) -> str:
        rules = CVDPTaskConfig(**options.pop("task", {}))
        config: Any = SimpleNamespace(config=CVDPTasksetConfig(**options, task=rules))
        try:
            next(CVDPTaskset.load(config))
        except RTLGymError as error:
            return f"{type(error).__name__}: {error}"
        return "fine"

    return [told(options) for options in several]
