"""Every known wording of a full context, as a service sends it."""

from __future__ import annotations

import json

import pytest

from rtl_agent_gym.errors import UsageError
from tests.policies.chatting import MakePolicy, opened, replied
from tests.policies.service_messages import OVERFLOW, OVERFLOW_MESSAGES
from tests.policies.stub_server import ChatServer, Reply, call, head

LLAMA_CPP = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
BY_CODE = {"message": "Provider returned error", "type": "invalid_request_error", "code": "context_length_exceeded"}


async def ends_its_episode(policies: MakePolicy, *refusals: Reply, stream: bool = False) -> None:
    """A later turn that is refused like one of these is a full context, and is not sent again."""
    with ChatServer([call("ls")]) as server:
        policy = policies(server, attempts=3, stream=stream)
        await replied(opened(policy), "x")
        for number, refusal in enumerate(refusals, 2):
            server.faults.append(refusal)
            assert await opened(policy).act([]) is None, refusal
            assert len(server.arrived) == number


async def test_a_full_context_ends_the_episode(policies: MakePolicy) -> None:
    errors = [{"message": message, "type": "BadRequestError", "code": 400} for message, _ in OVERFLOW_MESSAGES]
    await ends_its_episode(policies, *({"status": 400, "error": error} for error in errors))


async def test_whatever_the_status_and_by_a_code_alone(policies: MakePolicy) -> None:
    errors = {status: {"message": OVERFLOW, "type": "x", "code": status} for status in (400, 413, 422, 500)}
    more = [{"status": 500, "error": LLAMA_CPP}, {"status": 400, "error": BY_CODE}, {"status": 413, "body": NGINX}]
    refusals = [{"status": status, "error": error} for status, error in errors.items()]
    await ends_its_episode(policies, *refusals, *more)
    await ends_its_episode(policies, refusals[0], more[-1], stream=True)


async def test_in_the_middle_of_a_stream(policies: MakePolicy) -> None:
    error = {"error": {"message": OVERFLOW, "type": "BadRequestError", "code": 400}}
    event = b"data: %s\n\n" % json.dumps(error).encode()
    await ends_its_episode(policies, {"raw": [head(content_type="text/event-stream"), event]}, stream=True)


NGINX = """<html>
<head><title>413 Request Entity Too Large</title></head>
<body><center><h1>413 Request Entity Too Large</h1></center><hr><center>nginx/1.27.5</center></body>
</html>
"""
"""Of a proxy, which a conversation outgrows."""


async def test_a_first_request_that_is_too_large_is_wrong(policies: MakePolicy) -> None:
    message = "refused the request: 413 Request Entity Too Large"
    with ChatServer([{"status": 413, "body": NGINX}]) as server, pytest.raises(UsageError, match=message):
        await opened(policies(server, attempts=1)).act([])
