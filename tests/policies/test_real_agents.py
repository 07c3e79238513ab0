"""The real programs of agents in sandboxes without a network. Only the model is scripted; the programs come from npm.

Run by ``./scripts/test --agents``, which installs the programs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("aiohttp", reason="the extra `agents` is not installed")

from rtl_agent_gym.cli import app
from rtl_agent_gym.demo.shipped import shipped
from rtl_agent_gym.errors import ImageError
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.policies.agents import INSIDE
from rtl_agent_gym.policies.harness import HarnessPolicy
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes.programs import programs_folder, programs_id
from tests.arbiter import ARBITER
from tests.integrations.ecosystem import lacking

from .agents_table import note
from .test_inside import play, policy, solution
from .test_streams import Scripted, vocabulary

pytestmark = [pytest.mark.docker, pytest.mark.ecosystem, pytest.mark.timeout(600)]

SHELL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "opencode": ("bash", "command", {"description": "Run it"}),
    "claude-code": ("Bash", "command", {"description": "Run it"}),
    "codex": ("exec_command", "cmd", {}),
    "qwen-code": ("run_shell_command", "command", {"description": "Run it", "is_background": False}),
    "pi": ("bash", "command", {}),
}
"""The tool of each agent that runs a command, the name of its argument, and its others."""


def call(agent: str, command: str) -> str:
    name, argument, more = SHELL[agent]
    text = json.dumps({"name": name, "arguments": {argument: command, **more}})
    return f"<tool_call>\n{text}\n</tool_call><|im_end|>"


def installed(agent: str) -> str:
    """The agent; without its programs, the test is skipped or fails."""
    try:
        programs_folder(programs_id(agent))
    except ImageError as error:
        lacking(str(error))
    return agent


@pytest.fixture(params=list(INSIDE))
def agent(request: pytest.FixtureRequest) -> str:
    return installed(str(request.param))


def test_every_agent_has_a_script() -> None:
    assert SHELL.keys() == ROOM.keys() == INSIDE.keys()


@pytest.mark.parametrize("sandbox", ["docker", "namespaces"])
async def test_it_solves_a_problem_without_a_network(
    problem: Problem, tmp_path: Path, agent: str, sandbox: str
) -> None:
    texts = [call(agent, "cat docs/specification.md"), call(agent, solution(problem)), "Done.<|im_end|>"]
    limits = {"max_context": 60_000, "max_tokens": 4000}
    result, [player], lines = await play(problem, policy(list(texts), agent, **limits), tmp_path, sandbox)
    assert result.score is not None, result.fault
    assert result.score.reward == pytest.approx(1.4), result.score.reason
    assert (result.stop_reason, result.turns) == ("completed", 3)
    # An agent that only adds to its conversation is one stream of tokens: what was sampled, as it was sampled.
    assert player.streams.numbers() == {"tokens/streams": 1.0, "tokens/breaks": 0.0}
    turns = [line for line in lines if line["event"] == "turn"]
    assert [turn["action"] for turn in turns] == ["command", "command", "final"]
    assert turns[0]["commands"][0]["command"] == "cat docs/specification.md"
    assert "arbiter" in turns[0]["commands"][0]["output"]
    assert turns[1]["files"].keys() == set(problem.golden or {})
    [transcript] = player.streams.transcripts()
    assert problem.prompt[:200] in player.streams.policy.tokenizer.decode(transcript.tokens)
    note(agent, f"solved with {sandbox.replace('docker', 'Docker')}", result, player)


async def test_a_call_that_cannot_be_read_is_a_turn_like_others(problem: Problem, tmp_path: Path, agent: str) -> None:
    name = SHELL[agent][0]
    broken = f'<tool_call>\n{{"name": "{name}", "arguments": {{"wrong": 1}}}}\n</tool_call><|im_end|>'
    texts = [broken, call(agent, solution(problem)), "Done.<|im_end|>"]
    limits = {"max_context": 60_000, "max_tokens": 4000}
    result, [player], _ = await play(problem, policy(list(texts), agent, **limits), tmp_path)
    assert result.score is not None, result.fault
    assert result.score.passed
    numbers = player.streams.numbers()
    sampled = [segment for one in player.streams.transcripts() for segment in one.segments if segment.sampled]
    assert len(sampled) == 3  # each answer is in exactly one stream, however many there are
    assert numbers["tokens/streams"] == 1.0 + numbers["tokens/breaks"]
    note(agent, "unreadable call", result, player)


ROOM = {
    "opencode": (20_000, 4000),
    "claude-code": (22_000, 2000),
    "codex": (14_000, 2000),
    "qwen-code": (30_000, 4000),
    "pi": (12_000, 2000),
}
"""Tokens of a context in which each agent must compact its conversation, and of an answer."""
SUMMARY = "The specification is read; next comes the design."


class Reader(Scripted):
    """A model that reads the specification until it must summarize, and then solves the problem."""

    def __init__(self, agent: str, problem: Problem) -> None:
        super().__init__(vocabulary("qwen3"), [])
        self.read = call(agent, "for n in $(seq 7); do cat docs/specification.md; done")
        self.rest = [call(agent, solution(problem)), "Done.<|im_end|>"]

    async def _answer(self, prompt: Any, most: int) -> Any:
        text = self.tokenizer.decode(prompt.to_ints(), skip_special_tokens=False)
        asked = text.rpartition("<|im_start|>user")[2]
        if SUMMARY in text:
            self.texts.append(self.rest.pop(0))
        else:
            summarizes = "tool_response" not in asked and ("summar" in asked or "state_snapshot" in asked)
            self.texts.append(f"{SUMMARY}<|im_end|>" if summarizes else self.read)
        return await super()._answer(prompt, most)


async def test_a_compacted_conversation_is_exact_and_its_breaks_are_counted(
    problem: Problem, tmp_path: Path, agent: str
) -> None:
    context, most = ROOM[agent]
    sampler: Any = Reader(agent, problem)
    model = TokenSamplerPolicy(sampler, name="reader", options=ModelOptions(max_context=context, max_tokens=most))
    result, [player], lines = await play(problem, HarnessPolicy(agent, model), tmp_path, max_turns=20)
    assert result.score is not None, result.fault
    assert result.score.reward == pytest.approx(1.4), result.score.reason
    # The request for a summary is a conversation of its own in most agents; what follows it has another history.
    numbers = player.streams.numbers()
    assert numbers["tokens/breaks"] >= 1
    reasons = {name.rpartition("/")[2]: number for name, number in numbers.items() if "breaks/" in name}
    assert reasons.keys() & {"history", "answer"}, reasons
    assert sum(reasons.values()) == numbers["tokens/breaks"]
    note(agent, "compacted", result, player)
    turns = [line for line in lines if line["event"] == "turn"]
    began = {turn["stream"]: turn["stream_reason"] for turn in turns}
    assert sorted(began) == list(range(1, int(numbers["tokens/streams"]) + 1))
    assert Counter(began.values()) == Counter(reasons) + Counter([""])
    assert all(len(one) <= context for one in player.streams.transcripts())


@pytest.mark.parametrize("name", ["mini-swe-agent", "opencode"])
def test_the_commands_eval_view_and_replay_with_a_model_of_this_machine(tmp_path: Path, name: str) -> None:
    """The shipped student with a longer context, which has not learnt the agents' tools. In its vocabulary opencode's
    prompt does not fit into that context, and is compacted at once.
    """
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(shipped("student"), model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 12_000}))
    if name in INSIDE:
        installed(name)
    limits = ["--max-turns", "1", "--max-tokens", "40", "--max-context", "12000", "--renderer", "qwen3"]
    agent = ["--policy", f"harness:{name} local:{model}", "--problem", ARBITER, "--out", str(out)]
    done = CliRunner().invoke(app, ["eval", *agent, *limits])
    assert done.exit_code == 0, done.output
    [row] = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()][-1:]
    assert row["problem_id"] == ARBITER
    assert row["output_tokens"] >= 40
    [path] = (out / "transcripts").glob("*.jsonl")
    shown = CliRunner().invoke(app, ["view", str(path), "--text"])
    assert re.search(r"turn 1 · (final|command) · stream \d", shown.output), shown.output
    again = CliRunner().invoke(app, ["replay", str(path)])
    assert again.exit_code == 0, again.output
