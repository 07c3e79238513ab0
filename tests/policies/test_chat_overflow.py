"""Every known wording of a full context, as a service sends it."""

from __future__ import annotations

import json

import pytest

from rtl_agent_gym.errors import RequestRefused, UsageError
from tests.policies.chatting import MakePolicy, opened, replied
from tests.policies.service_messages import OVERFLOW, OVERFLOW_MESSAGES
from tests.policies.stub_server import ChatServer, Reply, call, head

SERVICES = [pytest.param(message, id=source[:40]) for message, source in OVERFLOW_MESSAGES]
PLACES = [(400, False), (400, True), (413, False), (422, False), (500, False)]
LLAMA_CPP = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
BY_CODE = {"message": "Provider returned error", "type": "invalid_request_error", "code": "context_length_exceeded"}


async def ends_its_episode(policies: MakePolicy, refusal: Reply, *, stream: bool = False) -> None:
    """A second turn that is refused like this is a full context, and is not sent again."""
    with ChatServer([call("ls"), refusal]) as server:
        player = opened(policies(server, attempts=3, stream=stream))
        await replied(player, "x")
        assert await player.act([]) is None
        assert len(server.requests) == 2


@pytest.mark.parametrize("message", SERVICES)
async def test_a_full_context_ends_the_episode(policies: MakePolicy, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "code": 400}
    await ends_its_episode(policies, {"status": 400, "error": error})


@pytest.mark.parametrize(("status", "stream"), PLACES)
async def test_whatever_the_status(policies: MakePolicy, status: int, stream: bool) -> None:
    error = {"message": OVERFLOW, "type": "x", "code": status}
    await ends_its_episode(policies, {"status": status, "error": error}, stream=stream)


@pytest.mark.parametrize(("status", "error"), [(500, LLAMA_CPP), (400, BY_CODE)])
async def test_by_a_servers_error_or_a_code_alone(policies: MakePolicy, status: int, error: dict[str, object]) -> None:
    await ends_its_episode(policies, {"status": status, "error": error})


async def test_in_the_middle_of_a_stream(policies: MakePolicy) -> None:
    error = {"error": {"message": OVERFLOW, "type": "BadRequestError", "code": 400}}
    event = b"data: %s\n\n" % json.dumps(error).encode()
    await ends_its_episode(policies, {"raw": [head(content_type="text/event-stream"), event]}, stream=True)


NGINX = """<html>
<head><title>413 Request Entity Too Large</title></head>
<body><center><h1>413 Request Entity Too Large</h1></center><hr><center>nginx/1.27.5</center></body>
</html>
"""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_that_outgrows_a_proxy(policies: MakePolicy, stream: bool) -> None:
    await ends_its_episode(policies, {"status": 413, "body": NGINX}, stream=stream)


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
