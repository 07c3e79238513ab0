"""The APIs through which agents call models. All are translated to OpenAI's chat messages for `TokenStreams`.

`read` checks and translates a request of an API; `written` and `events` translate the model's answer. Unsupported
fields that would change the meaning of a request are refused: forced tools, images, several choices, biases, stop
sequences, response formats. Sampling parameters, except the token limit, have no effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from ...errors import UsageError
from ...renderers.chat import text_of
from ..streams import Answer

NAME = "policy"
"""The model's name in requests and answers; agents may send any."""
Body = TypeVar("Body", bound=BaseModel)
ErrorKind = Literal["invalid_request_error", "context_length_exceeded", "not_found_error", "service_unavailable"]
STATUS: Mapping[ErrorKind, int] = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "not_found_error": 404,
    "service_unavailable": 503,
}


@dataclass(frozen=True)
class ChatRequest:
    """A request, in OpenAI's form of chat messages."""

    messages: list[dict[str, Any]]
    """The request's own messages, without the conversation that it continues."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    most: int | None = None
    """Maximum tokens of the answer."""
    stream: bool = False
    system: str = ""
    """Instructions before the whole conversation."""
    previous: str | None = None
    """The id of the answer that the request continues."""
    kept: bool = False
    """Whether a later request may continue its answer by id."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The body as sent."""

    def conversation(self, before: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages of `before`, then the request's. Instructions at the beginning are merged into one message."""
        messages = [*before, *self.messages]
        first = list(takewhile(lambda message: message["role"] in ("system", "developer"), messages))
        if len(first) < 2 and not self.system:
            return messages
        texts = filter(None, [self.system, *map(text_of, first)])
        return [{"role": "system", "content": "\n\n".join(texts)}, *messages[len(first) :]]


class Api(Protocol):
    """One API. Errors have OpenAI's form by default."""

    path: ClassVar[str]
    """The path below an episode's address."""

    def read(self, body: dict[str, Any]) -> ChatRequest:
        """Read a request's body. Raises `UsageError` if it is invalid, or needs an unsupported feature."""

    def written(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        """The answer as the body of a response."""

    def events(self, found: dict[str, Any], request: ChatRequest) -> Iterator[str]:
        """The body of a response as the events of a stream."""

    def error(self, text: str, kind: ErrorKind) -> dict[str, Any]:
        """The body of an error."""
        return {"error": {"message": text, "type": kind, "code": kind, "param": None}}


def decoded(data: bytes) -> dict[str, Any]:
    """The JSON object in a request's body. Raises `UsageError` if it is not one."""
    try:
        body = json.loads(data)
    except (RecursionError, ValueError) as error:
        raise UsageError("the body is not JSON") from error
    if not isinstance(body, dict):
        raise UsageError("the body is not a JSON object")
    return body


def refuse(body: Mapping[str, Any], understood: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise `UsageError` for the first field whose value is not among those `understood`."""
    for name, values in understood.items():
        if body.get(name) not in values:
            raise UsageError(f"{name}: {json.dumps(body[name])[:80]} is not understood here; leave it out")


def checked(kind: type[Body], body: Mapping[str, Any]) -> Body:
    """A body as its model class `kind`. Raises `UsageError` that names the first wrong field."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=True)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        if first["type"] == "union_tag_invalid":
            known = first["ctx"]["expected_tags"]
            raise UsageError(
                f"{place}: type {first['ctx']['tag']!r} is not understood here; only {known} are"
            ) from error
        raise UsageError(f"{place}: {first['msg'].lower()}") from error
    except RecursionError as error:
        raise UsageError("the body is nested too deeply") from error


def function_tool(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The declaration of a tool, in OpenAI's form."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def event(data: Mapping[str, Any]) -> str:
    """A server-sent event, named by its type."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"
