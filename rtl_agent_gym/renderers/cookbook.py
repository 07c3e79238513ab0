"""Families that only tinker-cookbook renders, with the methods of the library ``renderers`` that the dialects use.

The cookbook renders whole conversations. What follows a turn is cut from such a rendering (`LibraryRenderer`), and
calls are found here by the tags of their `Family`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .families import FAMILIES, VARIANTS

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, ParsedToolCall

    from .library import CharacterTokenizer


class CookbookEngine:
    """A renderer of tinker-cookbook.

    Args:
        name: The variant's name, which is the cookbook's.
        tokenizer: The tokenizer of coded text.

    Raises:
        UsageError: tinker-cookbook is not installed, or this version has no such renderer.
    """

    def __init__(self, name: str, tokenizer: CharacterTokenizer) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of versions of transformers, whose tokenizers are not used
                from tinker_cookbook import renderers
                from tinker_cookbook.exceptions import RendererError
        except ImportError as error:
            raise UsageError(
                f"renderer {name!r} needs the package tinker-cookbook: pip install 'rtl-agent-gym[train]'"
            ) from error
        try:
            self._renderer: Any = renderers.get_renderer(name, tokenizer)  # type: ignore[arg-type]
        except (RendererError, ValueError) as error:
            raise UsageError(f"this version of tinker-cookbook has no renderer {name!r}: update it") from error
        self._family, self._tokenizer = FAMILIES[VARIANTS[name].family], tokenizer
        self._tags = tuple(map(tokenizer.coded, (*self._family.think, *self._family.call, self._family.section)))

    def get_stop_token_ids(self) -> list[int]:
        """The ids at which sampling ends."""
        return [self._tokenizer.convert_tokens_to_ids(stop) for stop in dict.fromkeys(self._family.stops)]

    def render_ids(
        self, messages: Sequence[dict[str, Any]], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """The ids of a conversation; without a generation prompt, its last message is the assistant's."""
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        rest = [_converted(message) for message in messages[bool(system) :]]
        first: list[Any] = [{"role": "system", "content": system}] if system else []
        if tools:
            specs = [tool["function"] for tool in tools]
            first = self._renderer.create_conversation_prefix_with_tools(specs, system_prompt=system)
        if add_generation_prompt:
            return list(self._renderer.build_generation_prompt([*first, *rest]).to_ints())
        return list(self._renderer.build_supervised_example([*first, *rest])[0].to_ints())

    def bridge_to_next_turn(self, *_: Any, **__: Any) -> None:
        """The cookbook extends nothing."""

    def parse_response(
        self, ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] = ()
    ) -> ParsedResponse:
        """The thinking, text and calls of coded text."""
        from renderers.base import ParsedResponse

        think, close, *_, section = self._tags
        turn = re.split("|".join(map(chr, self.get_stop_token_ids())), "".join(map(chr, ids)))[0]
        opened = bool(prompt_ids) and chr(prompt_ids[-1]) == think
        blank = len(turn) - len(turn.lstrip())
        explicit = bool(think) and turn.startswith(think, blank)
        thinking, position = None, 0
        if opened or explicit:
            begin = blank + 1 if explicit else 0
            thinking, closed, _ = turn[begin:].partition(close)
            if not closed:
                return ParsedResponse("", thinking, reasoning_complete=False)
            position = begin + len(thinking) + 1
        calls = self._calls(turn, position)
        text = turn[position:] if not calls else turn[position : calls[0].token_span[0]].partition(section)[0]
        return ParsedResponse(text.strip(), None if thinking is None else thinking.strip(), calls)

    def _calls(self, turn: str, position: int) -> list[ParsedToolCall]:
        from renderers.base import ParsedToolCall, ToolCallParseStatus

        _, _, begin, end, _ = self._tags
        found: list[ParsedToolCall] = []
        while (start := turn.find(begin, position)) >= 0:
            stop = turn.find(end, start + len(begin))
            position = len(turn) if stop < 0 else stop + len(end)
            raw = self._tokenizer.written(turn[start:position])
            name = re.search(self._family.name, raw)
            if stop < 0:
                call = ParsedToolCall(raw, status=ToolCallParseStatus.UNCLOSED_BLOCK)
            elif name is None:
                call = ParsedToolCall(raw, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
            else:
                call = ParsedToolCall(raw, name[1].strip(), self._arguments(raw))
            call.token_span = (start, position)
            found.append(call)
        return found

    def _arguments(self, raw: str) -> dict[str, Any] | str:
        if self._family.json:
            return raw  # read from the turn itself
        parameters = re.findall(
            r'(?s)<｜DSML｜ parameter name="(.*?)" string="(true|false)">(.*?)</｜DSML｜ parameter>', raw
        )
        try:
            return {key: text if is_text == "true" else json.loads(text) for key, is_text, text in parameters}
        except ValueError:
            return raw


def _converted(message: dict[str, Any]) -> dict[str, Any]:
    """A message of ours in the cookbook's form."""
    from tinker_cookbook.renderers.base import ToolCall

    made = {key: value for key, value in message.items() if key not in ("reasoning_content", "tool_calls")}
    if message["role"] != "assistant":
        return made
    parts: list[dict[str, str]] = []
    if "reasoning_content" in message:
        parts.append({"type": "thinking", "thinking": message["reasoning_content"]})
    if message["content"]:
        parts.append({"type": "text", "text": message["content"]})
    made["content"] = parts or [{"type": "text", "text": ""}]
    calls = message.get("tool_calls", [])
    if calls:
        made["tool_calls"] = [
            ToolCall(
                id=call["id"],
                function=ToolCall.FunctionBody(
                    name=call["function"]["name"],
                    arguments=json.dumps(call["function"]["arguments"], ensure_ascii=False),
                ),
            )
            for call in calls
        ]
    return made
