"""From a turn to the action that it requests: the rules that all dialects share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import calls
from .calls import CallError, printable
from .protocol import MAX_CALLS, MAX_CALLS_READ, TOOL_ARGUMENT, TOOL_NAME, Action, ModelTurn, ToolCall

BE_BRIEF = "Be briefer, and call the tool early."


@dataclass(frozen=True)
class Call:
    """A parsed call: its command, or why it has none."""

    command: str | None
    error: str = ""
    closed: bool = True
    """Whether the call is complete; otherwise it may have been cut off."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TurnRules:
    """The actions that turns lead to, with corrections worded for one dialect.

    Args:
        form: The right form of a call, shown at the end of every correction.
        finish: How the model should end the episode.
    """

    form: str
    finish: str = "say in plain text that you are done"

    def malformed(self, what: str, advice: str = "") -> Action:
        """A turn whose commands are not run, with the reason and advice for the model."""
        sentences = " ".join(part for part in (what, "Nothing was run.", advice) if part)
        return Action("malformed", correction=f"ERROR: {sentences}\n{self.form}")

    def cut_off(self, *, thinking: bool = False) -> Action:
        """A turn that the token limit ended before any call was complete."""
        where = "while you were thinking" if thinking else "before it was complete"
        return self.malformed(f"Your reply was cut off by the token limit {where}.", BE_BRIEF)

    def silent(self, *, thought: bool) -> Action:
        """A turn with neither text nor calls."""
        what = "contained nothing but thinking" if thought else "was empty"
        return self.malformed(f"Your reply {what}.", f"Call the tool, or {self.finish}.")

    def run(self, found: Sequence[Call], *, truncated: bool, unread: int = 0, notes: Sequence[str] = ()) -> Action:
        """The action of a turn with calls. They are run only if all of them can be parsed.

        Args:
            found: The parsed calls, in order.
            truncated: Whether the token limit ended the turn.
            unread: The number of further calls, which were not parsed.
            notes: Further notes for the model.
        """
        count = len(found) + unread
        if unread:
            return self.malformed(
                f"Your reply contains {count} tool calls. Send at most {MAX_CALLS} a turn; of over {MAX_CALLS_READ}, "
                "none is run."
            )
        for number, call in enumerate(found, 1):
            if call.command is not None:
                continue
            which = "Your tool call" if count == 1 else f"Call {number} of {count}"
            if truncated and number == count and not call.closed:
                return self.malformed(
                    f"{which} was cut off by the token limit before it was complete.",
                    "Be briefer: write long files in several smaller calls, one a turn.",
                )
            return self.malformed(f"{which} could not be read: {call.error}.")
        commands, refused = limit_calls([call.command for call in found if call.command is not None])
        call_notes = [note for call in found for note in call.notes]
        cut_off = ["your reply was cut off by the token limit after the last complete call"] if truncated else []
        return Action("command", commands, notes=(*call_notes, *refused, *notes, *cut_off))


def limit_calls(commands: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands to run, and a note when some are refused."""
    if len(commands) <= MAX_CALLS:
        return tuple(commands), ()
    refused = (
        f"{len(commands)} calls in one turn: the first {MAX_CALLS} were run, the other {len(commands) - MAX_CALLS} "
        f"were not. Send those again, at most {MAX_CALLS} a turn."
    )
    return tuple(commands[:MAX_CALLS]), (refused,)


def with_text(action: Action, text: str, thinking: str) -> Action:
    """The action with the turn's text and thinking added, in valid Unicode."""
    return replace(action, text=printable(text).strip(), thinking=printable(thinking).strip())


NATIVE = TurnRules(f'Call the tool "{TOOL_NAME}" with JSON arguments: {{"{TOOL_ARGUMENT}": "{calls.EXAMPLE_COMMAND}"}}')

_SPELLED_CALLS = ("<tool_call>", "<|call|>", "to=functions.")
"""Marks of calls that the chat service should have removed from the text."""


def native_action(turn: ModelTurn, *, truncated: bool = False) -> Action:
    """The action of a turn whose calls a chat service reported separately from the text.

    No dialect is involved: a fenced block or a quoted tag in such a turn's text is part of an answer and never run.
    """
    return with_text(_native_outcome(turn, truncated), turn.text, turn.thinking)


def _native_outcome(turn: ModelTurn, truncated: bool) -> Action:
    if turn.calls:
        return NATIVE.run([read_call(call) for call in turn.calls], truncated=truncated)
    text = turn.text.strip()
    if truncated:
        return NATIVE.cut_off(thinking=not text)
    if not text:
        return NATIVE.silent(thought=bool(turn.thinking.strip()))
    if TOOL_NAME in text and any(mark in text for mark in _SPELLED_CALLS):
        return NATIVE.malformed("Your reply has a tool call written out in its text, where calls are not run.")
    return Action("final")


def read_call(call: ToolCall) -> Call:
    """Parse a call of a `ModelTurn`."""
    try:
        calls.check_tool(call.name)
        command, notes = calls.command_of_arguments(calls.decode_whole(call.arguments))
    except CallError as error:
        return Call(None, str(error), closed=False)
    return Call(command, notes=notes)
