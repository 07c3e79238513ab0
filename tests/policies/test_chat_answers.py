"""What services answer, streamed and not: parallel calls, refusals, reasons to stop, tokens and prices."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.errors import ModelError, UsageError
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.policies.chat import ChatPolicy
from rtl_agent_gym.policies.chat_answers import WITHHELD, Received
from rtl_agent_gym.policies.protocol import Usage
from rtl_agent_gym.renderers import get_renderer
from tests.policies.chatting import MakePolicy, native, next_turn, opened, replied
from tests.policies.service_messages import FILTERS
from tests.policies.stub_server import USAGE, ChatServer, call, events, head, stream_of

both = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@both
async def test_each_of_several_calls_gets_its_tool_message(policies: MakePolicy, stream: bool) -> None:
    renderer = get_renderer("qwen3")
    script = [{**call("pwd", "ls -la", "cat a"), "content": "Look."}, {"content": "Done."}]
    with ChatServer(script) as server:
        player = opened(policies(server, stream=stream, temperature=0.5, max_tokens=33))
        first = await next_turn(player)
        action = native(first)
        assert (action.kind, action.commands, action.text) == ("command", ("pwd", "ls -la", "cat a"), "Look.")
        assert (first.text, first.prompt_tokens, first.output_tokens, first.cut_off) == ("Look.", 100, 20, False)
        assert first.native is not None
        assert renderer.parse_text(renderer.turn_text(first.native)).commands == action.commands  # as it is exported
        player.answered(action, ["1", "2", "3"])
        last = native(await next_turn(player))
        assert (last.kind, last.text) == ("final", "Done.")
    assert [bool(request.get("stream")) for request in server.requests] == [stream, stream]
    request, second = server.requests
    expected = {"model": "org/some-model", "temperature": 0.5, "max_tokens": 33, "seed": 7}
    assert {name: request[name] for name in expected} == expected
    assert request["tools"][0]["function"]["name"] == "execute_bash"
    assert [message["role"] for message in second["messages"][:3]] == ["system", "user", "assistant"]
    assistant, *tools = second["messages"][2:]
    assert [one["function"]["arguments"] for one in assistant["tool_calls"]] == [
        json.dumps({"command": text}) for text in ("pwd", "ls -la", "cat a")
    ]
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in tools] == [
        ("tool", "call_0", "1"), ("tool", "call_1", "2"), ("tool", "call_2", "3"),
    ]  # fmt: skip


@both
async def test_no_id_is_used_twice(policies: MakePolicy, stream: bool) -> None:
    given = ("call00001", "", "call00001", "call00002", "")
    same = {"calls": [("execute_bash", '{"command": "ls"}', id_) for id_ in given]}
    with ChatServer([same, same, {"content": "Done."}]) as server:
        player = opened(policies(server, stream=stream))
        await replied(player, *"12345")
        await replied(player, *"67890")
        await next_turn(player)
    history = server.requests[2]["messages"]
    calls = [one["id"] for message in history for one in message.get("tool_calls", [])]
    assert len(set(calls)) == 10
    assert calls[0] == "call00001"
    assert [message["tool_call_id"] for message in history if message["role"] == "tool"] == calls
    assert all(len(id_) == 9 and id_.isalnum() for id_ in calls)  # the form that Mistral requires


@both
async def test_thinking_goes_back_with_its_turn(policies: MakePolicy, stream: bool) -> None:
    script = [{**call("ls"), "reasoning": "First look."}, call("pwd"), {"content": "Done."}]
    with ChatServer(script) as server:
        player = opened(policies(server, stream=stream))
        await replied(player, "docs")
        await replied(player, "/code")
        await next_turn(player)
    first, second = [one for one in server.requests[2]["messages"] if one["role"] == "assistant"]
    assert first["reasoning_content"] == first["reasoning"] == "First look."
    assert not {"reasoning_content", "reasoning"} & set(second)


REFUSED_THINKING: list[tuple[int, dict[str, Any]]] = [
    (400, {"error": {"message": "'messages.2': property '%s' is unsupported"}}),
    (422, {"detail": [{"loc": ["body", "messages", 2, "assistant", "%s"], "input": "reasoning from the seed"}]}),
]


@pytest.mark.parametrize(("status", "body"), REFUSED_THINKING)
@pytest.mark.parametrize(("name", "other"), [("reasoning_content", "reasoning"), ("reasoning", "reasoning_content")])
async def test_thinking_that_the_service_refuses_is_left_out(
    policies: MakePolicy, status: int, body: dict[str, Any], name: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    def reply(request: dict[str, Any]) -> dict[str, Any]:
        if any(name in message for message in request["messages"]):
            return {"status": status, "body": json.loads(json.dumps(body) % name)}
        return {**call("ls"), "reasoning": "hm"}

    caplog.set_level(logging.WARNING)
    with ChatServer(reply, whole=True) as server:
        player = opened(policies(server))
        await replied(player, "docs")
        await replied(player, "docs")
        await next_turn(player)
        assert len(server.requests) == 4
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("rtl_agent_gym")]
    assert f"sending requests without {name}:" in line
    assert server.requests[3]["messages"][2][other] == "hm"


async def test_calls_over_the_limit_are_answered_too(policies: MakePolicy) -> None:
    with ChatServer([call(*(f"echo {number}" for number in range(10))), {"content": "Done."}]) as server:
        player = opened(policies(server))
        action = native(await next_turn(player))
        assert len(action.commands) == 8
        player.answered(action, [str(number) for number in range(8)])
        await next_turn(player)
    tools = [message for message in server.requests[1]["messages"] if message["role"] == "tool"]
    assert [message["content"] for message in tools[:8]] == [str(number) for number in range(8)]
    assert [message["content"] for message in tools[8:]] == ["[not run; see the results above]"] * 2


async def test_calls_that_all_have_the_index_0_are_told_apart_by_their_ids(policies: MakePolicy) -> None:
    pieces = [
        event.replace(b'"index": 1, "id"', b'"index": 0, "id"') for event in events("m", call("ls"), usage=True)[:-3]
    ]
    second = events("m", {"calls": [("execute_bash", '{"command": "pwd"}', "other")]}, usage=True)[1:]
    with ChatServer([{"raw": [head(content_type="text/event-stream"), *pieces, *second]}]) as server:
        action = native(await next_turn(opened(policies(server, stream=True))))
    assert action.commands == ("ls", "pwd")


@both
async def test_a_refusal_is_the_models_answer(policies: MakePolicy, stream: bool) -> None:
    with ChatServer([{"content": None, "refusal": "I cannot help with that."}]) as server:
        completion = await next_turn(opened(policies(server, stream=stream)))
    assert completion.refused
    assert (native(completion).kind, native(completion).text) == ("final", "I cannot help with that.")


@both
async def test_a_filtered_answer_runs_nothing(policies: MakePolicy, stream: bool) -> None:
    for finish in ("content_filter", "refusal", "sensitive"):
        with ChatServer([{**call("rm -rf /"), "finish": finish}]) as server:
            completion = await next_turn(opened(policies(server, stream=stream)))
        assert completion.refused, finish
        assert (native(completion).kind, native(completion).text) == ("final", WITHHELD)


async def test_nothing_in_a_refusal_is_read_as_a_call(policies: MakePolicy) -> None:
    text = 'No.\n<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'
    with ChatServer([{"content": text, "finish": "content_filter"}]) as server:
        completion = await next_turn(opened(policies(server, tools=False)))
    assert native(completion).commands == ()


@both
async def test_a_content_filters_error_is_a_refusal(policies: MakePolicy, stream: bool) -> None:
    with ChatServer([{"content": "Done."}]) as server:
        for status, error in FILTERS:
            policy = policies(server, stream=stream)
            for place in ("the first request of all", "a later one"):
                server.faults.append({"status": status, "error": error})
                completion = await next_turn(opened(policy))  # if it were asked again, it would be done
                assert (completion.refused, native(completion).kind) == (True, "final"), (error, place)
                assert error["message"] in native(completion).text


@both
async def test_a_turn_at_a_limit_is_cut_off(policies: MakePolicy, stream: bool) -> None:
    for finish in ("length", "max_tokens", "model_context_window_exceeded", "model_length"):
        with ChatServer([{"content": "I will", "finish": finish}]) as server:
            completion = await next_turn(opened(policies(server, stream=stream)))
        assert (completion.cut_off, native(completion).kind) == (True, "malformed"), finish


async def test_a_turn_that_anthropic_cut_off_at_the_end_of_the_context_is_no_final_answer(policies: MakePolicy) -> None:
    body = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "I will"}], "stop_reason": "model_context_window_exceeded",
        "usage": {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 20},
    }  # fmt: skip
    with ChatServer([{"status": 200, "body": body}], path="/v1/messages") as server:
        options = {"base_url": server.url.removesuffix("/v1"), "api_key": "k", "price_input": 1, "price_output": 2}
        completion = await next_turn(opened(policies(server, "anthropic/claude-sonnet-4-5", **options)))
    assert completion.cut_off
    assert (completion.prompt_tokens, completion.cached_tokens, completion.output_tokens) == (100, 60, 20)


@both
async def test_a_turn_in_which_the_service_failed_is_asked_for_again(policies: MakePolicy, stream: bool) -> None:
    for finish in ("error", "network_error", "abort", "insufficient_system_resource"):
        broken = {"content": "I am do", "finish": finish}
        with ChatServer([{"content": "Done."}], faults=[broken, broken]) as server:
            with pytest.raises(ModelError, match=f"finish_reason:? {finish}"):
                await next_turn(opened(policies(server, stream=stream, attempts=1)))
            assert native(await next_turn(opened(policies(server, stream=stream, attempts=2)))).text == "Done."


# ---- tokens and prices


@both
async def test_tokens_and_their_cost(policies: MakePolicy, stream: bool) -> None:
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 60}}
    with ChatServer([{"content": "hi", "usage": usage}]) as server:
        policy = policies(server, stream=stream, price_input=10.0, price_output=100.0, price_cached=1.0)
        completion = await next_turn(opened(policy))
    assert (completion.prompt_tokens, completion.cached_tokens, completion.output_tokens) == (100, 60, 20)
    assert completion.cost == pytest.approx((40 * 10 + 60 * 1 + 20 * 100) / 1e6)


@pytest.mark.parametrize(("total", "output"), [(837, 174), (713, 50)])
def test_thinking_that_is_counted_beside_the_other_tokens_counts(total: int, output: int) -> None:
    """As xAI and Vertex AI count it (docs.cloud.google.com, reasoning for Grok models); OpenAI includes it."""
    details = SimpleNamespace(reasoning_tokens=124)
    counts = {"prompt_tokens": 663, "completion_tokens": 50, "total_tokens": total}
    reported = SimpleNamespace(**counts, completion_tokens_details=details)
    assert Received(reported=reported).usage == Usage(663, output)


@both
async def test_what_is_not_reported_is_unknown_and_not_0(policies: MakePolicy, stream: bool) -> None:
    with ChatServer([{"content": "hi there, this is a text", "usage": None}]) as server:
        completion = await next_turn(opened(policies(server, stream=stream, price_input=1.0, price_output=1.0)))
    assert completion.prompt_tokens is completion.output_tokens is completion.cached_tokens is completion.cost is None


async def test_a_server_without_stream_options_is_asked_without_them(policies: MakePolicy) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        unknown = {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "not permitted"}]}
        return {"status": 422, "body": unknown} if "stream_options" in body else {"content": "hi"}

    with ChatServer(reply, whole=True) as server:
        completion = await next_turn(opened(policies(server, stream=True)))
    assert (completion.text, completion.prompt_tokens) == ("hi", None)


def test_prices_of_litellms_list() -> None:
    policy = ChatPolicy("openai/gpt-4o", ModelOptions(api_key="k"))
    assert policy.prices is not None
    listed = policy._library.model_cost["gpt-4o"]
    wanted = 1000 * listed["input_cost_per_token"] + 50 * listed["output_cost_per_token"]
    assert policy.prices.cost(Usage(1000, 50)) == pytest.approx(wanted)
    reported = policy._library.Usage(1000, 50, prompt_tokens_details={"cached_tokens": 900})
    saved = 900 * (listed["input_cost_per_token"] - listed["cache_read_input_token_cost"])
    assert policy.prices.cost(Usage(1000, 50, 900, reported)) == pytest.approx(wanted - saved)
    assert wanted > saved > 0


def test_a_model_that_the_list_has_by_a_longer_name_has_a_price() -> None:
    policy = ChatPolicy("vertex_ai/qwen/qwen3-coder-480b-a35b-instruct-maas", ModelOptions(api_key="k"))
    assert policy.prices is not None
    assert policy.prices.cost(Usage(1000, 50)) > 0


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("openai/a-model-that-no-list-has", {"api_key": "k"}),
        ("gpt-4o", {"base_url": "http://127.0.0.1:1/v1"}),  # a server of one's own may use any name
    ],
)
def test_an_unknown_price_is_none(model: str, options: dict[str, Any]) -> None:
    assert ChatPolicy(model, ModelOptions(**options)).prices is None


# ---- parameters that a service does not know


@both
async def test_the_limit_on_an_answer_is_renamed_once(
    policies: MakePolicy, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        error = {"message": message, "type": "invalid_request_error", "param": "max_tokens"}
        return {"status": 400, "error": error} if "max_tokens" in body else {"content": "hi"}

    with ChatServer(reply, whole=True) as server:
        policy = policies(server, stream=stream, max_tokens=77)
        for _ in range(2):
            assert (await next_turn(opened(policy))).text == "hi"
    assert [request.get("max_tokens") for request in server.requests] == [77, None, None]
    assert [request.get("max_completion_tokens") for request in server.requests] == [None, 77, 77]
    assert sum("max_completion_tokens" in record.getMessage() for record in caplog.records) == 1


NO_OVERFLOWS = [
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you gave 100000.",
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet",
    "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) value is supported.",
    "Invalid 'messages[3].content': string too short",
]


@both
async def test_a_request_that_nothing_will_change_ends_with_one_line(policies: MakePolicy, stream: bool) -> None:
    tool_choice = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    for status, message, advice in (
        (401, "Incorrect API key provided", "check --api-key"),
        (403, "You do not have access to this model", "no right to use this model"),
        (404, "The model `m` does not exist", "check the model's name and --base-url"),
        (400, tool_choice, "--no-tools"),
        *((400, message, "") for message in NO_OVERFLOWS),
        (422, "Field required", ""),
    ):
        error = {"message": message, "type": "invalid_request_error"}
        with ChatServer([{"status": status, "error": error}]) as server:
            with pytest.raises(UsageError) as raised:
                await next_turn(opened(policies(server, stream=stream)))
            assert len(server.requests) == 1
        assert f"refused the request: {message}" in str(raised.value)
        assert advice in str(raised.value)
        assert "\n" not in str(raised.value)


# ---- what litellm or a service would make of an answer


async def test_a_model_that_repeats_itself_in_a_stream_is_cut_off_and_no_fault(policies: MakePolicy) -> None:
    """litellm ends a stream with the same piece 100 times as a failure of the service."""
    with ChatServer([{"content": "1234567" * 300, "finish": "length"}]) as server:
        completion = await next_turn(opened(policies(server, stream=True, attempts=1)))
    assert completion.cut_off
    assert completion.text == "1234567" * 300


@both
@pytest.mark.parametrize("text", ["<think>\nHm.\n</think>\n\n", "<think>Hm.</think>Done."])
async def test_thinking_in_the_text_is_thinking(policies: MakePolicy, stream: bool, text: str) -> None:
    with ChatServer([{"content": text}]) as server:
        action = native(await next_turn(opened(policies(server, stream=stream))))
    assert action.thinking == "Hm."
    assert (action.kind, action.text) == (("final", "Done.") if "Done" in text else ("malformed", ""))


@both
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("execute_bash", '{"command": "ls", "n": ' + "1" * 5000 + "}"), ("multi_tool_use.parallel", "{}")],
    ids=["long number", "parallel"],
)
async def test_a_call_that_litellm_cannot_read_is_answered(
    policies: MakePolicy, stream: bool, name: str, arguments: str
) -> None:
    with ChatServer([{"content": "", "calls": [(name, arguments)]}, {"content": "Done."}]) as server:
        player = opened(policies(server, stream=stream, attempts=1))
        action = native(await next_turn(player))
        assert action.kind == "malformed"
        player.answered(action, [])
        assert native(await next_turn(player)).kind == "final"


UNREAD: list[tuple[int, dict[str, Any]]] = [
    (500, {"message": "error parsing tool call: raw='ls -R', err=invalid character 'l' looking for a value"}),
    (500, {"message": "Failed to parse input at pos 12: </tool_call>", "type": "server_error", "code": 500}),
    (400, {"message": "Failed to call a function. Please adjust your prompt.", "type": "invalid_request_error"}),
    (400, {"message": "attempted to call tool 'x' which was not in request.tools", "code": "tool_use_failed"}),
]


@both
async def test_a_call_that_the_service_cannot_read_is_answered(policies: MakePolicy, stream: bool) -> None:
    with ChatServer([{"content": "Done."}]) as server:
        for status, error in UNREAD:
            server.faults.append({"status": status, "error": error})
            player = opened(policies(server, stream=stream, attempts=1, price_input=1.0, price_output=1.0))
            completion = await next_turn(player)
            action = native(completion)
            assert (action.kind, completion.refused, completion.cost) == ("malformed", False, 0.0)  # as of other errors
            assert error["message"][:20] in str(action.correction)
            player.answered(action, [])
            assert native(await next_turn(player)).kind == "final"
            (called,) = server.requests[-1]["messages"][-2]["tool_calls"]
            assert called["function"] == {"name": "execute_bash", "arguments": "{}"}


@both
async def test_a_call_of_a_custom_tool_is_answered(policies: MakePolicy, stream: bool) -> None:
    custom = {"id": "a", "type": "custom", "custom": {"name": "execute_bash", "input": "ls"}}
    if stream:
        delta = {"role": "assistant", "tool_calls": [{"index": 0, **custom}]}
        first: dict[str, Any] = {
            "raw": [head(content_type="text/event-stream"), *stream_of("m", [delta], "tool_calls")]
        }
    else:
        message = {"role": "assistant", "content": None, "tool_calls": [custom]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        first = {"status": 200, "body": body}
    with ChatServer([first, {"content": "Done."}]) as server:
        player = opened(policies(server, stream=stream, attempts=1))
        action = native(await next_turn(player))
        assert (action.kind, action.commands) == ("malformed", ())
        player.answered(action, [])
        assert native(await next_turn(player)).kind == "final"


async def test_lone_surrogates_are_sent_back_as_what_can_be_sent(policies: MakePolicy) -> None:
    """A server may split a character above U+FFFF between two pieces of a stream."""
    halves = [{"content": "Look \ud83d"}, {"content": "\ude42 and \ud83d"}]
    raw = {"raw": [head(content_type="text/event-stream"), *stream_of("m", halves, "stop")]}
    with ChatServer([raw, {"content": "Done."}]) as server:
        player = opened(policies(server, stream=True, attempts=1))
        await next_turn(player)
        player._history.append({"role": "user", "content": "Go on."})
        assert native(await next_turn(player)).text == "Done."
    assert server.requests[1]["messages"][-2]["content"] == "Look 🙂 and �"


async def test_a_reason_to_stop_that_is_not_known_hides_none_that_is(policies: MakePolicy) -> None:
    message = {"role": "assistant", "content": "I will"}
    for finish, own, cut_off, refused in (
        ("length", "max_output_tokens", True, False),  # OpenRouter's answers have the provider's word, too
        ("content_filter", "PROHIBITED_CONTENT", False, True),
        ("PROHIBITED_CONTENT", None, False, True),
        ("stop", "completed", False, False),
        ("stop", "MAX_TOKENS", True, False),
    ):
        choice = {"index": 0, "message": message, "finish_reason": finish, "native_finish_reason": own}
        body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
        with ChatServer([{"status": 200, "body": body}]) as server:
            completion = await next_turn(opened(policies(server)))
        assert (completion.cut_off, completion.refused) == (cut_off, refused), (finish, own)
