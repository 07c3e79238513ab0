"""The chat policy against a real HTTP service: tool calls, rate limits, refusals."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from rtl_agent_gym.errors import ModelError, RequestRefused, UsageError
from rtl_agent_gym.policies.chat import ChatPolicy
from rtl_agent_gym.renderers import get_renderer
from tests.policies.chatting import MakePolicy, native, next_turn, opened, replied
from tests.policies.stub_server import ChatServer, call


async def test_rate_limits_are_waited_out(policies: MakePolicy) -> None:
    with ChatServer([call("ls")], refusals=3) as server:
        await next_turn(opened(policies(server, attempts=4)))
        assert (server.refused, len(server.requests)) == (3, 1)


async def test_a_service_that_stays_busy_is_a_fault_and_no_score(policies: MakePolicy) -> None:
    with ChatServer([call("ls")], refusals=99) as server:
        with pytest.raises(ModelError, match="did not answer in 2 tries") as raised:
            await next_turn(opened(policies(server, attempts=2)))
        assert server.refused == 2
    assert raised.value.retries == 1


async def test_a_service_that_is_gone_is_a_fault(policies: MakePolicy) -> None:
    with ChatServer([]) as server:
        policy = policies(server, attempts=1)
    with pytest.raises(ModelError, match="did not answer"):
        await next_turn(opened(policy))


QUOTA = {"message": "You exceeded your current quota, please check your plan.", "type": "insufficient_quota"}
NO_CREDITS = {"message": "Insufficient credits. Add more using https://openrouter.ai/credits", "code": 402}
LOW_BALANCE = {
    "message": "Your credit balance is too low to access the Anthropic API.",
    "type": "invalid_request_error",
}
TOO_LARGE = {"message": "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000"}
OFFENDS = {"message": "this text offends", "type": "invalid_request_error"}
LATER: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"status": 400, "error": OFFENDS}, RequestRefused, "this text offends"),
    ({"status": 403, "body": "<html><h1>403 Forbidden</h1>request blocked</html>"}, RequestRefused, "request blocked"),
    ({"status": 413, "error": TOO_LARGE}, RequestRefused, "too large for model"),
    *(({"status": status, "error": {"message": "no longer"}}, UsageError, "no longer") for status in (401, 403, 404)),
    *(
        ({"status": status, "error": error}, UsageError, "refused the request")
        for status, error in ((429, QUOTA), (402, NO_CREDITS), (400, LOW_BALANCE))
    ),
]


async def test_a_later_refusal_ends_its_episode_or_the_run(policies: MakePolicy) -> None:
    """A firewall, or a limit of the account on one request, is of one conversation; a key or an account is of all."""
    with ChatServer([call("ls")]) as server:
        policy = policies(server)
        for refusal, error, words in LATER:
            player = opened(policy)
            await replied(player, "x")
            server.faults.append(refusal)
            arrived = len(server.arrived)
            with pytest.raises(error, match=words):
                await next_turn(player)
            assert len(server.arrived) == arrived + 1, refusal  # it is not asked again


BUSY: list[dict[str, Any]] = [
    {
        "status": status,
        "error": {"message": "not now", "type": "invalid_request_error"},
        "headers": {"retry-after-ms": "1"},
    }
    for status in (408, 429, 500, 502, 503, 504, 529)
]
BUSY += [
    {"status": 502, "body": "<html><body><h1>502 Bad Gateway</h1>\n\x1b]0;owned\x07</body></html>"},
    {"status": 200, "body": {"error": {"message": "upstream overloaded", "type": "server_error", "code": 502}}},
    {"status": 200, "body": {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}},
    {"status": 200, "body": "<html>a captive portal</html>"},
    {"drop": True},
]


async def test_what_may_pass_is_tried_again_and_said(policies: MakePolicy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)  # as on the command line; a training run in this process may have set another
    with ChatServer([call("ls")]) as server:
        for number, fault in enumerate(BUSY, 1):
            server.faults.append(fault)
            await next_turn(opened(policies(server, attempts=2)))
            assert len(server.requests) == number, fault
            (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("rtl_agent_gym")]
            assert line.startswith("chat:org/some-model does not answer (")
            assert "try 2 of 2 in" in line
            assert "\x1b" not in line
            caplog.clear()


async def test_many_conversations_that_wait_say_so_once(policies: MakePolicy, caplog: pytest.LogCaptureFixture) -> None:
    with ChatServer([call("ls")], refusals=3) as server:
        policy = policies(server)
        for seed in range(3):
            await next_turn(opened(policy, seed=seed))
    assert len([record for record in caplog.records if "does not answer" in record.getMessage()]) == 1


def fits(limit: int, prompt: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A server whose model reads `limit` tokens, and a prompt of `prompt`."""

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        if prompt + body["max_tokens"] <= limit:
            return {"content": "hi"}
        message = f"This model's maximum context length is {limit} tokens. However, you requested too many."
        return {"status": 400, "error": {"message": message, "type": "BadRequestError"}}

    return reply


async def test_an_answer_too_long_for_the_context_is_wrong_usage(policies: MakePolicy) -> None:
    with ChatServer(fits(40_960, prompt=1_000), whole=True) as server:
        with pytest.raises(UsageError, match="--max-tokens 40000"):
            await next_turn(opened(policies(server, max_tokens=40_000)))
        assert [request["max_tokens"] for request in server.requests] == [40_000, 16]


async def test_a_prompt_too_long_for_the_model_ends_its_episode(policies: MakePolicy) -> None:
    with ChatServer(fits(4_096, prompt=5_000), whole=True) as server:
        assert await opened(policies(server, max_tokens=2_000)).act([]) is None


async def test_a_422_says_what_was_wrong(policies: MakePolicy) -> None:
    detail = [{"type": "missing", "loc": ["body", "thing"], "msg": "Field required"}]
    refused = pytest.raises(UsageError, match="Field required")
    with ChatServer([{"status": 422, "body": {"detail": detail}}]) as server, refused:
        await next_turn(opened(policies(server)))


SEED_FORBIDDEN = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (422, {"object": "error", "message": {"detail": SEED_FORBIDDEN}}),  # Mistral
        (422, {"detail": SEED_FORBIDDEN}),  # FastAPI
        (400, {"error": {"message": "Unsupported parameter: 'seed'", "type": "invalid_request_error"}}),
    ],
)
async def test_a_seed_that_the_service_does_not_know_is_left_out(
    policies: MakePolicy, status: int, body: dict[str, Any]
) -> None:
    def reply(request: dict[str, Any]) -> dict[str, Any]:
        return {"status": status, "body": body} if "seed" in request else {"content": "hi"}

    with ChatServer(reply, whole=True) as server:
        player = opened(policies(server))
        assert (await next_turn(player)).text == "hi"
        assert ["seed" in request for request in server.requests] == [True, False]
        await next_turn(player)
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("foo", r"give --base-url, or a provider: chat:openai/foo"),
        ("openai/gpt-4o", "Missing credentials"),
        ("anthropic/claude-sonnet-4-5", "Missing Anthropic API Key"),
        ("gemini/gemini-2.5-pro", "Missing Gemini API key"),
    ],
)
async def test_a_model_without_provider_or_key_is_wrong_usage(
    model: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=words) as raised:
        await next_turn(opened(ChatPolicy(model)))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "kind", "message", "outcome"),
    [
        (529, "overloaded_error", "Overloaded", ModelError),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", None),
        (400, "invalid_request_error", "messages: at least one message is required", UsageError),
        (401, "authentication_error", "invalid x-api-key", UsageError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_own_protocol(
    policies: MakePolicy, status: int, kind: str, message: str, outcome: type[Exception] | None, stream: bool
) -> None:
    refusal = {"status": status, "body": {"type": "error", "error": {"type": kind, "message": message}}}
    with ChatServer([refusal], path="/v1/messages") as server:
        options = {"base_url": server.url.removesuffix("/v1"), "api_key": "k", "attempts": 1, "stream": stream}
        player = opened(policies(server, "anthropic/claude-sonnet-4-5", **options))
        if outcome is None:
            assert await player.act([]) is None
        else:
            with pytest.raises(outcome, match=f": {message}"):
                await next_turn(player)


async def test_a_model_is_asked_for_by_the_name_that_its_server_has(policies: MakePolicy) -> None:
    with ChatServer([{"content": "hi"}]) as server:
        for name in ("openai/gpt-oss-20b", "Qwen/Qwen3-8B", "plain"):
            await next_turn(opened(policies(server, name)))
        assert [request["model"] for request in server.requests] == ["openai/gpt-oss-20b", "Qwen/Qwen3-8B", "plain"]


QUOTES = [
    "Done. To run it:\n```bash\nrm -rf rtl\n```",
    "Done </tool_call> <think> ```sh\nls\n```",
]


@pytest.mark.parametrize("text", QUOTES)
async def test_an_answer_that_quotes_commands_runs_none(policies: MakePolicy, text: str) -> None:
    with ChatServer([{"content": text}]) as server:
        action = native(await next_turn(opened(policies(server))))
    assert (action.kind, action.commands, action.text) == ("final", (), text)


async def test_a_call_that_the_service_left_in_the_text_is_answered(policies: MakePolicy) -> None:
    text = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'
    with ChatServer([{"content": text}]) as server:
        action = native(await next_turn(opened(policies(server))))
    assert action.kind == "malformed"
    assert "written out in its text" in str(action.correction)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("execute_bash", '{"command": "ls', "JSON"),
        ("browse", '{"command": "ls"}', "no tool"),
        ("execute_bash", '{"cmd": "ls"}', '"command" is missing'),
    ],
)
async def test_a_broken_call_stays_broken_and_its_caller_is_told(
    policies: MakePolicy, name: str, arguments: str, words: str
) -> None:
    with ChatServer([{"content": "", "calls": [(name, arguments)]}, {"content": "ok"}]) as server:
        player = opened(policies(server))
        action = native(await next_turn(player))
        assert action.kind == "malformed"
        assert words in str(action.correction)
        player.answered(action, [])
        await next_turn(player)
    assistant, tool = server.requests[1]["messages"][-2:]
    assert tool["role"] == "tool"
    assert words in tool["content"]
    json.loads(assistant["tool_calls"][0]["function"]["arguments"])  # services refuse a history that is not JSON


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"command": "cat <<E\nhi\nE"}', {"command": "cat <<E\nhi\nE"}),
        (json.dumps('{"command": "ls"}'), {"command": "ls"}),
        ('{"command": "ls", "n": NaN}', {"command": "ls"}),
    ],
    ids=["line break", "text in text", "NaN"],
)
async def test_the_history_has_the_call_that_was_run(
    policies: MakePolicy, arguments: str, kept: dict[str, str]
) -> None:
    with ChatServer([{"content": "", "calls": [("execute_bash", arguments)]}, {"content": "ok"}]) as server:
        player = opened(policies(server))
        action = native(await next_turn(player))
        assert action.commands == (kept["command"],)
        player.answered(action, ["out"])
        await next_turn(player)
    (call,) = server.requests[1]["messages"][-2]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == kept


async def test_thinking_and_cut_off_turns_are_kept(policies: MakePolicy) -> None:
    with ChatServer([{"content": "I sta", "reasoning": "hm </think> hm", "finish": "length"}]) as server:
        completion = await next_turn(opened(policies(server)))
    assert completion.cut_off
    assert (native(completion).kind, native(completion).thinking) == ("malformed", "hm </think> hm")
    renderer = get_renderer("qwen3")
    assert completion.native is not None
    action = renderer.parse_text(renderer.turn_text(completion.native), truncated=True)
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


async def test_the_key_is_the_given_one_or_the_providers(policies: MakePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "openais")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "deepseeks")
    keys = {"deepseek/deepseek-chat": "deepseeks", "openai/some-model": "openais", "org/some-model": "openais"}
    with ChatServer([{"content": "hi"}]) as server:
        for model, key in keys.items():
            await next_turn(opened(policies(server, model)))
            assert server.authorizations == {f"Bearer {key}"}
            server.authorizations.clear()
        await next_turn(opened(policies(server, api_key="sesame")))
        assert server.authorizations == {"Bearer sesame"}


async def test_the_tool_is_sent_also_where_litellm_lists_none(policies: MakePolicy) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        error = {"message": "this model does not support tools", "type": "invalid_request_error"}
        return {"status": 400, "error": error} if "tools" in body else {"content": "hi"}

    refused = pytest.raises(UsageError, match=r"does not support tools; .*--no-tools")
    with ChatServer(reply, whole=True) as server, refused:
        await next_turn(opened(policies(server, "perplexity/sonar", api_key="k")))
