"""What a gpt-oss completion asks for: Harmony messages, and the rule that decides on them.

A turn is a list of messages, each with a channel (``analysis`` is thinking, ``commentary`` carries calls, ``final`` is
the answer) and, for a call, a recipient. Both sides of the renderer cut a turn into pieces, control tokens and text;
from there on one grammar serves both, `read_turn` and then `decide`. Headers are read as openai-harmony reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rtl_agent_gym.renderers import calls
from rtl_agent_gym.renderers.calls import CallError, printable
from rtl_agent_gym.renderers.codec import Control, Piece
from rtl_agent_gym.renderers.protocol import MAX_CALLS_READ, TOOL_NAME, Action

START, CHANNEL, CONSTRAIN, BODY = (
    Control(mark) for mark in ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>")
)
END, CALL, RETURN = Control("<|end|>"), Control("<|call|>"), Control("<|return|>")
MARKS = (START, CHANNEL, CONSTRAIN, BODY, END, CALL, RETURN)
"""The control tokens of a turn."""
STOPS = (CALL, RETURN)
"""Those that end it."""

RECIPIENT = f"functions.{TOOL_NAME}"
CHANNELS = ("analysis", "commentary", "final")

MAX_MESSAGES = 4 * MAX_CALLS_READ
"""Messages of one turn that are read; a turn of more is malformed."""

EXAMPLE = (
    f"{START}assistant{CHANNEL}commentary to={RECIPIENT} {CONSTRAIN}json{BODY}"
    f'{{"command": "{calls.EXAMPLE_COMMAND}"}}{CALL}'
)
"""The right form of a call, as corrections show it."""

_MARKS = re.compile(f"({'|'.join(map(re.escape, MARKS))})")
_CHANNEL_NAME = re.compile(r"[^\s<]*")
_SPACES = re.compile(r"[ \t\n\f\r]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


class HeaderError(Exception):
    """A turn is not made of Harmony messages. The message is a sentence for the model, without its full stop."""


@dataclass(frozen=True)
class Said:
    """One message of a turn."""

    role: str
    channel: str | None
    recipient: str | None
    body: str
    constrained: bool = False
    """Whether its header says in which format the body is written, as the header of a call does."""
    whole: bool = True
    """Whether it came to its end, as far as is known."""


@dataclass(frozen=True)
class SaidTurn:
    """A turn as messages."""

    messages: tuple[Said, ...]
    stop: Control | None
    """The one of `STOPS` that ended it; None where there is none."""


def pieces_of(text: str) -> list[Piece]:
    """A text with the control tokens written out, as pieces."""
    return [Control(part) if place % 2 else part for place, part in enumerate(_MARKS.split(text)) if part]


def stop_of(pieces: Iterable[Piece]) -> Control | None:
    """What ends a turn, wherever it stands: sampling stops there, and nothing after it was meant."""
    return next((piece for piece in pieces if isinstance(piece, Control) and piece in STOPS), None)


def read_turn(pieces: Sequence[Piece]) -> SaidTurn:
    """The messages in what followed ``<|start|>assistant``.

    Args:
        pieces: The turn. What was not UTF-8 in it is a lone surrogate.

    Raises:
        HeaderError: It is not made of messages.
    """
    said: list[Said] = []
    header: list[str] | None = []
    message: Said | None = None
    body: list[str] = []
    for piece in pieces:
        mark = piece if isinstance(piece, Control) else ""
        if message is not None:
            if mark not in (END, *STOPS):
                body.append(piece)
                continue
            said.append(replace(message, body="".join(body)))
            message, header = None, None
        elif header is None:
            if mark != START:
                raise HeaderError(f"after {END} a new message must start with {START}assistant")
            if len(said) == MAX_MESSAGES:
                raise HeaderError(f"it holds more than {MAX_MESSAGES} messages")
            header = []
        elif mark == BODY:
            message, body = _read_header("".join(header), role=None if said else "assistant"), []
        elif mark in STOPS:
            break
        else:
            header.append(piece)
        if mark in STOPS:
            return SaidTurn(tuple(said), Control(mark))
    if message is not None:
        said.append(replace(message, body="".join(body), whole=False))
    elif header is not None and pieces:
        raise HeaderError(f"a message has no {BODY} between its header and its body")
    return SaidTurn(tuple(said), None)


def decide(messages: Sequence[Said], *, truncated: bool, called: bool) -> Action:
    """The action that a turn's messages ask for.

    Args:
        messages: What the assistant said, in order.
        truncated: Whether the token limit ended the turn.
        called: Whether the turn ended in ``<|call|>``.
    """
    thinking = "\n".join(m.body for m in messages if m.channel == "analysis" and m.recipient is None)
    text = "\n".join(m.body for m in messages if m.channel in ("commentary", "final") and m.recipient is None)
    outcome = _outcome(messages, text, truncated, called)
    return Action(
        outcome.kind,
        outcome.commands,
        printable(text).strip(),
        printable(thinking).strip(),
        correction=outcome.correction,
        notes=outcome.notes,
    )


def malformed(what: str, advice: str = "") -> Action:
    """A turn that nothing can be run of."""
    sentences = " ".join(part for part in (what, "Nothing was run.", advice) if part)
    return Action("malformed", correction=f"ERROR: {sentences}\nThe right form of a call:\n{EXAMPLE}")


def _outcome(messages: Sequence[Said], text: str, truncated: bool, called: bool) -> Action:
    for message in messages:
        if message.role != "assistant":
            return malformed(
                f'Your turn held a message as "{calls.excerpt(message.role)}"; you speak as assistant only.'
            )
    asked = [message for message in messages if message.recipient is not None]
    cut = truncated and bool(messages) and not messages[-1].whole
    if asked:
        return _outcome_of_calls(asked, truncated, cut and messages[-1] is asked[-1])
    if truncated:
        where = "while you were thinking" if cut and messages[-1].channel == "analysis" else "before it was complete"
        return malformed(f"Your reply was cut off by the token limit {where}.", "Be briefer, and call the tool early.")
    for message in messages:
        if message.constrained and message.channel == "commentary":
            return malformed(
                f"Your message is written as a call ({CONSTRAIN}) but its header has no recipient (to={RECIPIENT})."
            )
        if message.channel not in CHANNELS:
            shown = "no channel" if message.channel is None else f'the channel "{calls.excerpt(message.channel)}"'
            return malformed(f"Your message has {shown}; there are {', '.join(CHANNELS)}.")
    if called:
        return malformed(f"Your message ended in {CALL} but had no recipient (to={RECIPIENT}).")
    if not text.strip():
        what = "held nothing but thinking" if any(m.body.strip() for m in messages) else "was empty"
        return malformed(f"Your reply {what}.", "Call the tool, or say in the final channel that you are done.")
    return Action("final")


def _outcome_of_calls(asked: Sequence[Said], truncated: bool, cut: bool) -> Action:
    if len(asked) > MAX_CALLS_READ:
        return malformed(calls.too_many(len(asked)))
    commands: list[str] = []
    own: list[str] = []
    for number, message in enumerate(asked, 1):
        place = "Your tool call" if len(asked) == 1 else f"Call {number} of {len(asked)}"
        if cut and number == len(asked):
            return malformed(
                f"{place} was cut off by the token limit before it was complete.",
                "Be briefer: write long files in several smaller calls, one a turn.",
            )
        try:
            command, notes = _read_call(message)
        except CallError as error:
            return malformed(f"{place} could not be read: {error}.")
        commands.append(command)
        own += notes
    to_run, refused = calls.limit_calls(commands)
    late = ("your reply was cut off by the token limit after the last whole call",) if truncated else ()
    return Action("command", to_run, notes=(*own, *refused, *late))


def _read_call(message: Said) -> tuple[str, tuple[str, ...]]:
    if message.recipient != RECIPIENT:
        raise CallError(f'there is no tool "{calls.excerpt(message.recipient or "")}"; the only tool is "{RECIPIENT}"')
    if not message.body.strip():
        raise CallError("it is empty")
    command, notes = calls.command_of_arguments(calls.decode_whole(message.body))
    if message.channel != "commentary":
        notes += ("the call was run, but calls belong in the commentary channel",)
    return command, notes


def _read_header(header: str, role: str | None) -> Said:
    """A message whose body is still to come. The recipient may stand before the channel or after it."""
    unreadable = HeaderError(f"the message header could not be read: {calls.excerpt(header)}")
    if _SURROGATE.search(header):
        raise HeaderError("a message header is not valid UTF-8")
    before, mark, after = header.partition(CHANNEL)
    channel = None
    if mark:
        channel = _CHANNEL_NAME.match(after)[0]  # type: ignore[index]  # matches nothing at the least
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
    return Said(role, channel, recipient, "", constrained)
