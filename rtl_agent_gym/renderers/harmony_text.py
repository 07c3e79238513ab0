"""What a gpt-oss completion asks for: Harmony messages, and the rule that decides on them.

A turn is a list of messages, each with a channel (``analysis`` is thinking, ``commentary`` carries calls, ``final`` is
the answer) and, for a call, a recipient. `split_messages` reads them from text with the control tokens written out; the
token side has them from openai-harmony's own parser. `decide` serves both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rtl_agent_gym.renderers import calls
from rtl_agent_gym.renderers.calls import CallError, printable
from rtl_agent_gym.renderers.protocol import TOOL_NAME, Action

START, CHANNEL, CONSTRAIN, BODY = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"

RECIPIENT = f"functions.{TOOL_NAME}"
CHANNELS = ("analysis", "commentary", "final")

EXAMPLE = (
    f"{START}assistant{CHANNEL}commentary to={RECIPIENT} {CONSTRAIN}json{BODY}"
    f'{{"command": "{calls.EXAMPLE_COMMAND}"}}{CALL}'
)
"""The right form of a call, as corrections show it."""

_ENDS = re.compile("|".join(map(re.escape, (END, CALL, RETURN))))


class HeaderError(Exception):
    """A turn is not made of Harmony messages. The message is a sentence for the model, without its full stop."""


@dataclass(frozen=True)
class Said:
    """One message of a turn."""

    role: str
    channel: str | None
    recipient: str | None
    body: str
    whole: bool = True
    """Whether it came to its end, as far as is known."""


def split_messages(text: str) -> list[Said]:
    """The messages in what followed ``<|start|>assistant``. Raises `HeaderError`."""
    said: list[Said] = []
    position, first = 0, True
    while position < len(text):
        if not first:
            if not text.startswith(START, position):
                raise HeaderError(f"after {END} a new message must start with {START}assistant")
            position += len(START)
        header_end = text.find(BODY, position)
        if header_end < 0:
            raise HeaderError(f"a message has no {BODY} between its header and its body")
        end = _ENDS.search(text, header_end + len(BODY))
        body = text[header_end + len(BODY) : end.start() if end else len(text)]
        role, channel, recipient = _read_header(text[position:header_end], role="assistant" if first else None)
        said.append(Said(role, channel, recipient, body, whole=end is not None))
        if end is None or end[0] != END:  # sampling stops at the other two; nothing after them was meant
            break
        position, first = end.end(), False
    return said


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


def _read_header(header: str, role: str | None) -> tuple[str, str | None, str | None]:
    """Role, channel and recipient. The recipient may stand before the channel or after it."""
    before, mark, after = header.partition(CHANNEL)
    channel = re.match(r"[^\s<]*", after)[0] if mark else None  # type: ignore[index]  # matches nothing at the least
    rest = before + " " + after[len(channel or "") :].replace(CONSTRAIN, " " + CONSTRAIN)
    words = rest.split()
    if role is None:
        role = words.pop(0) if words else ""
    if len(words) > 2 or (mark and not channel):
        raise HeaderError(f"the message header could not be read: {calls.excerpt(header)}")
    named = [word for word in words if not word.startswith(CONSTRAIN)]
    return role, channel, named[0].removeprefix("to=") if named else None
