"""Anthropic's messages."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field

from ...renderers import ModelTurn, ToolCall
from ...renderers.chat import assistant_message
from ..streams import Answer
from . import NAME, Api, ChatRequest, ErrorKind, checked, event, function_tool, refuse

_UNDERSTOOD: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "stop_sequences": (None, []),
    "mcp_servers": (None, []),
    "container": (None,),
    "output_format": (None,),
}
_BILLING = "x-anthropic-billing-header:"
"""Begins a system block of Claude Code that differs in each request and is not meant for the model."""


def _as_blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class _Text(BaseModel):
    type: Literal["text"]
    text: str


class _Thinking(BaseModel):
    type: Literal["thinking"]
    thinking: str


class _Redacted(BaseModel):
    type: Literal["redacted_thinking"]


class _Call(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


_OnlyText = Annotated[list[_Text], BeforeValidator(_as_blocks)]


class _Result(BaseModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: _OnlyText = []


_Said = Annotated[_Text | _Result, Field(discriminator="type")]
_Answered = Annotated[_Text | _Thinking | _Redacted | _Call, Field(discriminator="type")]


class _User(BaseModel):
    role: Literal["user"]
    content: Annotated[list[_Said], BeforeValidator(_as_blocks)]


class _Assistant(BaseModel):
    role: Literal["assistant"]
    content: Annotated[list[_Answered], BeforeValidator(_as_blocks)]


class _Tool(BaseModel):
    type: Literal["custom"] | None = None
    name: str
    description: str = ""
    input_schema: dict[str, Any]


class _Auto(BaseModel):
    type: Literal["auto"]


class _Typed(BaseModel):
    type: str


class _Output(BaseModel):
    format: None = None


class _Edit(BaseModel):
    type: Literal["clear_thinking_20251015"]
    """How long earlier thinking is kept: ignored, since the dialect decides."""


class _Management(BaseModel):
    edits: list[_Edit] = []


class _Body(BaseModel):
    messages: list[Annotated[_User | _Assistant, Field(discriminator="role")]] = Field(min_length=1)
    system: _OnlyText = []
    tools: list[_Tool] = []
    tool_choice: _Auto | None = None
    max_tokens: int | None = Field(default=None, ge=1, strict=True)
    stream: bool = False
    thinking: _Typed | None = None
    output_config: _Output | None = None
    context_management: _Management | None = None


class AnthropicMessages(Api):
    """See `Api`."""

    path: ClassVar[str] = "/v1/messages"

    def read(self, body: dict[str, Any]) -> ChatRequest:
        refuse(body, _UNDERSTOOD)
        found = checked(_Body, body)
        messages: list[dict[str, Any]] = []
        for message in found.messages:
            messages += _user(message.content) if isinstance(message, _User) else [_assistant(message.content)]
        tools = [function_tool(tool.name, tool.description, tool.input_schema) for tool in found.tools]
        system = _joined(block for block in found.system if not block.text.startswith(_BILLING))
        return ChatRequest(messages, tools, found.max_tokens, found.stream, system, body=body)

    def written(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        """An answer as a message, which includes thinking only if the request asks for it."""
        turn, blocks = answer.turn, list[dict[str, Any]]()
        thinks = (request.body.get("thinking") or {}).get("type", "disabled") != "disabled"
        if thinks and turn.thinking:
            # without a signature, agents assume that it was interrupted, and send it back as text
            blocks.append({"type": "thinking", "thinking": turn.thinking, "signature": NAME})
        if turn.text:
            blocks.append({"type": "text", "text": turn.text})
        for call in turn.calls:
            # models may write Infinity and NaN, which JSON does not have
            arguments = json.loads(call.arguments, parse_constant=str)
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
        return {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": NAME,
            "content": blocks,
            "stop_reason": _STOP[answer.finish],
            "stop_sequence": None,
            "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.output_tokens},
        }

    def events(self, found: dict[str, Any], request: ChatRequest) -> Iterator[str]:
        """A message as events, with each block in one piece."""
        begun = found | {"content": [], "stop_reason": None, "usage": found["usage"] | {"output_tokens": 0}}
        yield event({"type": "message_start", "message": begun})
        for index, block in enumerate(found["content"]):
            empty, deltas = _deltas(block)
            yield event({"type": "content_block_start", "index": index, "content_block": block | empty})
            for delta in deltas:
                yield event({"type": "content_block_delta", "index": index, "delta": delta})
            yield event({"type": "content_block_stop", "index": index})
        end = {name: found[name] for name in ("stop_reason", "stop_sequence")}
        yield event({"type": "message_delta", "delta": end, "usage": found["usage"]})
        yield event({"type": "message_stop"})

    def error(self, text: str, kind: ErrorKind) -> dict[str, Any]:
        # agents recognise a full context by these words
        message = f"prompt is too long: {text}" if kind == "context_length_exceeded" else text
        return {"type": "error", "error": {"type": _ERRORS.get(kind, kind), "message": message}}


_STOP = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERRORS = {"context_length_exceeded": "invalid_request_error", "service_unavailable": "api_error"}


def _deltas(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields of a block that are empty when it starts, and the deltas that fill them."""
    match block["type"]:
        case "thinking":
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {"thinking": ""}, [{"type": "thinking_delta", "thinking": block["thinking"]}, signature]
        case "text":
            return {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
    arguments = json.dumps(block["input"], ensure_ascii=False)
    return {"input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]


def _user(blocks: Sequence[_Text | _Result]) -> Iterator[dict[str, Any]]:
    """Results and texts in their order: a message for each result, and one for consecutive texts."""
    for results, group in groupby(blocks, key=lambda block: isinstance(block, _Result)):
        if not results:
            yield {"role": "user", "content": _joined(block for block in group if isinstance(block, _Text))}
            continue
        for block in group:
            if isinstance(block, _Result):
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _joined(block.content)}
    if not blocks:
        yield {"role": "user", "content": ""}


def _assistant(blocks: Sequence[_Text | _Thinking | _Redacted | _Call]) -> dict[str, Any]:
    """An answer of the model, unchanged or as an agent has rewritten it."""
    thinking = "".join(block.thinking for block in blocks if isinstance(block, _Thinking))
    text = "".join(block.text for block in blocks if isinstance(block, _Text))
    called = [block for block in blocks if isinstance(block, _Call)]
    calls = (ToolCall(call.name, json.dumps(call.input, ensure_ascii=False), call.id) for call in called)
    return assistant_message(ModelTurn(thinking, text, tuple(calls)))


def _joined(blocks: Iterable[_Text]) -> str:
    return "\n\n".join(block.text for block in blocks)
