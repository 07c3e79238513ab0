"""The interface between renderers and the rest of the package: the tool, turns, and actions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ActionKind = Literal["command", "final", "malformed"]

TOOL_NAME = "execute_bash"
"""The one tool that an agent has."""

TOOL_DESCRIPTION = "Run a command in the persistent bash shell and return what it printed."
"""Its description in the declaration that the model reads."""

TOOL_ARGUMENT = "command"
"""Its one argument: bash text, any number of lines."""

ARGUMENT_DESCRIPTION = "The bash command to run; several lines and here-documents are fine."
"""Its description in the declaration."""

MAX_CALLS = 8
"""Maximum calls of one turn that are run; the model gets a note about further ones."""

MAX_CALLS_READ = 64
"""Maximum calls of one turn; a turn with more is malformed, so that parsing any turn takes linear time."""

TOOL = {
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
"""The tool's declaration, in the form of OpenAI-style chat services and Qwen's chat template."""

Message = dict[str, str]
"""A chat message: ``role`` and ``content``."""


@dataclass(frozen=True)
class Action:
    """What one completion requests."""

    kind: ActionKind
    """``command``: run `commands`. ``final``: the agent is done. ``malformed``: run nothing, send `correction`."""
    commands: tuple[str, ...] = ()
    """One bash text per tool call, in order; empty unless the kind is ``command``."""
    text: str = ""
    """What the model wrote outside its calls and its thinking."""
    thinking: str = ""
    """The model's thinking, without the tags around it."""
    correction: str | None = None
    """For ``malformed``: what was wrong, where, and the right form with an example. None otherwise."""
    notes: tuple[str, ...] = ()
    """For ``command``: notes for the model, shown below the output; see `with_notes`."""


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool, as a model or a chat service wrote it."""

    name: str
    arguments: str
    """JSON text, possibly broken."""
    id: str = ""
    """The id that a chat service gave this call; its result refers to it."""

    @classmethod
    def of(cls, command: str) -> ToolCall:
        """The call that runs a command."""
        return cls(TOOL_NAME, json.dumps({TOOL_ARGUMENT: command}, ensure_ascii=False))


@dataclass(frozen=True)
class ModelTurn:
    """One turn of a model, independent of any dialect. The text is never parsed for calls."""

    thinking: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __str__(self) -> str:
        """Text and calls for people to read."""
        return "\n".join(filter(None, [self.text, *(f"{call.name} {call.arguments}" for call in self.calls)]))


def with_notes(outputs: Sequence[str], notes: Sequence[str]) -> list[str]:
    """The outputs of one action, with its notes below the last as lines that start with ``[note]``."""
    if not notes:
        return list(outputs)
    *others, last = outputs or [""]
    separator = "\n" if last and not last.endswith("\n") else ""
    return [*others, last + separator + "\n".join(f"[note] {note}" for note in notes)]


ANSWERED = "[not run; see the results above]"
"""The reply to calls of a turn that were not run."""


def reply_texts(action: Action, outputs: Sequence[str], calls: int) -> list[str]:
    """What a model reads of its turn where calls are declared natively: one text for each of its calls, at least one.

    Args:
        action: What the turn requested.
        outputs: The text for each command that ran.
        calls: The number of calls in the turn. If fewer of them ran, the last ones get `ANSWERED`.
    """
    texts = list(outputs) if action.kind == "command" else with_notes([action.correction or ""], action.notes)
    if len(texts) > max(calls, 1):
        texts = ["\n".join(texts)]
    return [*texts, *[ANSWERED] * (calls - len(texts))]
