"""Conversations of third-party agents as tokens of a model family: from OpenAI's messages and tools to ids, and back.

The `Renderer` classes support one tool and one form of conversation. Third-party agents have other tools and messages,
so the library ``renderers`` renders them here, in coded text (see `coded`), where text that only spells control tokens
stays text. The model's own vocabulary encodes the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ..errors import UsageError
from .coded import CodedDialect, coded_dialect, id_list
from .families import ALIASES, FAMILIES, VARIANTS, Family, Variant
from .protocol import ModelTurn, ToolCall
from .vocabularies import Codec, printable

_KEEP = {"thinking_retention": "all"}  # as in this package's own dialect
_QWEN3 = Family("qwen3", FAMILIES["qwen3_coder"].controls, ("<tool_call>", "</tool_call>"), argument=("", ""))
_QWEN3_VARIANTS = {name: Variant("qwen3", _KEEP) for name in ("qwen3", "qwen3_instruct")}
_QWEN3_VARIANTS["qwen3_disable_thinking"] = Variant("qwen3", _KEEP | {"enable_thinking": False})
_NAMES = {*_QWEN3_VARIANTS, *(name for name, kind in VARIANTS.items() if not FAMILIES[kind.family].name)}
"""Qwen3's, whose `Renderer` class supports only this package's tool, and those whose calls the library finds."""


def call_message(call: ToolCall) -> dict[str, Any]:
    """A call in the form of OpenAI's messages."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def assistant_message(turn: ModelTurn) -> dict[str, Any]:
    """A turn as an assistant message in OpenAI's form."""
    found: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.thinking:
        found["reasoning_content"] = turn.thinking
    if turn.calls:
        found["tool_calls"] = list(map(call_message, turn.calls))
    return found


class ChatDialect:
    """Renders, extends and parses conversations in one dialect, named as in `get_renderer`.

    Raises `UsageError` if there is no such dialect, or if it does not support third-party agents.
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name = ALIASES.get(name, name)
        self._coded, self._codec = _find(self.name), Codec(tokenizer)
        self._characters = self._coded.characters
        stops = self._characters.pieces("".join(self._coded.stops))
        self.stop = [self._codec.control(text) for text in stops if text in self._codec]
        """Ids at which sampling stops."""

    def opening(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        """The coded prompt of a conversation, up to where the model starts to write.

        Raises `UsageError` if the family's template does not support these messages, such as a second system message.
        """
        try:
            found = self._coded.engine.render_ids(
                self._messages(messages, ()), tools=self._protected(list(tools)) or None, add_generation_prompt=True
            )
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise UsageError(f"messages: the dialect {self.name} does not support them: {error}") from error
        return "".join(map(chr, found))

    def extension(
        self,
        prompt: str,
        turn: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        before: Sequence[Mapping[str, Any]] = (),
    ) -> str | None:
        """The coded text after a sampled turn, up to where the model writes next; None if the family cannot continue.

        `prompt` and `turn` are coded. No message of `messages` is the assistant's. `before` are the earlier messages,
        whose calls contain the tool names for the results.
        """
        added = self._messages(messages, before)
        return self._coded.bridge(prompt, turn, added, self._protected(list(tools)) or None)

    def ids(self, coded: str) -> list[int]:
        return self._codec.encode(self._characters.pieces(coded))

    def coded(self, ids: Sequence[int]) -> str:
        return self._characters.from_pieces(self._codec.pieces(ids))

    def parse(self, prompt: str, turn: str, tools: Sequence[Mapping[str, Any]]) -> tuple[ModelTurn, bool]:
        """Parse a sampled turn; also returns whether the model ended it. Otherwise, the token limit did.

        A call that cannot be parsed becomes text. Nothing that a model writes raises an exception.
        """
        turn, ended = self._coded.until_stop(turn)

        def written(coded: str) -> str:
            return printable(self._characters.written(coded))  # agents cannot send lone surrogates back

        try:
            ids, tools_ = self._characters.ids_of_turn(turn), self._protected(list(tools)) or None
            found = self._coded.engine.parse_response(ids, tools=tools_, prompt_ids=id_list(prompt))
            calls, texts = [], [written(found.content)]
            for call in found.tool_calls:
                arguments = _with_texts(call.arguments, self._characters.written)
                name: Any = call.name  # the library declares str, but it can be any JSON value that the model wrote
                if str(call.status) == "ok" and isinstance(name, str) and name and isinstance(arguments, dict):
                    shown = printable(json.dumps(arguments, ensure_ascii=False))
                    calls.append(ToolCall(written(name), shown))
                else:
                    texts.append(written(call.raw))
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):  # unusual JSON or tools
            return ModelTurn(text=written(turn)), ended
        text = "\n".join(filter(None, texts))
        return ModelTurn(written(found.reasoning_content or ""), text, tuple(calls)), ended

    def _messages(self, messages: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> list[Any]:
        names = {
            call["id"]: call["function"]["name"]
            for message in (*before, *messages)
            for call in message.get("tool_calls") or ()
        }
        found = []
        for message in messages:
            one = {"role": {"developer": "system"}.get(message["role"], message["role"]), "content": text_of(message)}
            if message.get("reasoning_content"):
                one["reasoning_content"] = message["reasoning_content"]
            if message.get("tool_calls"):
                one["tool_calls"] = list(map(_with_object, message["tool_calls"]))
            if message["role"] == "tool":
                one |= {"tool_call_id": message["tool_call_id"], "name": names.get(message["tool_call_id"], "tool")}
            found.append(self._protected(one))
        return found

    def _protected(self, value: Any) -> Any:
        return _with_texts(value, self._characters.protected)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with a function applied to each string in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_with_texts(key, change): _with_texts(item, change) for key, item in value.items()}
    return [_with_texts(item, change) for item in value] if isinstance(value, list) else value


def check_dialect(name: str) -> None:
    """Raise `UsageError` if there is no such dialect, or if it does not support third-party agents."""
    _find(ALIASES.get(name, name))


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message. Raises `UsageError` if it has other parts, such as an image."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        kinds = {str(part.get("type")) for part in content}  # a program can send any JSON value
        if kinds <= {"text", "input_text", "output_text"}:
            return "".join(str(part.get("text", "")) for part in content)
        raise UsageError(f"messages: content of type {sorted(kinds - {'text'})[0]}; only text is supported")
    raise UsageError("messages: content must be a string or a list of parts")


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    """A message's call, with its arguments parsed if they are a JSON object."""
    name, text = call["function"]["name"], call["function"]["arguments"]
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except (RecursionError, ValueError):
        found = None
    arguments = found if isinstance(found, dict) else text
    return {"id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments}}


@cache
def _find(name: str) -> CodedDialect:
    if name not in _NAMES:
        raise UsageError(
            f"renderer {name!r} cannot hold conversations of other agents; choose one of {', '.join(sorted(_NAMES))}"
        )
    return CodedDialect(name, _QWEN3, _QWEN3_VARIANTS[name]) if name in _QWEN3_VARIANTS else coded_dialect(name)
