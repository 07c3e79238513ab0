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
from .families import FAMILIES, VARIANTS, Family

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, ParsedToolCall

    from .characters import CharacterTokenizer


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
        return parse_tags(self._family, self._tokenizer, "".join(map(chr, ids)), "".join(map(chr, prompt_ids)))


def parse_tags(family: Family, tokenizer: CharacterTokenizer, turn: str, prompt: str) -> ParsedResponse:
    """The thinking, text and calls of a turn by the family's tags, in time proportional to its length.

    Args:
        family: A family with a `Family.name`.
        tokenizer: The tokenizer of coded text.
        turn: The coded turn.
        prompt: The coded prompt, whose end tells whether the turn begins while thinking.
    """
    from renderers.base import ParsedResponse

    think, close = map(tokenizer.coded, family.think)
    turn = re.split("|".join(map(tokenizer.coded, family.stops)), turn)[0]
    blank = len(turn) - len(turn.lstrip())
    explicit = turn.startswith(think, blank)
    thinking, position = None, 0
    if explicit or prompt.endswith(think):
        begin = blank + 1 if explicit else 0
        thinking, closed, _ = turn[begin:].partition(close)
        if not closed:
            return ParsedResponse("", thinking, reasoning_complete=False)
        position = begin + len(thinking) + 1
    calls = _calls(family, tokenizer, turn, position)
    end = len(turn) if not calls or calls[0].token_span is None else calls[0].token_span[0]
    text = turn[position:end].partition(tokenizer.coded(family.section))[0] if calls else turn[position:]
    return ParsedResponse(text.strip(), None if thinking is None else thinking.strip(), calls)


def unreadable(turn: str) -> ParsedResponse:
    """A turn that is one broken call."""
    from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus

    broken = ParsedToolCall(turn, status=ToolCallParseStatus.MALFORMED_STRUCTURE, token_span=(0, len(turn)))
    return ParsedResponse("", tool_calls=[broken])


def _calls(family: Family, tokenizer: CharacterTokenizer, turn: str, position: int) -> list[ParsedToolCall]:
    from renderers.base import ParsedToolCall, ToolCallParseStatus

    begin, end = map(tokenizer.coded, family.call)
    found: list[ParsedToolCall] = []
    while (start := turn.find(begin, position)) >= 0:
        stop = turn.find(end, start + len(begin))
        position = len(turn) if stop < 0 else stop + len(end)
        raw = tokenizer.decode(list(map(ord, turn[start:position])))
        name = re.search(family.name, raw)
        if stop < 0:
            call = ParsedToolCall(raw, status=ToolCallParseStatus.UNCLOSED_BLOCK)
        elif name is None:
            call = ParsedToolCall(raw, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
        else:
            call = ParsedToolCall(raw, name[1].strip(), raw if family.json else _parameters(raw))
        call.token_span = (start, position)
        found.append(call)
    return found


_PARAMETER = re.compile(r'(?s)<｜DSML｜ ?parameter name="(.*?)" string="(true|false)">(.*?)</｜DSML｜ ?parameter>')


def _parameters(raw: str) -> dict[str, Any] | str:
    """The arguments of a call in DeepSeek's markup; its text if one of them is not JSON."""
    try:
        return {key: text if is_text == "true" else json.loads(text) for key, is_text, text in _PARAMETER.findall(raw)}
    except (RecursionError, ValueError):
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
