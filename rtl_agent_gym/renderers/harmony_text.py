"""Parsing gpt-oss's completions: a turn is split into Harmony's messages, and these determine the action.

Each message has a channel (``analysis`` is thinking, ``commentary`` carries calls, ``final`` is the answer) and, for a
call, a recipient. Both sides of the renderer split a turn into pieces, which `read_turn` parses. Headers are parsed
as openai-harmony does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import calls
from .actions import Call, TurnRules, with_text
from .calls import CallError
from .codec import Control, Piece
from .protocol import MAX_CALLS_READ, TOOL_NAME, Action
from .turns import Kind, Part, text_until

START, CHANNEL, CONSTRAIN, BODY = (
    Control(mark) for mark in ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>")
)
END, CALL, RETURN = Control("<|end|>"), Control("<|call|>"), Control("<|return|>")
MARKS = (START, CHANNEL, CONSTRAIN, BODY, END, CALL, RETURN)
"""The control tokens of a turn."""
STOPS = (CALL, RETURN)
"""The control tokens that end a turn."""

RECIPIENT = f"functions.{TOOL_NAME}"
CHANNELS = ("analysis", "commentary", "final")

MAX_MESSAGES = 4 * MAX_CALLS_READ
"""Maximum messages of one turn; a turn with more is malformed."""

EXAMPLE = (
    f"{START}assistant{CHANNEL}commentary to={RECIPIENT} {CONSTRAIN}json{BODY}"
    f'{{"command": "{calls.EXAMPLE_COMMAND}"}}{CALL}'
)
"""The right form of a call, as corrections show it."""

RULES = TurnRules(f"The right form of a call:\n{EXAMPLE}", finish="say in the final channel that you are done")

_MARKS = re.compile(f"({'|'.join(map(re.escape, MARKS))})")
_CHANNEL_NAME = re.compile(r"[^\s<]*")
_SPACES = re.compile(r"[ \t\n\f\r]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECISION = re.compile(r"[a-z]+(?:\s+to(?==))?")


class _HeaderError(Exception):
    """A header that cannot be parsed. The message is a sentence for the model, without the full stop."""


@dataclass(frozen=True)
class HarmonyMessage(Part):
    """One message of a turn; offsets count characters."""

    role: str = "assistant"
    channel: str | None = None
    recipient: str | None = None
    constrained: bool = False
    """Whether the header names the body's format, as the header of a call does."""


@dataclass(frozen=True)
class HarmonyTurn:
    """A parsed turn."""

    messages: tuple[HarmonyMessage, ...]
    stop: Control | None = None
    """The one of `STOPS` that ended the turn, or None."""
    problem: str = ""
    """Why the rest cannot be parsed, a sentence for the model without the full stop; empty if all was parsed."""


def pieces_of(text: str) -> list[Piece]:
    """A text in which control tokens are written out, as pieces. Those in the JSON of a call are part of its text."""
    pieces: list[Piece] = []
    message, begin, bodies = 0, 0, 0
    while (mark := _MARKS.search(text, begin)) is not None:
        pieces += [text[begin : mark.start()], Control(mark[0])]
        begin = mark.end()
        if mark[0] == BODY and "to=" in text[message : mark.start()] and bodies < MAX_CALLS_READ:
            end = calls.end_of_json(text, begin)
            pieces.append(text[begin:end])
            begin, bodies = end, bodies + 1
        elif mark[0] in (END, *STOPS):
            message = begin
    return [piece for piece in [*pieces, text[begin:]] if piece]


def stopped(pieces: Sequence[Piece]) -> bool:
    """Whether a stop token ended the turn."""
    return any(isinstance(piece, Control) and piece in STOPS for piece in pieces)


def read_turn(pieces: Sequence[Piece]) -> HarmonyTurn:
    """Parse what followed ``<|start|>assistant``. Everything after a stop token is ignored.

    Args:
        pieces: The turn. Bytes that are not UTF-8 are lone surrogates.
    """
    messages: list[HarmonyMessage] = []
    try:
        stop = _read_messages(pieces, messages)
    except _HeaderError as error:
        return HarmonyTurn(tuple(messages), problem=str(error))
    return HarmonyTurn(tuple(messages), stop)


def _read_messages(pieces: Sequence[Piece], messages: list[HarmonyMessage]) -> Control | None:
    """Append the messages of a turn and return its stop token, if any."""
    rest, place = iter(pieces), 0
    while True:
        header, mark = text_until(rest, [BODY, *STOPS])
        if mark is None or mark != BODY:
            if not pieces:
                return None
            raise _HeaderError(f"a message has no {BODY} between its header and its body")
        begun, place = place, place + len(header) + len(mark)
        message = _read_header(header, begun, place, None if messages else "assistant")
        body, mark = text_until(rest, [END, *STOPS])
        place += len(body) + len(mark or "")
        messages.append(replace(message, body=body, ends=place if mark else None, stops=mark in STOPS))
        if mark != END or (following := next(rest, None)) is None:
            return mark if mark in STOPS else None
        if not (isinstance(following, Control) and following == START):
            raise _HeaderError(f"after {END} a new message must start with {START}assistant")
        if len(messages) == MAX_MESSAGES:
            raise _HeaderError(f"it has more than {MAX_MESSAGES} messages")
        place += len(START)


def parse_pieces(pieces: Sequence[Piece], *, truncated: bool) -> Action:
    """The action of a turn.

    Args:
        pieces: What the assistant wrote.
        truncated: Whether the token limit ended the turn.
    """
    turn = read_turn(pieces)
    if turn.problem:
        return (
            RULES.cut_off()
            if truncated
            else RULES.malformed(f"Your reply could not be read as messages: {turn.problem}.")
        )
    plain = [message for message in turn.messages if message.recipient is None]
    thinking = "\n".join(message.body for message in plain if message.channel == "analysis")
    text = "\n".join(message.body for message in plain if message.channel in ("commentary", "final"))
    return with_text(_decide(turn, text, truncated), text, thinking)


def _decide(turn: HarmonyTurn, text: str, truncated: bool) -> Action:
    messages = turn.messages
    for message in messages:
        if message.role != "assistant":
            return RULES.malformed(
                f'Your turn contains a message as "{calls.excerpt(message.role)}"; you speak as assistant only.'
            )
    if called := [message for message in messages if message.recipient is not None]:
        found = [_read_call(message, truncated) for message in called[:MAX_CALLS_READ]]
        return RULES.run(found, truncated=truncated, unread=len(called) - len(found))
    if truncated:
        cut = messages[-1] if messages and messages[-1].ends is None else None
        return RULES.cut_off(thinking=cut is not None and cut.channel == "analysis")
    for message in messages:
        if message.constrained and message.channel == "commentary":
            return RULES.malformed(
                f"Your message is written as a call ({CONSTRAIN}) but its header has no recipient (to={RECIPIENT})."
            )
        if message.channel not in CHANNELS:
            shown = "no channel" if message.channel is None else f'the channel "{calls.excerpt(message.channel)}"'
            return RULES.malformed(f"Your message has {shown}; there are {', '.join(CHANNELS)}.")
    if turn.stop == CALL:
        return RULES.malformed(f"Your message ended in {CALL} but had no recipient (to={RECIPIENT}).")
    if not text.strip():
        return RULES.silent(thought=any(message.body.strip() for message in messages))
    return Action("final")


def _read_call(message: HarmonyMessage, truncated: bool) -> Call:
    if truncated and message.ends is None:
        return Call(None, closed=False)
    try:
        if message.recipient != RECIPIENT:
            named = calls.excerpt(message.recipient or "")
            raise CallError(f'there is no tool "{named}"; the only tool is "{RECIPIENT}"')
        if not message.body.strip():
            raise CallError("it is empty")
        command, notes = calls.command_of_arguments(calls.decode_whole(message.body))
    except CallError as error:
        return Call(None, str(error))
    if message.channel != "commentary":
        notes += ("the call was run, but calls belong in the commentary channel",)
    return Call(command, notes=notes)


def _read_header(header: str, begun: int, place: int, role: str | None) -> HarmonyMessage:
    """A message without its body. The recipient may be before or after the channel.

    Args:
        header: The header's text, up to ``<|message|>``.
        begun: Offset of the header in the turn.
        place: Offset of the body in the turn.
        role: The role if the header need not name it.
    """
    unreadable = _HeaderError(f"the message header could not be read: {calls.excerpt(header)}")
    if _SURROGATE.search(header):
        raise _HeaderError("a message header is not valid UTF-8")
    before, mark, after = header.partition(CHANNEL)
    channel = None
    if mark:
        channel = _CHANNEL_NAME.match(after)[0]  # type: ignore[index]  # also matches the empty text
        if not channel:
            raise unreadable
        after = after[len(channel) :]
    words = [word for word in _SPACES.split((before + after).strip().replace(CONSTRAIN, " " + CONSTRAIN)) if word]
    if role is None:
        role = words.pop(0) if words else ""
    if words and words[0] == role:
        del words[0]
    recipient, constrained = None, False
    if words:
        last = words.pop()
        if last.startswith("to=") or not (words or last.startswith(CONSTRAIN)):
            recipient = last.removeprefix("to=")
        else:
            constrained = True
            recipient = words.pop().removeprefix("to=") if words else None
    if words:
        raise unreadable
    kind: Kind = "call" if recipient is not None else "thinking" if channel == "analysis" else "text"
    opens = _opens(header, begun, place)
    return HarmonyMessage(kind, "", place, opens, None, False, role, channel, recipient, constrained)


def _opens(header: str, begun: int, place: int) -> tuple[int, int] | None:
    """Begin and end of the part of a header that determines the kind of its message.

    This is the channel's name, followed by the recipient's ``to`` for a call, and by ``<|message|>`` for a commentary
    without a recipient, which could have been a call. A recipient before the channel already determines the kind.
    """
    before, mark, after = header.partition(CHANNEL)
    if "to=" in before:
        begin = begun + before.index("to=")
        return begin, begin + len("to")
    name = _DECISION.match(after)
    if not mark or name is None:
        return None
    begin = begun + len(before) + len(mark)
    return begin, place if name[0] == "commentary" else begin + name.end()
