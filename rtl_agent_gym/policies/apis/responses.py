"""OpenAI's responses."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field

from ...renderers import ModelTurn, ToolCall
from ...renderers.chat import assistant_message
from ..streams import Answer
from . import NAME, Api, ChatRequest, checked, event, function_tool, refuse

_UNDERSTOOD: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "tool_choice": (None, "auto"),
    "background": (None, False),
    "conversation": (None,),
    "prompt": (None,),
    "truncation": (None, "disabled"),
}


class _Part(BaseModel):
    type: Literal["input_text", "output_text", "text"]
    text: str


class _Refusal(BaseModel):
    type: Literal["refusal"]
    refusal: str


def _as_parts(content: Any) -> Any:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


class _Message(BaseModel):
    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Annotated[_Part | _Refusal, Field(discriminator="type")]], BeforeValidator(_as_parts)]


class _Call(BaseModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _Output(BaseModel):
    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[list[Annotated[_Part | _Refusal, Field(discriminator="type")]], BeforeValidator(_as_parts)]


class _Thought(BaseModel):
    text: str


class _Reasoning(BaseModel):
    type: Literal["reasoning"]
    content: list[_Thought] | None = None


_Item = Annotated[_Message | _Call | _Output | _Reasoning, Field(discriminator="type")]


def _as_items(given: Any) -> Any:
    """Items from a text or a list; messages may lack their type."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    return [{"type": "message"} | one if isinstance(one, dict) and "role" in one else one for one in given]


class _Function(BaseModel):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Form(BaseModel):
    type: Literal["text"]


class _Text(BaseModel):
    format: _Form | None = None


class _Body(BaseModel):
    input: Annotated[list[_Item], BeforeValidator(_as_items)] = Field(min_length=1)
    instructions: str | None = None
    tools: list[_Function] | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, strict=True)
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    text: _Text | None = None


class OpenAIResponses(Api):
    """See `Api`."""

    path: ClassVar[str] = "/v1/responses"

    def read(self, body: dict[str, Any]) -> ChatRequest:
        refuse(body, _UNDERSTOOD)
        found = checked(_Body, body)
        tools = [
            function_tool(tool.name, tool.description or "", tool.parameters or {"type": "object", "properties": {}})
            for tool in found.tools or ()
        ]
        return ChatRequest(
            list(_messages(found.input)),
            tools,
            found.max_output_tokens,
            bool(found.stream),
            found.instructions or "",
            previous=found.previous_response_id,
            kept=found.store is not False,
            body=body,
        )

    def written(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        turn, items = answer.turn, list[dict[str, Any]]()
        done = "incomplete" if answer.finish == "length" else "completed"
        if turn.thinking:
            content = [{"type": "reasoning_text", "text": turn.thinking}]
            items.append({"type": "reasoning", "id": _id("rs"), "summary": [], "content": content, "status": done})
        if turn.text or not turn.calls:  # an empty answer needs an item, too
            part: dict[str, Any] = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
            shared = {"type": "message", "id": _id("msg"), "role": "assistant", "status": done}
            items.append(shared | {"content": [part]})
        for call in turn.calls:
            made = {"type": "function_call", "id": _id("fc"), "call_id": call.id, "status": "completed"}
            items.append(made | {"name": call.name, "arguments": call.arguments})
        usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.output_tokens}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return {
            "id": _id("resp"),
            "object": "response",
            "created_at": 0,
            "model": NAME,
            "error": None,
            "instructions": request.body.get("instructions"),
            "max_output_tokens": request.most,
            "metadata": request.body.get("metadata") or {},
            "parallel_tool_calls": True,
            "previous_response_id": request.previous,
            "reasoning": None,
            "store": request.kept,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": request.body.get("tools") or [],
            "top_p": None,
            "truncation": "disabled",
            "status": done,
            "incomplete_details": {"reason": "max_output_tokens"} if done == "incomplete" else None,
            "output": items,
            "usage": usage | details | {"total_tokens": sum(usage.values())},
        }

    def events(self, found: dict[str, Any], request: ChatRequest) -> Iterator[str]:
        """A response as events, with each item in one piece."""
        for number, one in enumerate(self._events(found)):
            yield event(one | {"sequence_number": number})

    def _events(self, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
        begun = found | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(found["output"]):
            where = {"output_index": index, "item_id": item["id"]}
            empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
            yield {
                "type": "response.output_item.added",
                "output_index": index,
                "item": item | empty | {"status": "in_progress"},
            }
            if item["type"] == "function_call":
                kind, arguments = "response.function_call_arguments", item["arguments"]
                yield where | {"type": f"{kind}.delta", "delta": arguments}
                yield where | {"type": f"{kind}.done", "arguments": arguments, "name": item["name"]}
            for number, part in enumerate(item.get("content", ())):
                place, kind = where | {"content_index": number}, f"response.{part['type']}"
                more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
                yield place | {"type": "response.content_part.added", "part": part | {"text": ""}}
                yield place | more | {"type": f"{kind}.delta", "delta": part["text"]}
                yield place | more | {"type": f"{kind}.done", "text": part["text"]}
                yield place | {"type": "response.content_part.done", "part": part}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{found['status']}", "response": found}


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _messages(items: Iterable[_Message | _Call | _Output | _Reasoning]) -> Iterator[dict[str, Any]]:
    """Items as messages; consecutive items of the model become one message."""
    for by_model, group in groupby(items, key=_by_model):
        if by_model:
            yield _assistant(group)
            continue
        for item in group:
            if isinstance(item, _Output):
                yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
            elif isinstance(item, _Message):
                yield {"role": item.role, "content": _text(item.content)}


def _by_model(item: _Message | _Call | _Output | _Reasoning) -> bool:
    return isinstance(item, _Call | _Reasoning) or (isinstance(item, _Message) and item.role == "assistant")


def _assistant(items: Iterable[_Message | _Call | _Output | _Reasoning]) -> dict[str, Any]:
    made = list(items)
    thoughts = (thought.text for item in made if isinstance(item, _Reasoning) for thought in item.content or ())
    texts = (_text(item.content) for item in made if isinstance(item, _Message))
    calls = (ToolCall(item.name, item.arguments, item.call_id) for item in made if isinstance(item, _Call))
    return assistant_message(ModelTurn("".join(thoughts), "".join(texts), tuple(calls)))


def _text(parts: Iterable[_Part | _Refusal]) -> str:
    return "".join(part.refusal if isinstance(part, _Refusal) else part.text for part in parts)
