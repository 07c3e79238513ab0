"""The chat policy against a real HTTP service: tool calls, rate limits, refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rtl_agent_gym.errors import ModelError, UsageError
from rtl_agent_gym.policies import Completion, ModelOptions
from rtl_agent_gym.policies.chat import ChatPlayer, ChatPolicy
from rtl_agent_gym.policies.chat_calls import ToolCall, in_dialect
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import get_renderer
from tests.policies.chat_server import ChatServer, call

MakePolicy = Callable[..., ChatPolicy]


@pytest.fixture
async def policies() -> AsyncIterator[MakePolicy]:
    made: list[ChatPolicy] = []

    def make(server: ChatServer, **options: Any) -> ChatPolicy:
        made.append(ChatPolicy("org/some-model", ModelOptions(base_url=server.url, **options)))
        return made[-1]

    yield make
    for policy in made:
        await policy.close()


def opened(policy: ChatPolicy, renderer: str = "qwen3", seed: int | None = 7) -> ChatPlayer:
    player = policy.player(load_problems("bundled")[0], get_renderer(renderer), seed)
    player.opened("be an engineer", "design it")
    return player


async def said(player: ChatPlayer) -> Completion:
    completion = await player.act([])
    assert completion is not None
    return completion


async def test_tool_calls_become_the_dialect_and_their_results_go_back(policies: MakePolicy) -> None:
    renderer = get_renderer("qwen3")
    script = [{"content": "Look.", "calls": call("ls", "pwd")["calls"]}, {"content": "All done."}]
    with ChatServer(script) as server:
        player = opened(policies(server, temperature=0.5, max_tokens=33))
        first = await said(player)
        action = renderer.parse_text(first.text)
        assert (action.kind, action.commands, action.text) == ("command", ("ls", "pwd"), "Look.")
        assert (first.prompt_tokens, first.output_tokens, first.cut_off) == (100, 20, False)
        player.answered(action, ["docs", "/code"])
        last = await said(player)
        assert renderer.parse_text(last.text).kind == "final"
    request = server.requests[0]
    assert request["model"] == "org/some-model"
    assert (request["temperature"], request["max_tokens"], request["seed"]) == (0.5, 33, 7)
    assert request["tools"][0]["function"]["name"] == "execute_bash"
    history = server.requests[1]["messages"]
    assert [message["role"] for message in history] == ["system", "user", "assistant", "tool", "tool"]
    assert [message["content"] for message in history[3:]] == ["docs", "/code"]
    assert [message["tool_call_id"] for message in history[3:]] == ["call_0", "call_1"]


async def test_rate_limits_are_waited_out(policies: MakePolicy) -> None:
    with ChatServer([call("ls")], refusals=3) as server:
        await said(opened(policies(server, attempts=4)))
        assert (server.refused, len(server.requests)) == (3, 1)


async def test_a_service_that_stays_busy_is_a_fault_and_no_score(policies: MakePolicy) -> None:
    with ChatServer([call("ls")], refusals=99) as server:
        with pytest.raises(ModelError, match="did not answer in 2 tries") as raised:
            await said(opened(policies(server, attempts=2)))
        assert server.refused == 2
    assert raised.value.retries == 1


async def test_a_service_that_is_gone_is_a_fault(policies: MakePolicy) -> None:
    with ChatServer([]) as server:
        policy = policies(server, attempts=1)
    with pytest.raises(ModelError, match="did not answer"):
        await said(opened(policy))


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "invalid_request_error"), (404, "not_found"), (400, "invalid_request_error")]
)
async def test_a_refusal_that_nothing_will_change_is_said_at_once(policies: MakePolicy, status: int, kind: str) -> None:
    error = {"message": "we do not like it", "type": kind}
    with ChatServer([{"status": status, "error": error}]) as server:
        with pytest.raises(UsageError, match=r"refused the request.*we do not like it"):
            await said(opened(policies(server)))
        assert len(server.requests) == 1


async def test_a_refusal_of_one_conversation_is_a_fault_of_that_one(policies: MakePolicy) -> None:
    error = {"message": "this text offends", "type": "invalid_request_error"}
    with ChatServer([call("ls"), {"status": 400, "error": error}]) as server:
        player = opened(policies(server))
        action = get_renderer("qwen3").parse_text((await said(player)).text)
        player.answered(action, ["x"])
        with pytest.raises(ModelError, match="this text offends"):
            await said(player)


async def test_a_full_context_ends_the_episode(policies: MakePolicy) -> None:
    error = {
        "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
    with ChatServer([{"status": 400, "error": error}]) as server:
        assert await opened(policies(server)).act([]) is None


@pytest.mark.parametrize("renderer", ["qwen3", "gpt_oss"])
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("execute_bash", '{"command": "ls', "JSON"),
        ("browse", '{"command": "ls"}', "no tool"),
        ("execute_bash", '{"cmd": "ls"}', '"command" is missing'),
    ],
)
async def test_a_broken_call_stays_broken_and_its_caller_is_told(
    policies: MakePolicy, renderer: str, name: str, arguments: str, words: str
) -> None:
    dialect = get_renderer(renderer)
    with ChatServer([{"content": "", "calls": [(name, arguments)]}, {"content": "ok"}]) as server:
        player = opened(policies(server), renderer)
        action = dialect.parse_text((await said(player)).text)
        assert action.kind == "malformed"
        assert words in str(action.correction)
        player.answered(action, [])
        await said(player)
    assistant, tool = server.requests[1]["messages"][-2:]
    assert tool["role"] == "tool"
    assert words in tool["content"]
    json.loads(assistant["tool_calls"][0]["function"]["arguments"])  # services refuse a history that is not JSON


async def test_thinking_and_cut_off_turns_are_kept(policies: MakePolicy) -> None:
    renderer = get_renderer("qwen3")
    with ChatServer([{"content": "I sta", "reasoning": "hm </think> hm", "finish": "length"}]) as server:
        completion = await said(opened(policies(server)))
    assert completion.cut_off
    action = renderer.parse_text(completion.text, truncated=True)
    assert (action.kind, action.thinking) == ("malformed", "hm </ think> hm")


async def test_without_tools_the_model_writes_the_dialect_itself(policies: MakePolicy) -> None:
    renderer = get_renderer("qwen3")
    text = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'
    with ChatServer([{"content": text}]) as server:
        policy = policies(server, tools=False)
        messages = renderer.initial_messages("system", "user")
        completion = await opened(policy).act(messages)
    assert completion is not None
    assert renderer.parse_text(completion.text).commands == ("ls",)
    assert "tools" not in server.requests[0]
    assert server.requests[0]["messages"] == messages


async def test_the_key_goes_to_the_service(policies: MakePolicy) -> None:
    with ChatServer([{"content": "hi"}]) as server:
        await said(opened(policies(server, api_key="sesame")))
    assert server.authorizations == {"Bearer sesame"}


def test_harmony_holds_several_calls_as_one() -> None:
    calls = [ToolCall(str(n), "execute_bash", json.dumps({"command": text})) for n, text in enumerate(("cd rtl", "ls"))]
    renderer = get_renderer("gpt_oss")
    action = renderer.parse_text(in_dialect(renderer, "Two steps.", "thinking", calls))
    assert (action.kind, action.commands, action.thinking) == ("command", ("cd rtl\nls",), "thinking")
