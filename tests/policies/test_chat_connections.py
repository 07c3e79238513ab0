"""Connections that end, stall or answer nonsense; waits that services ask for."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

import pytest

from rtl_agent_gym.errors import ModelError, UsageError
from rtl_agent_gym.policies import ModelOptions, make_policy
from rtl_agent_gym.policies.chat import MAX_REQUESTED_WAIT, ChatPolicy, wait_before
from rtl_agent_gym.policies.chat_answers import read_failure, requested_wait
from rtl_agent_gym.retries import CHAT
from tests.policies.chatting import MakePolicy, native, next_turn, opened
from tests.policies.stub_server import ChatServer, Step, body_of, call, events, head

ANSWER = body_of({"content": "I am do"})
EVENTS = events("m", {"content": "I am done with it"}, usage=True)
SSE = head(content_type="text/event-stream")
DIED = b'data: {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}\n\n'
SLOW = [piece for byte in ANSWER[:60] for piece in (bytes([byte]), 0.1)]

BROKEN: dict[str, tuple[bool, Sequence[Step]]] = {
    "closed before the answer": (False, []),
    "reset before the answer": (False, ["rst"]),
    "closed in the head": (False, [b"HTTP/1.1 200 OK\r\ncontent-ty"]),
    "closed in the body": (False, [head(content_length=len(ANSWER)), ANSWER[:40]]),
    "reset in the body": (False, [head(content_length=len(ANSWER)), ANSWER[:40], 0.1, "rst"]),
    "another protocol": (False, [b"SSH-2.0-OpenSSH_9.2\r\n"]),
    "silent": (False, [4.0]),
    "trickling": (False, [head(content_length=len(ANSWER)), *SLOW]),
    "stream without an event": (True, [SSE]),
    "stream closed in the middle": (True, [SSE, *EVENTS[:3]]),
    "stream closed in an event": (True, [SSE, *EVENTS[:3], EVENTS[3][:20]]),
    "stream reset in the middle": (True, [SSE, *EVENTS[:3], 0.1, "rst"]),
    "stream closed in the chunked encoding": (
        True,
        [
            head(content_type="text/event-stream", transfer_encoding="chunked"),
            b"%x\r\n%s\r\n" % (len(EVENTS[0]), EVENTS[0]),
        ],
    ),
    "stream that falls silent": (True, [SSE, *EVENTS[:3], 4.0]),
    "stream that trickles comments": (True, [SSE, *[part for _ in range(40) for part in (b": ping\n\n", 0.1)]]),
    "stream with an error": (True, [SSE, *EVENTS[:3], DIED]),
}


@pytest.fixture(autouse=True)
async def imported(policies: MakePolicy) -> None:
    """litellm imports most of itself during its first request, which takes longer than these tests let one take."""

    async def play(policy: ChatPolicy) -> None:
        await next_turn(opened(policy))
        await policy.close()

    for stream in () if _ready else (False, True):
        with ChatServer([{"content": "hi"}]) as server:
            # On a loop of its own: the test's loop has not sent anything yet.
            await asyncio.to_thread(asyncio.run, play(policies(server, stream=stream)))
    _ready.append(True)


_ready: list[bool] = []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_answer_is_a_fault_and_asked_for_again(policies: MakePolicy, name: str) -> None:
    stream, steps = BROKEN[name]
    with ChatServer([{"content": "Done."}], faults=[{"raw": steps}] * 2) as server:
        policy = policies(server, stream=stream, attempts=1, request_timeout=1.0)
        with pytest.raises(ModelError, match=r"did not answer: .") as raised:
            await next_turn(opened(policy))
        assert "\n" not in str(raised.value)
        policy = policies(server, stream=stream, attempts=2, request_timeout=2.0)
        assert native(await next_turn(opened(policy))).text == "Done."
        assert len(server.arrived) == 3


async def test_a_stream_that_ends_after_the_reason_to_stop_is_complete(policies: MakePolicy) -> None:
    with ChatServer([{"raw": [SSE, *EVENTS[:-2], 0.1, "rst"]}]) as server:
        completion = await next_turn(opened(policies(server, stream=True, attempts=1)))
    assert native(completion).text == "I am done with it"


async def test_a_call_that_is_cut_in_a_stream_is_not_run(policies: MakePolicy) -> None:
    fault = {**call("rm a", "rm b"), "cut": 5}
    with ChatServer([call("ls")], faults=[fault]) as server:
        assert native(await next_turn(opened(policies(server, stream=True, attempts=2)))).commands == ("ls",)


async def test_a_host_that_does_not_resolve_is_said_at_once(policies: MakePolicy) -> None:
    policy = make_policy("chat:openai/m@http://no-such-host.invalid/v1")
    assert isinstance(policy, ChatPolicy)
    with pytest.raises(UsageError) as raised:
        await next_turn(opened(policy))
    words = (
        r"chat:openai/m cannot be reached: the host no-such-host\.invalid cannot be resolved \(.+\); check --base-url.*"
    )
    assert re.fullmatch(words, str(raised.value))


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_the_host_is_named_whichever_http_library_could_not_resolve_it(name: str) -> None:
    library = pytest.importorskip(name)
    error = library.ConnectError("", request=library.Request("POST", "http://no-such-host.invalid/v1"))
    error.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    failure = read_failure(None, error)
    assert failure.kind == "unresolved"
    assert str(failure) == "the host no-such-host.invalid cannot be resolved (Name or service not known)"


async def test_a_host_that_has_answered_is_asked_for_again(policies: MakePolicy) -> None:
    policy = ChatPolicy("m", ModelOptions(base_url="http://no-such-host.invalid/v1", attempts=2))
    policy._has_answered = True  # until its name server is away
    with pytest.raises(
        ModelError, match=r"did not answer in 2 tries: the host no-such-host\.invalid cannot be resolved"
    ):
        await next_turn(opened(policy))


async def test_the_last_policy_closes_the_connections_that_it_shares(policies: MakePolicy) -> None:
    with ChatServer([{"content": "hi"}]) as server, ChatServer([{"content": "ho"}]) as elsewhere:
        first, second = policies(server), policies(elsewhere)
        cache: dict[str, Any] = first._library.in_memory_llm_clients_cache.cache_dict
        before = set(cache)
        assert native(await next_turn(opened(first))).text == "hi"
        assert native(await next_turn(opened(second))).text == "ho"
        clients = [cache[key] for key in set(cache) - before]
        assert clients
        for _ in range(2):
            await first.close()
        assert native(await next_turn(opened(second))).text == "ho"
        assert not any(client.is_closed() for client in clients)
        await second.close()
        assert all(client.is_closed() for client in clients)
        assert set(cache) == before


async def test_connections_of_an_ended_loop_with_the_same_key_are_not_used(
    policies: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How litellm's keys name a loop differs between its versions."""
    with ChatServer([{"content": "hi"}]) as server:
        policy = policies(server)
        clients = policy._library.in_memory_llm_clients_cache
        monkeypatch.setattr(clients, "update_cache_key_with_event_loop", "{}-7".format)
        cache: dict[str, Any] = clients.cache_dict
        before = set(cache)
        cache["left-7"] = object()
        assert native(await next_turn(opened(policy))).text == "hi"
        assert "left-7" not in cache
        await policy.close()
        assert set(cache) == before


async def test_a_policy_closes_no_connection_while_another_waits_for_its_answer(policies: MakePolicy) -> None:
    slow = [head(content_length=len(ANSWER)), ANSWER[:40], 1.0, ANSWER[40:]]
    with ChatServer([{"content": "hi"}]) as server, ChatServer([{"raw": slow}]) as elsewhere:
        first = policies(server)
        await next_turn(opened(first))
        waiting = asyncio.ensure_future(next_turn(opened(policies(elsewhere, attempts=1))))
        while not elsewhere.arrived:
            await asyncio.sleep(0.01)
        await first.close()
        assert native(await waiting).text == "I am do"


# ---- waits

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-5"}, None),
        ({"x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-tokens": "12ms"}, 0.012),
        ({"x-ratelimit-reset-tokens": "1h2m3.5s"}, 3723.5),
        ({"x-ratelimit-reset": str(int(NOW + 12))}, 12.0),
        ({"x-ratelimit-reset": str(int(1000 * (NOW + 12)))}, 12.0),
        ({"ratelimit-reset": "40"}, 40.0),
        ({"anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:20Z"}, 20.0),
        # the limit that is used up decides
        (
            {
                "x-ratelimit-remaining-requests": "99",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "20s",
            },
            20.0,
        ),
        ({"x-ratelimit-remaining-requests": "99", "x-ratelimit-reset-requests": "1s"}, None),
        ({"x-ratelimit-reset-requests": "9s", "x-ratelimit-reset-tokens": "4s"}, 4.0),
        ({"retry-after": "3", "x-ratelimit-reset-tokens": "4s"}, 3.0),
        ({"x-ratelimit-reset-requests": ""}, None),
        ({}, None),
    ],
)
def test_what_a_service_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    found = requested_wait(headers, limited=True, now=NOW)
    assert found == (None if seconds is None else pytest.approx(seconds, abs=0.01))


def test_a_reset_says_nothing_about_a_broken_service() -> None:
    assert requested_wait({"x-ratelimit-reset-requests": "12ms"}, limited=False) is None


def test_waits_are_bounded_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtl_agent_gym.policies.chat.CHAT", CHAT)
    backoffs = {attempt: [wait_before(attempt, None) for _ in range(300)] for attempt in (1, 4, 50)}
    assert max(backoffs[1]) <= 1.0 < max(backoffs[4]) <= 8.0 < max(backoffs[50]) <= 60.0
    for requested in (0.0, 0.3):  # or every try would be used up in seconds
        assert max(wait_before(7, requested) for _ in range(300)) > 8.0
    asked = [wait_before(1, 20.0) for _ in range(100)]
    assert 20.0 <= min(asked) < max(asked) <= 21.0
    assert all(MAX_REQUESTED_WAIT <= wait_before(1, 1e9) <= MAX_REQUESTED_WAIT + 1 for _ in range(20))


@pytest.mark.parametrize(
    ("headers", "stream"),
    [
        ({"retry-after-ms": "600"}, False),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "600ms"}, True),
        ({"retry-after": "DATE"}, False),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_the_policy_waits_as_long_as_it_is_asked_to(
    policies: MakePolicy, headers: dict[str, Any], stream: bool
) -> None:
    if headers.get("retry-after") == "DATE":
        headers = {"retry-after": formatdate(time.time() + 4, usegmt=True)}  # in whole seconds: between 3 and 4
    busy = {"status": 429, "error": {"message": "slow down"}, "headers": headers}
    with ChatServer([{"content": "hi"}], faults=[busy]) as server:
        await next_turn(opened(policies(server, stream=stream, attempts=2)))
        first, second = server.arrived
    assert 0.6 <= second - first < 60.0
