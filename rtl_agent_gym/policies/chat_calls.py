"""Tool calls of a chat service, and the same calls as a model of the dialect would have written them.

A chat service takes its model's text apart before we see it. The transcript and the episode's state machine want the
words of a turn, so they are put together again here. A broken call stays as broken as it was: the renderer finds the
fault and words the correction, as for every other model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..renderers import TOOL_NAME, Renderer
from ..renderers.protocol import ARGUMENT_DESCRIPTION, TOOL_ARGUMENT, TOOL_DESCRIPTION

DECLARATION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": TOOL_DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {TOOL_ARGUMENT: {"type": "string", "description": ARGUMENT_DESCRIPTION}},
            "required": [TOOL_ARGUMENT],
        },
    },
}
"""The shell as an OpenAI-style tool."""


@dataclass(frozen=True)
class ToolCall:
    """One call as the service reported it."""

    id: str
    name: str
    arguments: str
    """JSON text, as far as the model got it right."""

    def for_history(self) -> dict[str, Any]:
        """The call in the history of later requests. Services refuse broken JSON there, so it is left out."""
        try:
            arguments = self.arguments if isinstance(json.loads(self.arguments), dict) else "{}"
        except json.JSONDecodeError:
            arguments = "{}"
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


def in_dialect(renderer: Renderer, content: str, thinking: str, calls: Sequence[ToolCall]) -> str:
    """The turn as text of the renderer's dialect."""
    if renderer.name.startswith("gpt_oss"):
        return _harmony(content, thinking, calls)
    parts = [f"<think>\n{thinking.replace('</think>', '</ think>')}\n</think>\n"] if thinking else []
    parts += [content] if content else []
    parts += [f"<tool_call>\n{_call_object(call)}\n</tool_call>" for call in calls]
    return "\n".join(parts)


def _call_object(call: ToolCall) -> str:
    try:
        arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False)
    except json.JSONDecodeError:
        arguments = call.arguments  # broken, and to be seen as such
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments}}}'


def _harmony(content: str, thinking: str, calls: Sequence[ToolCall]) -> str:
    """Harmony has room for one call in a turn: several commands become one text of several lines."""
    before = f"<|channel|>analysis<|message|>{thinking}<|end|><|start|>assistant" if thinking else ""
    if not calls:
        return f"{before}<|channel|>final<|message|>{content}<|return|>"
    if content:
        before += f"<|channel|>commentary<|message|>{content}<|end|><|start|>assistant"
    name, arguments = calls[0].name, calls[0].arguments
    if len(calls) > 1 and (commands := [_command(call) for call in calls]) and None not in commands:
        arguments = json.dumps({TOOL_ARGUMENT: "\n".join(map(str, commands))}, ensure_ascii=False)
    return f"{before}<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"


def _command(call: ToolCall) -> str | None:
    try:
        found = json.loads(call.arguments)
    except json.JSONDecodeError:
        return None
    command = found.get(TOOL_ARGUMENT) if isinstance(found, dict) and call.name == TOOL_NAME else None
    return command if isinstance(command, str) else None


def answers(calls: Sequence[ToolCall], outputs: Sequence[str]) -> list[dict[str, Any]]:
    """One ``tool`` message a call, as services demand: its own output where each has one, else all with the first."""
    texts = list(outputs)
    if len(texts) != len(calls):
        texts = ["\n".join(outputs), *["[answered with the first call of this turn]"] * (len(calls) - 1)]
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(calls, texts, strict=True)]
