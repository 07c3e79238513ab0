"""What a turn asks for whose calls a chat service reported apart from the text.

No dialect is involved: a fenced block or a quoted tag in such a turn's text is part of an answer and never run.
"""

from __future__ import annotations

from rtl_agent_gym.renderers import calls
from rtl_agent_gym.renderers.calls import CallError, printable
from rtl_agent_gym.renderers.protocol import TOOL_ARGUMENT, TOOL_NAME, Action, NativeCall, NativeTurn

FORM = f'Call the tool "{TOOL_NAME}" with JSON arguments: {{"{TOOL_ARGUMENT}": "{calls.EXAMPLE_COMMAND}"}}'
"""The right form of a call, as corrections show it."""

_MARKS = ("<tool_call>", "<|call|>", "to=functions.")
"""How models write calls that their service then should have taken out of the text."""


def read_native(turn: NativeTurn, *, truncated: bool = False) -> Action:
    """The action in a turn.

    Args:
        turn: What the service reported.
        truncated: Whether the token limit ended it rather than the model.
    """
    outcome = _decide(turn, truncated)
    return Action(
        outcome.kind,
        outcome.commands,
        printable(turn.content.strip()),
        printable(turn.thinking.strip()),
        correction=outcome.correction,
        notes=outcome.notes,
    )


def _decide(turn: NativeTurn, truncated: bool) -> Action:
    if turn.calls:
        return _decide_calls(turn.calls, truncated)
    content = turn.content.strip()
    if truncated:
        where = "before it was complete" if content else "while you were thinking"
        return _malformed(f"Your reply was cut off by the token limit {where}.", "Be briefer, and call the tool early.")
    if not content:
        what = "held nothing but thinking" if turn.thinking.strip() else "was empty"
        return _malformed(f"Your reply {what}.", "Call the tool, or say in plain text that you are done.")
    if TOOL_NAME in content and any(mark in content for mark in _MARKS):
        return _malformed("Your reply has a tool call written out in its text, where calls are not run.", "")
    return Action("final")


def _decide_calls(made: tuple[NativeCall, ...], truncated: bool) -> Action:
    commands: list[str] = []
    notes: tuple[str, ...] = ()
    for number, call in enumerate(made, 1):
        try:
            calls.check_tool(call.name)
            command, more = calls.command_of_arguments(calls.decode_whole(call.arguments))
        except CallError as error:
            place = "Your tool call" if len(made) == 1 else f"Call {number} of {len(made)}"
            if truncated and number == len(made):
                return _malformed(
                    f"{place} was cut off by the token limit before it was complete.",
                    "Be briefer: write long files in several smaller calls, one a turn.",
                )
            return _malformed(f"{place} could not be read: {error}.", "")
        commands.append(command)
        notes += more
    kept, refused = calls.limit_calls(commands)
    cut = ("your reply was cut off by the token limit after the last whole call",) if truncated else ()
    return Action("command", kept, notes=notes + refused + cut)


def _malformed(what: str, advice: str) -> Action:
    sentences = " ".join(part for part in (what, "Nothing was run.", advice) if part)
    return Action("malformed", correction=f"ERROR: {sentences}\n{FORM}")
