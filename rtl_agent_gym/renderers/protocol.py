"""What the rest of the package may ask of a model dialect.

A `Renderer` turns a prompt into what one family of models reads, and what such a model wrote into an `Action`. It has a
text side, which needs nothing but the standard library, and a token side, which appends and never re-renders: whatever
ids the model sampled stay in the next prompt as they are.

Nothing here raises for what a model wrote. A completion that cannot be acted on is an `Action` of kind ``malformed``
whose `Action.correction` tells the model what was wrong and shows the right form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

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


@runtime_checkable
class Renderer(Protocol):
    """One model dialect. Stateless: every method depends on its arguments alone, and one object serves many episodes.

    The methods that deal in ids raise `UsageError` when the renderer was made without the vocabulary they need.
    """

    @property
    def name(self) -> str:
        """The name it is had by from `get_renderer`."""
        ...

    @property
    def stop(self) -> list[str] | list[int]:
        """Where sampling must end: token ids where the renderer has its vocabulary, otherwise their text."""
        ...

    def initial_messages(self, system: str, user: str) -> list[Message]:
        """The opening as chat messages, with the tool declared in the first, for a model behind a chat interface."""
        ...

    def initial_text(self, system: str, user: str) -> str:
        """The opening as the text that the model completes, control tokens written out."""
        ...

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        """The action in a completion.

        Args:
            completion: What the model wrote, with or without its stop token at the end.
            truncated: Whether the token limit ended it rather than the model.
        """
        ...

    def observation_text(self, outputs: Sequence[str]) -> str:
        """What goes back for the commands of one action, one output each, as the content that the model reads."""
        ...

    def correction_text(self, message: str) -> str:
        """`Action.correction` as the content that the model reads."""
        ...

    def turn_text(self, turn: ModelTurn) -> str:
        """A completion that says `turn`, as a model of this dialect would write it."""
        ...

    def read_observation(self, observation: str, count: int) -> list[str]:
        """The outputs in what `observation_text` or `correction_text` gave.

        Args:
            observation: The text that went back.
            count: How many outputs it holds; all are given as one where the text does not tell them apart.
        """
        ...

    def initial_ids(self, system: str, user: str) -> list[int]:
        """The opening as ids. `system` and `user` are plain text: control tokens spelled in them stay text."""
        ...

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        """The action in sampled ids. Ids that do not end in a stop token count as truncated."""
        ...

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        """The ids to append after exactly `action_ids`, up to where the model writes next.

        They close the assistant's turn first when the action did not end in its stop token. Outputs are plain text:
        control tokens spelled in them stay text.
        """
        ...

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        """The same for the correction of a malformed action."""
        ...


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
