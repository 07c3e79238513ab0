"""Plays scripts with the command ``vf-eval`` against a scripted chat service; runs where verifiers is installed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from operator import add
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from renderers.base import load_tokenizer
from verifiers.v1.cli.eval.main import main as vf_eval

from rtl_agent_gym.errors import SandboxLost
from rtl_agent_gym.integrations.verifiers import CVDPTaskConfig, CVDPTaskset, CVDPTasksetConfig
from rtl_agent_gym.renderers import get_renderer
from tests.integrations.conformance import Played, Script, gray, ids_of, in_short, rules_of, told
from tests.integrations.generate_server import generating
from tests.integrations.started import episodes, start_faults
from tests.policies.stub_server import ChatServer, Reply
from tests.sandboxes.providers import kill


def reply(turn: Any) -> Reply:
    """A turn of a script as the service answers it."""
    return {"content": turn} if isinstance(turn, str) else {"calls": [(call.name, call.arguments) for call in turn]}


def evaluate(answer: Callable[[dict[str, Any]], Reply], *options: str) -> tuple[list[dict[str, Any]], ChatServer]:
    """The traces of ``vf-eval``, and the service with the requests that it got."""
    with ChatServer(answer, whole=True) as server:
        return traces_of(server.url, *options), server


def traces_of(url: str, *options: str) -> list[dict[str, Any]]:
    """The traces of ``vf-eval`` with a service."""
    with tempfile.TemporaryDirectory() as out:
        place = ["--output-dir", out, "--client.base-url", url, "--client.api-key-var", "NO_KEY"]
        chosen = ["--select.include.ids", gray().id, *options]
        vf_eval(["rtl_agent_gym_verifiers", "--model", "stub", "--no-push", "--no-rich", *place, *chosen])
        lines = [line for path in Path(out).rglob("traces.jsonl") for line in path.read_text().splitlines()]
    return [trace for line in lines for trace in json.loads(line)["traces"]]


def scripted(script: Script) -> Callable[[dict[str, Any]], Reply]:
    """The model that plays a script; it is cut off where the script ends."""

    def answer(body: dict[str, Any]) -> Reply:
        number = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        if number == script.fault_in:
            kill(episodes[-1].sandbox)
        return reply(script.turns[number - 1])

    return answer


def options_of(script: Script, folder: Path) -> list[str]:
    """The options of ``vf-eval`` for the rules of a script."""
    rules = rules_of(script, folder).items()
    return [part for name, value in rules for part in (f"--env.taskset.task.{name}", str(value))]


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
    return Played(reward, bool(trace["metrics"]["tests_passed"]), whole, {"reward": reward, **trace["metrics"]})


def play_tokens(script: Script, folder: Path, tokenizer: str) -> dict[str, Any]:
    """What verifiers' train client makes of a script, with the tokenizer of that folder.

    Each prompt must be the one before, the sampled ids, and what was appended; and the trace's one branch must hold all
    ids, with the sampled ones marked.
    """
    encoder, renderer = load_tokenizer(tokenizer), get_renderer("qwen3_disable_thinking")

    def sample(number: int) -> list[int]:
        if number + 1 == script.fault_in:
            kill(episodes[-1].sandbox)
        return ids_of(script.turns[number], renderer, encoder)

    client = ["--client.type", "train", "--client.renderer-model-name", tokenizer]
    client += ["--client.renderer.name", "qwen3", "--client.renderer.enable-thinking", "false"]
    with generating(sample) as server:
        (trace,) = traces_of(server.url, *client, *options_of(script, folder))
    whole = [*map(add, server.prompts, server.sampled)]
    for before, after in zip(whole, server.prompts[1:], strict=False):
        assert after[: len(before)] == before
        assert len(after) > len(before)
    nodes = trace["nodes"]
    assert [node.get("parent") for node in nodes] == [None, *range(len(nodes) - 1)]
    ids = [id_ for node in nodes for id_ in node["token_ids"]]
    assert ids[: len(whole[-1])] == whole[-1]
    marked = [id_ for node in nodes for id_, one in zip(node["token_ids"], node["mask"], strict=True) if one]
    assert marked == [id_ for one in server.sampled for id_ in one]
    (reward,) = [each["score"] * each["weight"] for each in trace["rewards"].values()] or [None]
    return {"reward": reward, "turns": len(server.sampled), "errors": [error["type"] for error in trace["errors"]]}


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

    def load(options: dict[str, Any]) -> None:
        rules = CVDPTaskConfig(**options.pop("task", {}))
        config: Any = SimpleNamespace(config=CVDPTasksetConfig(**options, task=rules))
        next(CVDPTaskset.load(config))

    return [told(partial(load, options)) for options in several]
