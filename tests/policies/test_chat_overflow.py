"""Every known wording of a full context, as a service sends it."""

from __future__ import annotations

import json
import re

import pytest

from rtl_agent_gym.errors import RequestRefused, UsageError
from rtl_agent_gym.policies.chat_overflow import WORDINGS, Wording, says_overflow
from tests.policies.chatting import MakePolicy, opened, replied
from tests.policies.stub_server import ChatServer, call, head

PLACES = [(400, False), (400, True), (413, False), (422, False), (500, False)]


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda wording: wording.source[:40])
async def test_a_full_context_ends_the_episode(policies: MakePolicy, wording: Wording) -> None:
    refusal = {"status": 400, "error": {"message": wording.example, "type": "BadRequestError", "code": 400}}
    with ChatServer([call("ls"), refusal]) as server:
        player = opened(policies(server, attempts=1))
        await replied(player, "x")
        assert await player.act([]) is None


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda wording: wording.source[:40])
def test_each_wording_has_its_pattern(wording: Wording) -> None:
    assert re.search(wording.pattern, wording.example, re.IGNORECASE)
    assert says_overflow(wording.example)


@pytest.mark.parametrize(("status", "stream"), PLACES)
async def test_whatever_the_status(policies: MakePolicy, status: int, stream: bool) -> None:
    refusal = {"status": status, "error": {"message": WORDINGS[0].example, "type": "x", "code": status}}
    with ChatServer([call("ls"), refusal]) as server:
        player = opened(policies(server, attempts=1, stream=stream))
        await replied(player, "x")
        assert await player.act([]) is None


async def test_llama_cpp_says_it_with_a_servers_error(policies: MakePolicy) -> None:
    error = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
    with ChatServer([call("ls"), {"status": 500, "error": error}]) as server:
        player = opened(policies(server, attempts=3))
        await replied(player, "x")
        assert await player.act([]) is None
        assert len(server.requests) == 2  # which is not repeated


NGINX = """<html>
<head><title>413 Request Entity Too Large</title></head>
<body><center><h1>413 Request Entity Too Large</h1></center><hr><center>nginx/1.27.5</center></body>
</html>
"""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_that_outgrows_a_proxy(policies: MakePolicy, stream: bool) -> None:
    with ChatServer([call("ls"), {"status": 413, "body": NGINX}]) as server:
        player = opened(policies(server, attempts=1, stream=stream))
        await replied(player, "x")
        assert await player.act([]) is None


async def test_a_first_request_that_is_too_large_is_wrong(policies: MakePolicy) -> None:
    message = "refused the request: 413 Request Entity Too Large"
    with ChatServer([{"status": 413, "body": NGINX}]) as server, pytest.raises(UsageError, match=message):
        await opened(policies(server, attempts=1)).act([])


async def test_a_limit_of_the_account_is_no_full_context(policies: MakePolicy) -> None:
    error = {"message": "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000"}
    with ChatServer([call("ls"), {"status": 413, "error": error}]) as server:
        player = opened(policies(server, attempts=1))
        await replied(player, "x")
        with pytest.raises(RequestRefused, match="too large for model"):
            await player.act([])


async def test_in_the_middle_of_a_stream(policies: MakePolicy) -> None:
    error = {"error": {"message": WORDINGS[0].example, "type": "BadRequestError", "code": 400}}
    event = b"data: %s\n\n" % json.dumps(error).encode()
    with ChatServer([call("ls"), {"raw": [head(content_type="text/event-stream"), event]}]) as server:
        player = opened(policies(server, attempts=1, stream=True))
        await replied(player, "x")
        assert await player.act([]) is None


async def test_a_code_alone_is_enough(policies: MakePolicy) -> None:
    error = {"message": "Provider returned error", "type": "invalid_request_error", "code": "context_length_exceeded"}
    with ChatServer([call("ls"), {"status": 400, "error": error}]) as server:
        player = opened(policies(server, attempts=1))
        await replied(player, "x")
        assert await player.act([]) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_own_protocol(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    from rtl_agent_gym.policies import ModelOptions
    from rtl_agent_gym.policies.chat import ChatPolicy

    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}}
    with ChatServer([{"status": 400, "body": body}], path="/v1/messages") as server:
        options = ModelOptions(base_url=server.url.removesuffix("/v1"), api_key="k", attempts=1, stream=stream)
        policy = ChatPolicy("anthropic/claude-sonnet-4-5", options)
        assert await opened(policy).act([]) is None
        await policy.close()
