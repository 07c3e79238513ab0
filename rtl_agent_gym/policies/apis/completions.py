"""OpenAI's chat completions, whose messages need no translation."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any, ClassVar

from ...errors import UsageError
from ..streams import Answer
from . import NAME, Api, ChatRequest, refuse

_UNDERSTOOD: dict[str, tuple[Any, ...]] = {
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
_ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatCompletions(Api):
    """See `Api`."""

    path: ClassVar[str] = "/v1/chat/completions"

    def read(self, body: dict[str, Any]) -> ChatRequest:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise UsageError("messages: expected a list of messages")
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or message.get("role") not in _ROLES:
                raise UsageError(f"messages[{number}].role: expected one of {', '.join(_ROLES)}")
            if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
                raise UsageError(f"messages[{number}].tool_call_id: expected the id of a call")
            if not isinstance(message.get("tool_calls"), list | None):
                raise UsageError(f"messages[{number}].tool_calls: expected a list of calls")
            for call in message.get("tool_calls") or ():
                function = call.get("function") if isinstance(call, dict) else None
                if not (isinstance(function, dict) and isinstance(function.get("name"), str)) or not isinstance(
                    call.get("id"), str
                ):
                    raise UsageError(f"messages[{number}].tool_calls: each needs an id and a function with a name")
                function.setdefault("arguments", "{}")
        refuse(body, _UNDERSTOOD)
        tools = [] if body.get("tools") is None else body["tools"]
        if not isinstance(tools, list) or not all(
            isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools
        ):
            raise UsageError("tools: expected a list of functions")
        if not isinstance(body.get("stream_options"), dict | None):
            raise UsageError("stream_options: expected an object")
        for name in ("max_tokens", "max_completion_tokens"):
            if (most := body.get(name)) is not None and (type(most) is not int or most < 1):
                raise UsageError(f"{name}: expected a number of tokens above 0")
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        return ChatRequest(messages, tools, most, bool(body.get("stream")), body=body)

    def written(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        usage = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.output_tokens}
        return {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": 0,
            "model": NAME,
            "choices": [{"index": 0, "message": answer.message, "finish_reason": answer.finish, "logprobs": None}],
            "usage": usage | {"total_tokens": sum(usage.values())},
        }

    def events(self, found: dict[str, Any], request: ChatRequest) -> Iterator[str]:
        """A chat completion as chunks: the whole message, the finish reason, and the usage if requested."""
        [choice] = found["choices"]
        shared = {key: found[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        delta = dict(choice["message"])
        if "tool_calls" in delta:
            delta["tool_calls"] = [call | {"index": number} for number, call in enumerate(delta["tool_calls"])]
        parts: list[tuple[dict[str, Any], str | None]] = [(delta, None), ({}, choice["finish_reason"])]
        chunks = [shared | {"choices": [{"index": 0, "delta": one, "finish_reason": end}]} for one, end in parts]
        if (request.body.get("stream_options") or {}).get("include_usage"):
            chunks.append(shared | {"choices": [], "usage": found["usage"]})
        for chunk in chunks:
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"
