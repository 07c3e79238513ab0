"""An HTTP endpoint through which third-party agents use a policy that samples tokens. `apis` has its APIs.

Each episode has a secret in its address, and its own `TokenStreams`. Unsupported fields that would change the meaning
of a request are refused with status 400. The sampling parameters are the policy's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import RequestRefused, UsageError, importing
from ..renderers.chat import ChatDialect
from .apis import NAME, STATUS, Api, ChatRequest, ErrorKind, decoded
from .apis.completions import ChatCompletions
from .apis.messages import AnthropicMessages
from .apis.responses import OpenAIResponses
from .sampler import TokenSamplerPolicy
from .streams import Answer, ContextFull, TokenStreams

if TYPE_CHECKING:
    from aiohttp import web

LARGEST = 32 << 20
"""Maximum bytes of a request."""
_log = logging.getLogger(__name__)
APIS: tuple[Api, ...] = (ChatCompletions(), AnthropicMessages(), OpenAIResponses())


PAUSE = 0.02
"""Minimum seconds of a request without an answer of the model, so that many of them cannot fill the event loop."""
REST = 4
"""Such a request also waits at least this many times as long as its rendering took."""


class Gate(Protocol):
    """Decides when the model answers an episode's requests, which then come one at a time."""

    def turn(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> contextlib.AbstractAsyncContextManager[Callable[[Answer], None]]:
        """Wait until a request with these messages may be answered; then call the yielded function with the answer.

        Raises `UsageError` if it will never be answered.
        """

    def failed(self) -> None:
        """The model did not answer; `Line.fault` says why."""


@dataclass
class Line:
    """An episode's access to the model."""

    url: str
    """The base address for OpenAI's APIs, which ends in ``/v1``."""
    streams: TokenStreams
    kept: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """Conversations by the id of the response that a request may continue."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The items of those responses by id, to which a request may refer."""
    fault: Exception | None = None
    """The model's exception instead of an answer: the episode must then not be graded."""
    full: bool = False
    """Whether a request did not fit into the model's context, and no request was answered since."""
    refused: str = ""
    """Why a request was last refused for another reason; empty once a request was answered."""
    gate: Gate | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request is read and answered, if there is a gate: one request at a time."""

    @property
    def anthropic_url(self) -> str:
        """The base address for Anthropic's API."""
        return self.url.removesuffix("/v1")


class ModelEndpoint:
    """An HTTP server on the loopback address, with one `Line` for each episode. The policy samples the answers.

    Example:
        async with ModelEndpoint(policy, "qwen3_5") as endpoint:
            line = endpoint.open(seed=7)
            print(line.url)  # http://127.0.0.1:PORT/SECRET/v1
    """

    def __init__(self, policy: TokenSamplerPolicy, dialect: str) -> None:
        self._policy, self._dialect = policy, ChatDialect(dialect, policy.tokenizer)
        self._lines: dict[str, Line] = {}
        self._runner: web.AppRunner | None = None
        self._address = ""
        # Not the loop's executor, which may be full of slow reward functions while the agents' time runs.
        self._reader = ThreadPoolExecutor(1, "requests")

    async def __aenter__(self) -> ModelEndpoint:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen on a free port. Raises `UsageError` if aiohttp is not installed."""
        with importing('third-party agents need aiohttp: pip install "rtl-agent-gym[agents]"'):
            from aiohttp import web

        app = web.Application(client_max_size=LARGEST)
        for api in APIS:
            app.router.add_post(f"/{{secret}}{api.path}", partial(self._serve, api, self._complete))
        app.router.add_post("/{secret}/v1/messages/count_tokens", partial(self._serve, APIS[1], self._count))
        app.router.add_get("/{secret}/v1/models", partial(self._serve, APIS[0], self._models))
        # A short shutdown: episodes have ended by then, so no agent waits for an answer that is still being sampled.
        # Compressed bodies are refused, as invalid JSON: decompressing them would delay all episodes.
        self._runner = web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=1.0, auto_decompress=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._address = "http://{}:{}".format(*self.address)

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        self._lines.clear()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
        self._reader.shutdown(wait=False)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port on which it listens."""
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return host, port

    def open(self, seed: int | None = None, gate: Gate | None = None) -> Line:
        """An address for one episode.

        Args:
            seed: The episode's seed, from which each turn's is derived; None for no seed.
            gate: Decides when its requests are answered; None to answer immediately.
        """
        secret = secrets.token_urlsafe(24)
        streams = TokenStreams(self._policy, self._dialect, seed)
        self._lines[secret] = Line(f"{self._address}/{secret}/v1", streams, gate=gate)
        return self._lines[secret]

    def end(self, line: Line) -> None:
        """Answer no more requests at an episode's address."""
        self._lines = {secret: served for secret, served in self._lines.items() if served is not line}

    async def _serve(self, api: Api, reply: _Reply, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        def failed(error: Exception | str, kind: ErrorKind) -> web.Response:
            return web.json_response(api.error(str(error), kind), status=STATUS[kind])

        secret = request.match_info["secret"]
        if (line := self._lines.get(secret)) is None:
            await asyncio.sleep(PAUSE)
            return failed("there is no such address", "not_found_error")
        async with line.lock if line.gate is not None else contextlib.nullcontext():
            try:
                found = await reply(api, line, request)
                return web.json_response(found) if isinstance(found, dict) else found
            except ContextFull as error:
                line.full = True
                answer = failed(error, "context_length_exceeded")
            except Exception as error:
                if error is line.streams.failure:
                    line.fault = error
                    if line.gate is not None:
                        line.gate.failed()
                elif isinstance(error, UsageError):
                    if secret in self._lines:  # otherwise the episode has ended in the meantime, for another reason
                        line.refused = str(error)
                else:
                    await _pause(line)
                    raise
                refused = isinstance(error, RequestRefused | UsageError)  # otherwise the agent would retry
                answer = failed(error, "invalid_request_error" if refused else "service_unavailable")
            await _pause(line)
            return answer

    async def _models(self, api: Api, line: Line, request: web.Request) -> dict[str, Any]:
        await asyncio.sleep(PAUSE)
        return {"object": "list", "data": [{"id": NAME, "object": "model"}]}

    async def _read(self, api: Api, line: Line, request: web.Request) -> ChatRequest:
        data = await request.read()
        return await asyncio.get_running_loop().run_in_executor(self._reader, _read, api, line, data)

    async def _count(self, api: Api, line: Line, request: web.Request) -> dict[str, Any]:
        asked = await self._read(api, line, request)
        count = line.streams.count(asked.conversation(()), asked.tools)
        await _pause(line)
        return {"input_tokens": count}

    async def _complete(self, api: Api, line: Line, request: web.Request) -> web.StreamResponse | dict[str, Any]:
        from aiohttp import web

        asked = await self._read(api, line, request)
        if asked.previous is not None and asked.previous not in line.kept:
            raise UsageError(f"previous_response_id: no response {asked.previous!r} was kept; send the whole input")
        before = line.kept[asked.previous] if asked.previous is not None else []
        messages = asked.conversation(before)
        async with line.gate.turn(messages) if line.gate is not None else contextlib.nullcontext() as take:
            answer = await line.streams.answer(messages, asked.tools, asked.most)
            line.full, line.refused = False, ""
            if take is not None:
                take(answer)
        found = api.written(answer, asked)
        if asked.kept:
            line.kept[found["id"]] = [*before, *asked.messages, answer.message]
            line.items |= {item["id"]: item for item in found["output"]}
        if not asked.stream:
            return found
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        with contextlib.suppress(ConnectionError):  # the agent has disconnected
            await response.prepare(request)
            for event in api.events(found, asked):
                await response.write(event.encode())
        return response


def is_worth_logging(record: logging.LogRecord) -> bool:
    """A filter that drops tracebacks for requests that break off or are not HTTP: the agent's fault."""
    from aiohttp.http_exceptions import HttpProcessingError

    return record.exc_info is None or not isinstance(record.exc_info[1], ConnectionError | HttpProcessingError)


_log.addFilter(is_worth_logging)


async def _pause(line: Line) -> None:
    await asyncio.sleep(max(PAUSE, REST * line.streams.rendering))


def _read(api: Api, line: Line, data: bytes) -> ChatRequest:
    """Parse a request's body. Raises like `Api.read`, and `ContextFull` before an oversized body takes long to read."""
    line.streams.check_length(data)
    body = decoded(data)
    line.streams.check_entries(body)
    if isinstance(given := body.get("input"), list):
        kept = dict(line.items)
        body["input"] = [_item(one, kept) for one in given]
    return api.read(body)


def _item(given: Any, kept: dict[str, dict[str, Any]]) -> Any:
    """An item, or the kept item to which it refers, removed from `kept`: repeating a long item would take long."""
    if not isinstance(given, dict) or given.get("type") != "item_reference":
        return given
    if (item := kept.pop(str(given.get("id")), None)) is None:
        raise UsageError(f"input: no item {given.get('id')!r} was kept, or it is there twice; send the item itself")
    return item


_Reply = Callable[[Api, Line, "web.Request"], Awaitable["web.StreamResponse | dict[str, Any]"]]
