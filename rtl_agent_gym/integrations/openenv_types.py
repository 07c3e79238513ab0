"""What crosses a connection of OpenEnv: a turn, and what the model reads."""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.types import Action, Observation
from pydantic import Field

from ..episodes.turns import StopReason
from ..errors import UsageError
from ..renderers import ToolCall


class RTLAction(Action):
    """A turn: exactly one of the fields is set."""

    command: str | None = None
    """A command to run: the same as one call of the tool."""
    calls: list[dict[str, str]] | None = None
    """The model's calls: ``name``, and ``arguments`` as the JSON text that it wrote."""
    answer: str | None = None
    """The text of a final answer, which ends the episode."""
    stop: StopReason | None = None
    """Why the trainer cuts the model off, such as ``max_tokens``: the files that are there are graded."""


class RTLObservation(Observation):
    """What the model reads, beside OpenEnv's ``done`` and ``reward``, which is this turn's."""

    messages: list[dict[str, str]] = Field(default_factory=list)
    """After `reset`, the prompt."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """After `reset`, the declared tools, as in OpenAI's chat completions."""
    replies: list[str] = Field(default_factory=list)
    """After a turn, the text for each call."""


def read_calls(action: RTLAction) -> list[ToolCall]:
    """The calls of a turn; none for an answer.

    Raises:
        UsageError: A call lacks its name or arguments, or there is none.
    """
    if action.command is not None:
        return [ToolCall.of(action.command)]
    if action.calls is None:
        return []
    if not action.calls or any({"name", "arguments"} - call.keys() for call in action.calls):
        raise UsageError("calls has a name and arguments for each call, and one call at least")
    return [ToolCall(call["name"], call["arguments"], call.get("id", "")) for call in action.calls]
