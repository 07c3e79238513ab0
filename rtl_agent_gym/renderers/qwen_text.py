"""What a Qwen completion asks for, read from its text.

The text is taken apart once, from left to right, into thinking, calls and the rest; then one rule decides. Tags inside
the JSON of a call, such as ``grep '</tool_call>'``, are part of the command and not tags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rtl_agent_gym.renderers import calls
from rtl_agent_gym.renderers.calls import CallError, printable
from rtl_agent_gym.renderers.fences import read_fences
from rtl_agent_gym.renderers.protocol import MAX_CALLS_READ, TOOL_NAME, Action

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

EXAMPLE = f'{CALL_OPEN}\n{{"name": "{TOOL_NAME}", "arguments": {{"command": "{calls.EXAMPLE_COMMAND}"}}}}\n{CALL_CLOSE}'
"""The right form of a call, as corrections show it."""

_TAGS = re.compile("|".join(map(re.escape, (THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE))))
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class _Call:
    """One ``<tool_call>``: its command, or why there is none."""

    command: str | None
    error: str = ""
    closed: bool = True
    notes: tuple[str, ...] = ()


@dataclass
class _Parts:
    """A completion taken apart."""

    thinking: list[str] = field(default_factory=list)
    thought_calls: list[_Call] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    """The first `MAX_CALLS_READ`."""
    unread_calls: int = 0
    """Calls beyond those."""
    text: str = ""
    still_thinking: bool = False
    """Whether a ``<think>`` was never closed."""
    stray_close: bool = False
    """Whether a ``</tool_call>`` stood outside a call."""


def parse_completion(completion: str, *, truncated: bool = False) -> Action:
    """The action in a completion whose stop token has been taken off."""
    parts = _take_apart(completion)
    thinking = "\n".join(block.strip("\n") for block in parts.thinking).strip()
    outcome = _decide(parts, truncated)
    return Action(
        outcome.kind,
        outcome.commands,
        printable(parts.text),
        printable(thinking),
        correction=outcome.correction,
        notes=outcome.notes,
    )


def _take_apart(text: str) -> _Parts:
    parts, visible = _Parts(), []
    position, opened = 0, False
    while (tag := _TAGS.search(text, position)) is not None:
        visible.append(text[position : tag.start()])
        position = tag.end()
        if tag[0] == THINK_OPEN:
            end, opened = text.find(THINK_CLOSE, position), True
            parts.still_thinking = end < 0
            thought = text[position:] if end < 0 else text[position:end]
            parts.thinking.append(thought)
            parts.thought_calls += _calls_in(thought, MAX_CALLS_READ - len(parts.thought_calls))
            position = len(text) if end < 0 else end + len(THINK_CLOSE)
        elif tag[0] == THINK_CLOSE and not opened:
            # The opening was part of the prompt: all up to here was thinking.
            opened, visible = True, []
            parts.thinking.append(text[: tag.start()])
            parts.thought_calls, parts.calls, parts.unread_calls, parts.stray_close = parts.calls, [], 0, False
        elif tag[0] == CALL_OPEN and len(parts.calls) == MAX_CALLS_READ:
            parts.unread_calls += 1  # reading each might go through all of the text
        elif tag[0] == CALL_OPEN:
            call, position = _read_call(text, position)
            parts.calls.append(call)
        elif tag[0] == CALL_CLOSE:
            parts.stray_close = True
    visible.append(text[position:])
    parts.text = "".join(visible).strip()
    return parts


def _calls_in(thought: str, most: int) -> list[_Call]:
    found: list[_Call] = []
    position = 0
    while len(found) < most and (start := thought.find(CALL_OPEN, position)) >= 0:
        call, position = _read_call(thought, start + len(CALL_OPEN))
        found.append(call)
    return found


def _read_call(text: str, position: int) -> tuple[_Call, int]:
    """The call whose opening tag ends at `position`, and where reading goes on."""
    start = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # matches nothing at the least
    body_end, after, closed = _extent(text, start)
    try:
        value, end = calls.decode_json(text, start)
    except CallError as error:
        # Said anew of the body alone: the decoder may have run on into what follows the call.
        return _Call(None, _why_broken(text[start:body_end]) or str(error), closed), after
    body_end, after, closed = _extent(text, end)
    rest = text[end:body_end]
    if rest.strip() and (closed or not rest[0].isspace()):
        return _Call(None, f"after the JSON object there is more text: {calls.excerpt(rest.strip())}", closed), after
    try:
        command, notes = calls.command_of_call(value)
    except CallError as error:
        return _Call(None, str(error), closed), after if closed else end
    if closed:
        return _Call(command, notes=notes), after
    return _Call(command, closed=False, notes=(*notes, f"the call was run though {CALL_CLOSE} was missing")), end


def _extent(text: str, start: int) -> tuple[int, int, bool]:
    """Where the body of a call ends, where what follows it starts, and whether it has its closing tag."""
    tag = _TAGS.search(text, start)
    if tag is None:
        return len(text), len(text), False
    return (tag.start(), tag.end(), True) if tag[0] == CALL_CLOSE else (tag.start(), tag.start(), False)


def _why_broken(body: str) -> str:
    if not body.strip():
        return "it is empty"
    try:
        calls.decode_whole(body)
    except CallError as error:
        return str(error)
    return ""


def _decide(parts: _Parts, truncated: bool) -> Action:
    if parts.calls:
        return _decide_calls(parts, truncated)
    fenced = _decide_fences(parts, truncated)
    if fenced is not None:
        return fenced
    if truncated:
        where = "while you were thinking" if parts.still_thinking else "before it was complete"
        return _malformed(f"Your reply was cut off by the token limit {where}.", "Be briefer, and call the tool early.")
    if any(call.command is not None for call in parts.thought_calls) or (parts.thought_calls and not parts.text):
        return _malformed(
            f"Your tool call was inside your thinking ({THINK_OPEN}…{THINK_CLOSE}), where calls are not run.",
            f"Close your thinking with {THINK_CLOSE} first, then call the tool.",
        )
    if not parts.text:
        if parts.still_thinking:
            return _malformed(f"Your thinking was never closed with {THINK_CLOSE}, and nothing followed it.", "")
        what = "held nothing but thinking" if parts.thinking else "was empty"
        return _malformed(f"Your reply {what}.", "Call the tool, or say in plain text that you are done.")
    if parts.stray_close:
        return _malformed(f"Your reply has a {CALL_CLOSE} without a {CALL_OPEN} before it.", "")
    if _is_bare_call(parts.text):
        return _malformed(f"Your reply is a call without {CALL_OPEN} and {CALL_CLOSE} around it.", "")
    return Action("final")


def _decide_calls(parts: _Parts, truncated: bool) -> Action:
    if parts.unread_calls:
        return _malformed(calls.too_many(len(parts.calls) + parts.unread_calls), "")
    for number, call in enumerate(parts.calls, 1):
        if call.command is not None:
            continue
        place = "Your tool call" if len(parts.calls) == 1 else f"Call {number} of {len(parts.calls)}"
        if truncated and number == len(parts.calls) and not call.closed:
            return _malformed(
                f"{place} was cut off by the token limit before it was complete.",
                "Be briefer: write long files in several smaller calls, one a turn.",
            )
        return _malformed(f"{place} could not be read: {call.error}.", "")
    commands, notes = calls.limit_calls([call.command for call in parts.calls if call.command is not None])
    own = tuple(note for call in parts.calls for note in call.notes)
    return Action("command", commands, notes=own + notes + _side_notes(parts, commands, truncated))


def _decide_fences(parts: _Parts, truncated: bool) -> Action | None:
    fences = [fence for fence in read_fences(parts.text) if fence.is_shell]
    if not fences:
        return None
    if not fences[-1].closed:
        if truncated:
            return _malformed("Your ```bash block was cut off by the token limit.", "Write long files in pieces.")
        return _malformed("Your ```bash block has no closing ``` line.", "")
    try:
        found = [calls.check_command(fence.body) for fence in fences]
    except CallError as error:
        return _malformed(f"Your ```bash block could not be run: {error}.", "")
    commands, notes = calls.limit_calls(found)
    taken = f"{'a' if len(found) == 1 else 'each'} ```bash block was taken as a call; use {CALL_OPEN} instead"
    return Action("command", commands, notes=(taken, *notes, *_side_notes(parts, commands, truncated)))


def _side_notes(parts: _Parts, commands: tuple[str, ...], truncated: bool) -> tuple[str, ...]:
    """What the model should know of a turn whose commands were run all the same."""
    notes = []
    if any(call.command is not None and call.command not in commands for call in parts.thought_calls):
        notes.append("a call inside your thinking was not run")
    if truncated:
        notes.append("your reply was cut off by the token limit after the last whole call")
    return tuple(notes)


def _is_bare_call(text: str) -> bool:
    bodies = [text, *(fence.body for fence in read_fences(text) if fence.language in ("", "json", "tool_call"))]
    return any(_names_tool(body) for body in bodies)


def _names_tool(body: str) -> bool:
    if TOOL_NAME not in body:
        return False
    try:
        value = calls.decode_whole(body)
    except CallError:
        return False
    return isinstance(value, dict) and value.get("name") == TOOL_NAME


def _malformed(what: str, advice: str) -> Action:
    sentences = " ".join(part for part in (what, "Nothing was run.", advice) if part)
    return Action("malformed", correction=f"ERROR: {sentences}\nThe right form of a call:\n{EXAMPLE}")
