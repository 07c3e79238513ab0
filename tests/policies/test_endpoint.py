"""The endpoint for other people's agents, as OpenAI's own client sees it. The sampler is scripted."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

openai = pytest.importorskip("openai", reason="the extra `chat` is not installed")

from rtl_agent_gym.errors import ModelError, RequestRefused, UsageError  # noqa: E402
from rtl_agent_gym.policies import ModelOptions  # noqa: E402
from rtl_agent_gym.policies.apis import Api  # noqa: E402
from rtl_agent_gym.policies.apis.completions import ChatCompletions  # noqa: E402
from rtl_agent_gym.policies.apis.messages import AnthropicMessages  # noqa: E402
from rtl_agent_gym.policies.apis.responses import OpenAIResponses  # noqa: E402
from rtl_agent_gym.policies.chat import _litellm  # noqa: E402
from rtl_agent_gym.policies.endpoint import Line, ModelEndpoint  # noqa: E402
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy  # noqa: E402
from rtl_agent_gym.policies.streams import Answer, ContextFull  # noqa: E402
from rtl_agent_gym.renderers.chat import ChatDialect  # noqa: E402
from tests.waiting import soon  # noqa: E402

from .test_streams import BASH, SYSTEM, TASK, Scripted, in_json, result, streams, vocabulary  # noqa: E402


@asynccontextmanager
async def served(texts: Sequence[str | Exception], **options: Any) -> AsyncIterator[tuple[Any, Line, ModelEndpoint]]:
    """OpenAI's client at an episode's address, whose model says these texts."""
    sampler: Any = Scripted(vocabulary("qwen3"), list(texts))
    policy = TokenSamplerPolicy(sampler, name="scripted", options=ModelOptions(**options))
    async with ModelEndpoint(policy, "qwen3") as endpoint:
        line = endpoint.open(seed=1)
        async with openai.AsyncOpenAI(base_url=line.url, api_key="none", max_retries=0) as client:
            yield client, line, endpoint


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_with_the_openai_client(stream: bool) -> None:
    texts = ["<think>\nHm.\n</think>\n\nI look.\n" + in_json("ls"), "Done.<|im_end|>"]
    async with served(texts) as (client, line, _):
        messages: list[dict[str, Any]] = [SYSTEM, TASK]
        found = []
        for _ in texts:
            asked = {"model": "any", "messages": messages, "tools": [BASH], "temperature": 0}
            if stream:
                chunks = [chunk async for chunk in await client.chat.completions.create(stream=True, **asked)]
                delta = chunks[0].choices[0].delta.model_dump(exclude_none=True)
                delta["tool_calls"] = [{**one, "index": None} for one in delta.get("tool_calls", [])]
                message = {key: value for key, value in delta.items() if value}
                ends = [chunk.choices[0].finish_reason for chunk in chunks]
                assert ends[:-1] == [None] * (len(ends) - 1)
                found.append((message, ends[-1]))
            else:
                answer = await client.chat.completions.create(**asked)
                message = answer.choices[0].message.model_dump(exclude_none=True)
                assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
                found.append((message, answer.choices[0].finish_reason))
            if "tool_calls" in message:
                messages = [*messages, message, *result(message, "rtl\n")]
        (first, why), (last, end) = found
        assert (first["content"], first["reasoning_content"].strip(), why) == ("I look.", "Hm.", "tool_calls")
        assert first["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
        assert (last["content"], end) == ("Done.", "stop")
        assert line.streams.numbers() == {"tokens/streams": 1.0, "tokens/breaks": 0.0}


REFUSED: list[tuple[str, Any]] = [
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "bash"}}),
    ("n", 2),
    ("logit_bias", {"7": 1}),
    ("stop", ["\n"]),
    ("response_format", {"type": "json_object"}),
    ("max_tokens", 0),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
    ("messages", [{"role": "robot", "content": "hi"}]),
    ("messages", []),
    ("messages", [{"role": "tool", "content": "x"}]),
    ("messages", [{"role": "assistant", "tool_calls": 7}, {"role": "user", "content": "x"}]),
    ("messages", [{"role": "assistant", "tool_calls": [{"id": {}, "function": {"name": "x"}}]}]),
    ("messages", [{"role": "assistant", "tool_calls": {"id": "a", "function": {"name": "x"}}}, TASK]),
    ("messages", [{"role": "assistant", "tool_calls": {}}, TASK]),
    ("tools", 7),
    ("tools", BASH),
    ("tools", {}),
    ("stream_options", 7),
]


async def test_what_would_change_the_meaning_is_refused() -> None:
    async with served([]) as (client, line, _):
        for name, value in REFUSED:
            asked = {"model": "any", "messages": [SYSTEM, TASK], "tools": [BASH]} | {name: value}
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**asked)
            assert name in str(caught.value)
            assert name in line.refused
            assert line.fault is None
            assert not line.streams.transcripts()


async def test_a_secret_is_needed_and_ends_with_the_episode() -> None:
    async with served(["Done.<|im_end|>"]) as (client, line, endpoint), httpx.AsyncClient() as http:
        assert (await http.get(f"{line.url}/models")).json()["data"][0]["id"] == "policy"
        begin, secret, _ = line.url.rsplit("/", 2)
        for wrong in ("x", secret[:-1], secret + "x"):
            reply = await http.post(f"{begin}/{wrong}/v1/chat/completions", json={"messages": [TASK]})
            assert reply.status_code == 404
        assert (await http.post(f"{line.url}/chat/completions", content=b"{")).status_code == 400
        endpoint.end(line)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="any", messages=[TASK])


async def test_a_request_that_the_episodes_end_ends_was_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the agent's last turn would name it as the reason."""
    async with served([]) as (client, line, endpoint):

        async def over(*_: object) -> None:
            endpoint.end(line)
            raise UsageError("the episode is over")

        monkeypatch.setattr(line.streams, "answer", over)
        with pytest.raises(openai.BadRequestError, match="the episode is over"):
            await client.chat.completions.create(model="any", messages=[TASK])
        assert line.refused == ""


async def test_a_model_that_does_not_answer_is_a_fault_and_a_full_context_is_none() -> None:
    texts: list[str | Exception] = [ModelError("no connection"), RequestRefused("too odd"), "Done.<|im_end|>"]
    async with served(texts, max_context=600) as (client, line, _):
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="any", messages=[TASK])
        assert isinstance(line.fault, ModelError)
        line.fault = None
        with pytest.raises(openai.BadRequestError, match="too odd"):
            await client.chat.completions.create(model="any", messages=[TASK])
        assert isinstance(line.fault, RequestRefused)  # by the engine: whatever the agent asked for, it is no grade
        line.fault = None
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x " * 900}])
        assert caught.value.code == "context_length_exceeded"
        assert (line.fault, line.full, line.refused) == (None, True, "")
        line.refused = "tools: expected a list of functions"
        await client.chat.completions.create(model="any", messages=[TASK])
        assert (line.full, line.refused) == (False, "")  # what comes after an answer has another cause


@pytest.mark.parametrize(("api", "provider"), [(ChatCompletions(), "openai"), (AnthropicMessages(), "anthropic")])
def test_litellm_reads_a_full_context_in_its_words(api: Api, provider: str) -> None:
    """Agents that ask through LiteLLM shorten their conversation for this exception alone."""
    litellm = _litellm()
    episode, _ = streams("qwen3", [], max_context=600)
    with pytest.raises(ContextFull) as caught:
        episode.check_length(b"x" * 200_000)
    body = api.error(str(caught.value), "context_length_exceeded")
    refused = httpx.Response(400, json=body, request=httpx.Request("POST", "http://127.0.0.1"))
    error = openai.BadRequestError(f"Error code: 400 - {body}", response=refused, body=body["error"])
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.exception_type(model="policy", original_exception=error, custom_llm_provider=provider)


EMPTY = {"role": "user", "content": ""}
MANY: dict[str, Any] = {
    "messages": {"messages": [EMPTY] * 700},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 700}]},
    "items": {"input": [EMPTY] * 700},
    "no messages": {"messages": [0] * 700},
    "fields": {"messages": [TASK | {str(number): 0 for number in range(3000)}]},
    "bytes": {"messages": [TASK], "metadata": "x" * 200_000},
}


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/messages/count_tokens", "/responses"])
async def test_what_no_context_has_room_for_is_refused_before_it_is_validated(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[dict[str, Any]] = []

    def reading(self: Api, body: dict[str, Any]) -> Any:
        read.append(body)
        raise UsageError("it is too late")

    for api in (ChatCompletions, AnthropicMessages, OpenAIResponses):
        monkeypatch.setattr(api, "read", reading)
    async with served([], max_context=600) as (_, line, _), httpx.AsyncClient() as http:
        for many, body in MANY.items():
            line.full = False
            reply = await http.post(f"{line.url}{path}", json=body)
            assert (reply.status_code, line.full, read) == (400, True, []), many
            assert "no room for another turn" in reply.json()["error"]["message"]
        few = {"messages": [EMPTY, TASK] * 60, "tools": [BASH]}
        await http.post(f"{line.url}{path}", json=few)
        assert read == [few]


async def test_a_compressed_body_is_not_unpacked() -> None:
    asked = gzip.compress(json.dumps({"messages": [TASK]}).encode())
    async with served([]) as (_, line, _), httpx.AsyncClient() as http:
        reply = await http.post(f"{line.url}/chat/completions", content=asked, headers={"Content-Encoding": "gzip"})
        assert (reply.status_code, line.refused) == (400, "the body is not JSON")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("path", ["/chat/completions", "/messages/count_tokens"])
async def test_who_gets_no_answer_waits_longer_than_the_request_took(
    path: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are rendered on the loop of all episodes."""
    slept: list[float] = []
    opening, sleep = ChatDialect.opening, asyncio.sleep

    def slow(*given: Any) -> str:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.05:
            pass
        return opening(*given) if not broken else str(1 // 0)

    async def sleeping(seconds: float, *more: Any) -> Any:
        slept.append(seconds)
        return await sleep(seconds, *more)

    monkeypatch.setattr(ChatDialect, "opening", slow)
    monkeypatch.setattr(asyncio, "sleep", sleeping)
    async with served([], max_context=100) as (_, line, _), httpx.AsyncClient() as http:
        asked = {"messages": [{"role": "user", "content": "x " * 200}]}
        reply = await http.post(f"{line.url}{path}", json=asked)
        status = {"/chat/completions": 400, "/messages/count_tokens": 200}[path]
        assert reply.status_code == (500 if broken else status)
    assert max(slept) >= 4 * 0.05


@pytest.mark.parametrize("error", [UsageError("the key was revoked"), RuntimeError("CUDA error")], ids=repr)
async def test_whatever_the_model_raises_is_a_fault(error: Exception) -> None:
    async with served([error]) as (client, line, _):
        with pytest.raises(openai.APIStatusError, match=str(error)):
            await client.chat.completions.create(model="any", messages=[TASK])
        assert type(line.fault) is type(error)


async def test_episodes_do_not_share_tokens() -> None:
    async with served(["One.<|im_end|>", "Two.<|im_end|>"]) as (client, line, endpoint):
        other = endpoint.open(seed=2)
        async with openai.AsyncOpenAI(base_url=other.url, api_key="none") as second:
            await client.chat.completions.create(model="any", messages=[TASK])
            await second.chat.completions.create(model="any", messages=[TASK])
        assert [len(one.streams.transcripts()) for one in (line, other)] == [1, 1]
        assert other.streams.numbers()["tokens/breaks"] == 0


async def test_a_gate_decides_about_one_request_at_a_time() -> None:
    now = most = 0

    class Counting:
        @asynccontextmanager
        async def turn(self, messages: Sequence[Mapping[str, Any]]) -> AsyncIterator[Callable[[Answer], None]]:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await soon(lambda: now > 1, 0.2)
            yield lambda answer: None
            now -= 1

        def failed(self) -> None:
            raise AssertionError("the model answers")

    async with served(["One.<|im_end|>", "Two.<|im_end|>"]) as (_, _, endpoint), httpx.AsyncClient() as http:
        url = f"{endpoint.open(gate=Counting()).url}/chat/completions"
        replies = await asyncio.gather(*(http.post(url, json={"messages": [TASK]}) for _ in range(2)))
    assert [reply.status_code for reply in replies] == [200, 200]
    assert most == 1


async def test_a_client_that_has_not_waited_leaves_no_error(caplog: pytest.LogCaptureFixture) -> None:
    answering, gone = asyncio.Event(), asyncio.Event()

    class Slow(Scripted):
        async def _answer(self, prompt: Any, most: int) -> Any:
            answering.set()
            await gone.wait()
            return await super()._answer(prompt, most)

    policy = TokenSamplerPolicy(Slow(vocabulary("qwen3"), ["Done.<|im_end|>"] * 2), name="slow")  # type: ignore[arg-type]
    async with ModelEndpoint(policy, "qwen3") as endpoint, httpx.AsyncClient(timeout=None) as http:
        line = endpoint.open()
        asked = {"messages": [TASK], "stream": True}
        asking = asyncio.ensure_future(http.post(f"{line.url}/chat/completions", json=asked))
        await answering.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(0.2)
        gone.set()
        while not line.streams.transcripts():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert (await http.post(f"{line.url}/chat/completions", json=asked)).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


BROKEN = {
    "breaks off": "POST {path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{",
    "breaks off later": "POST {path}/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{{",
    "no host": "GET {path}/models HTTP/1.1\r\n\r\n",
    "no chunk": "POST {path}/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx",
    "long header": "GET {path}/models HTTP/1.1\r\nHost: x\r\nX: " + "x" * 9000 + "\r\n\r\n",
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_what_is_no_request_prints_nothing_and_a_bug_does(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChatDialect, "opening", lambda *_: 1 // 0)
    async with served([]) as (client, line, endpoint):
        _, writer = await asyncio.open_connection(*endpoint.address)
        writer.write(BROKEN[kind].format(path=httpx.URL(line.url).path).encode())
        await asyncio.sleep(0.1)
        writer.close()
        assert endpoint._runner is not None
        assert endpoint._runner.server is not None
        assert await soon(lambda: not endpoint._runner.server.connections)  # type: ignore[union-attr]
        assert caplog.records == []
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="any", messages=[TASK])
        assert "ZeroDivisionError" in caplog.text


async def test_it_does_not_wait_for_an_answer_when_it_is_closed() -> None:
    answering = asyncio.Event()

    class Silent(Scripted):
        async def _answer(self, prompt: Any, most: int) -> Any:
            answering.set()
            await asyncio.sleep(3600)

    policy = TokenSamplerPolicy(Silent(vocabulary("qwen3"), []), name="silent")  # type: ignore[arg-type]
    async with httpx.AsyncClient(timeout=None) as http:
        async with ModelEndpoint(policy, "qwen3") as endpoint:
            asked = http.post(f"{endpoint.open().url}/chat/completions", json={"messages": [TASK]})
            asking = asyncio.ensure_future(asked)
            await answering.wait()
            begun = time.monotonic()
        assert time.monotonic() - begun < 10
        with pytest.raises(httpx.HTTPError):
            await asking
