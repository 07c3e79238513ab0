"""An address that speaks OpenAI's chat completions in front of a policy that samples tokens, for agents of others.

Each episode has a secret in its address, and its own `TokenStreams`. What would change the meaning of a request and
is not understood is refused with status 400: forced tools, images, several choices, biases, stop texts, forms of
answers. The sampling parameters are the policy's; those of a request, except the number of tokens, have no effect.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import RequestRefused, RTLGymError, UsageError
from ..renderers.chat import ChatDialect
from .sampler import TokenSamplerPolicy
from .streams import Answer, ContextFull, TokenStreams

if TYPE_CHECKING:
    from aiohttp import web

LARGEST = 32 << 20
"""Bytes of a request."""
NAME = "policy"
"""The model's name in requests and answers; agents may send any."""


@dataclass
class Line:
    """An episode's access to the model."""

    url: str
    """The base address, as agents take it: it ends in ``/v1``."""
    streams: TokenStreams
    fault: RTLGymError | None = None
    """Why the model did not answer, if that is no fault of the request: the episode must not be graded then."""
    full: bool = False
    """Whether a request found no room in the model's context."""


class ModelEndpoint:
    """An HTTP server on the loopback address, with one `Line` for each episode.

    Args:
        policy: Samples the answers.
        dialect: The name of the model's dialect.

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

    async def __aenter__(self) -> ModelEndpoint:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen on a free port. Raises `UsageError` if aiohttp is not installed."""
        try:
            from aiohttp import web
        except ImportError as error:
            raise UsageError('other people\'s agents need aiohttp: pip install "rtl-agent-gym[agents]"') from error
        app = web.Application(client_max_size=LARGEST)
        app.router.add_post("/{secret}/v1/chat/completions", self._complete)
        app.router.add_get("/{secret}/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._address = "http://{}:{}".format(*self._runner.addresses[0][:2])

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        self._lines.clear()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def open(self, seed: int | None = None) -> Line:
        """An address for one episode."""
        secret = secrets.token_urlsafe(24)
        self._lines[secret] = Line(f"{self._address}/{secret}/v1", TokenStreams(self._policy, self._dialect, seed))
        return self._lines[secret]

    def end(self, line: Line) -> None:
        """Answer no more requests at an episode's address."""
        self._lines = {secret: one for secret, one in self._lines.items() if one is not line}

    def _line(self, request: web.Request) -> Line:
        from aiohttp import web

        if (line := self._lines.get(request.match_info["secret"])) is None:
            raise web.HTTPNotFound(text=_error("there is no such address", "not_found_error"), content_type=_JSON)
        return line

    async def _models(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self._line(request)
        return web.json_response({"object": "list", "data": [{"id": NAME, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        line = self._line(request)
        try:
            body = read_request(await request.read())
            most = body.get("max_completion_tokens") or body.get("max_tokens")
            answer = await line.streams.answer(body["messages"], body.get("tools") or [], most)
        except ContextFull as error:
            line.full = True
            return web.json_response(text=_error(str(error), "context_length_exceeded"), status=400)
        except (UsageError, RequestRefused) as error:
            return web.json_response(text=_error(str(error), "invalid_request_error"), status=400)
        except RTLGymError as error:
            line.fault = error
            return web.json_response(text=_error(str(error), "service_unavailable"), status=503)
        found = completion(answer)
        if not body.get("stream"):
            return web.json_response(found)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for chunk in chunks(found, usage=bool((body.get("stream_options") or {}).get("include_usage"))):
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


_JSON = "application/json"
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "tool_choice": (None, "auto"),
    "function_call": (None, "auto"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "stop": (None, "", []),
    "response_format": (None, {"type": "text"}),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
}
"""Fields that are understood with these values only."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_request(data: bytes) -> dict[str, Any]:
    """The body of a request for a chat completion.

    Raises:
        UsageError: It is not one, or would need what the endpoint does not do.
    """
    try:
        body = json.loads(data)
    except (RecursionError, ValueError) as error:
        raise UsageError("the body is not JSON") from error
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not messages:
        raise UsageError("messages: expected a list of messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise UsageError(f"messages[{number}].role: expected one of {', '.join(_ROLES)}")
        if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise UsageError(f"messages[{number}].tool_call_id: expected the id of a call")
        calls = message.get("tool_calls") or ()
        for call in calls if isinstance(calls, list | tuple) else [calls]:
            function = call.get("function") if isinstance(call, dict) else None
            if not (isinstance(function, dict) and isinstance(function.get("name"), str)) or not isinstance(
                call.get("id"), str
            ):
                raise UsageError(f"messages[{number}].tool_calls: each needs an id and a function with a name")
            function.setdefault("arguments", "{}")
    for name, known in _REFUSED.items():
        if body.get(name) not in known:
            raise UsageError(f"{name}: {json.dumps(body[name])[:80]} is not understood here; leave it out")
    tools = body.get("tools") or ()
    for tool in tools if isinstance(tools, list | tuple) else [tools]:
        if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
            raise UsageError("tools: expected a list of functions")
    if not isinstance(body.get("stream_options"), dict | None):
        raise UsageError("stream_options: expected an object")
    for name in ("max_tokens", "max_completion_tokens"):
        if (most := body.get(name)) is not None and (type(most) is not int or most < 1):
            raise UsageError(f"{name}: expected a number of tokens above 0")
    return dict(body)


def completion(answer: Answer) -> dict[str, Any]:
    """An answer as OpenAI's chat completion."""
    usage = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.output_tokens}
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": 0,
        "model": NAME,
        "choices": [{"index": 0, "message": answer.message, "finish_reason": answer.finish, "logprobs": None}],
        "usage": usage | {"total_tokens": sum(usage.values())},
    }


def chunks(found: Mapping[str, Any], *, usage: bool) -> list[dict[str, Any]]:
    """A chat completion as the chunks of a stream: all of it, the reason of its end, and the usage if asked for."""
    [choice] = found["choices"]
    shared = {key: found[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [call | {"index": number} for number, call in enumerate(delta["tool_calls"])]
    parts: list[tuple[dict[str, Any], str | None]] = [(delta, None), ({}, choice["finish_reason"])]
    listed = [shared | {"choices": [{"index": 0, "delta": one, "finish_reason": end}]} for one, end in parts]
    return listed + ([shared | {"choices": [], "usage": found["usage"]}] if usage else [])


def _error(text: str, kind: str) -> str:
    return json.dumps({"error": {"message": text, "type": kind, "code": kind, "param": None}})
