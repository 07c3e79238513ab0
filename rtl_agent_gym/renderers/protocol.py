"""What passes between a renderer and the rest of the package: the tool, turns, and the actions they ask for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ActionKind = Literal["command", "final", "malformed"]

TOOL_NAME = "execute_bash"
"""The one tool that an agent has."""

TOOL_DESCRIPTION = "Run a command in the persistent bash shell and return what it printed."
"""What the model is told of it in the tool's declaration."""

TOOL_ARGUMENT = "command"
"""Its one argument: bash text, any number of lines."""

ARGUMENT_DESCRIPTION = "The bash command to run; several lines and here-documents are fine."
"""What the model is told of the argument."""

MAX_CALLS = 8
"""Calls of one turn that are run; the model is told about the ones beyond."""

MAX_CALLS_READ = 64
"""Calls of one turn that are read at all; a turn of more is malformed, so that reading any turn takes linear time."""

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
"""The tool's declaration, as OpenAI-style chat interfaces and Qwen's chat template have it."""

Message = dict[str, str]
"""A chat message: ``role`` and ``content``."""


@dataclass(frozen=True)
class Action:
    """What one completion asks for."""

    kind: ActionKind
    """``command``: run `commands`. ``final``: the agent is done. ``malformed``: run nothing, send `correction`."""
    commands: tuple[str, ...] = ()
    """One bash text per tool call, in order; empty unless the kind is ``command``."""
    text: str = ""
    """What the model said outside its calls and its thinking."""
    thinking: str = ""
    """What it thought, without the marks around it."""
    correction: str | None = None
    """For ``malformed``: what was wrong, where, and the right form with an example. None otherwise."""
    notes: tuple[str, ...] = ()
    """For ``command``: remarks for the model to be shown beside the output; see `with_notes`."""


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool, as a model or a chat service wrote it."""

    name: str
    arguments: str
    """JSON text, as far as the model got it right."""
    id: str = ""
    """The name that a chat service gave this call; its result goes back under it."""

    @classmethod
    def of(cls, command: str) -> ToolCall:
        """The call that runs a command."""
        return cls(TOOL_NAME, json.dumps({TOOL_ARGUMENT: command}, ensure_ascii=False))


@dataclass(frozen=True)
class ModelTurn:
    """What a model says in one turn, apart from its dialect. The text is prose, whatever it looks like."""

    thinking: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __str__(self) -> str:
        """Text and calls for people to read, in no dialect."""
        return "\n".join(filter(None, [self.text, *(f"{call.name} {call.arguments}" for call in self.calls)]))


def with_notes(outputs: Sequence[str], notes: Sequence[str]) -> list[str]:
    """The outputs of one action, its notes put below the last as lines that start with ``[note]``."""
    shown = list(outputs)
    if not notes:
        return shown
    remarks = "\n".join(f"[note] {note}" for note in notes)
    if not shown:
        return [remarks]
    last = shown[-1]
    shown[-1] = f"{last}{'' if not last or last.endswith(chr(10)) else chr(10)}{remarks}"
    return shown
