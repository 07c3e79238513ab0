"""gpt-oss's dialect: OpenAI's Harmony format.

Prompts and results have the same ids as openai-harmony's, and headers are parsed in the same way. A turn is split into
messages, each with a channel (``analysis`` is thinking, ``commentary`` carries calls, ``final`` is the answer) and, for
a call, a recipient. One grammar (`read_turn`) parses both ids and text. openai-harmony is imported, and its vocabulary
loaded, only when the token side is first used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..errors import UsageError
from .actions import (
    EXAMPLE_COMMAND,
    Call,
    CallError,
    TurnRules,
    command_of_arguments,
    decode_whole,
    end_of_json,
    excerpt,
    with_text,
)
from .protocol import (
    ARGUMENT_DESCRIPTION,
    MAX_CALLS_READ,
    TOOL_ARGUMENT,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    Action,
    Frame,
    Kind,
    Message,
    Part,
    Phrase,
    between,
    text_until,
)
from .renderer import Renderer, each_output, one_below_another
from .vocabularies import Codec, Control, HarmonyCodec, Piece, harmony_encoding

EFFORTS = {"gpt_oss": "medium"} | {f"gpt_oss_{effort}_reasoning": effort for effort in ("low", "medium", "high")}
"""Reasoning effort by renderer name."""

GPT_OSS_NAMES = tuple(EFFORTS)

CALL_ID, RETURN_ID = 200012, 200002
"""Harmony's ids for ``<|call|>`` and ``<|return|>``, at which sampling stops."""

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
    f'{START}assistant{CHANNEL}commentary to={RECIPIENT} {CONSTRAIN}json{BODY}{{"command": "{EXAMPLE_COMMAND}"}}{CALL}'
)
"""The right form of a call, as corrections show it."""

RULES = TurnRules(f"The right form of a call:\n{EXAMPLE}", finish="say in the final channel that you are done")

_MARKS = re.compile(f"({'|'.join(map(re.escape, MARKS))})")
_CHANNEL_NAME = re.compile(r"[^\s<]*")
_SPACES = re.compile(r"[ \t\n\f\r]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECISION = re.compile(r"[a-z]+(?:\s+to(?==))?")


class GptOssRenderer(Renderer):
    """gpt-oss, with a name of `EFFORTS` and Harmony's own vocabulary. See `Renderer` for the methods."""

    END = END
    thinks = one_call = True

    def __init__(self, name: str = "gpt_oss", tokenizer: Any = None) -> None:
        if name not in EFFORTS:
            raise UsageError(f"no gpt-oss renderer {name!r}; choose one of {', '.join(EFFORTS)}")
        super().__init__(name)

    @property
    def stop(self) -> list[str] | list[int]:
        return [CALL_ID, RETURN_ID]

    @cached_property
    def codec(self) -> Codec:
        return HarmonyCodec(harmony_encoding(), MARKS)

    def initial_messages(self, system: str, user: str) -> list[Message]:
        return [{"role": "system", "content": _developer_text(system)}, {"role": "user", "content": user}]

    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        rules = _SYSTEM_TEXT.format(effort=EFFORTS[self.name])
        rules += "\nCalls to these tools must go to the commentary channel: 'functions'."
        return _opening(("system", rules), ("developer", _developer_text(system)), ("user", user))

    def plain_pieces(self, system: str, user: str) -> list[Piece]:
        instructions = [("developer", f"# Instructions\n\n{system}")] if system else []
        return _opening(("system", _SYSTEM_TEXT.format(effort=EFFORTS[self.name])), *instructions, ("user", user))

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        return parse_pieces(pieces_of(completion), truncated=truncated)

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        return parse_pieces(self.codec.pieces(ids), truncated=True)

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        return self.parse_text(completion, truncated=truncated)

    def read_parts(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        messages = read_turn(self.codec.pieces(ids)).messages
        return [part for message in messages for part in (message.stripped() if trimmed else [message])]

    def frame(self, phrase: Phrase, *, last: bool) -> Frame:
        following = [] if last else [START, "assistant"]
        if phrase.kind == "call":
            before = [CHANNEL, "commentary to", f"=functions.{phrase.tool} ", CONSTRAIN, "json", BODY]
            return Frame(before, [CALL, *following], opens=(1, 2), ends=1, stops=last)
        channel = "analysis" if phrase.kind == "thinking" else "final" if last else "commentary"
        opens = (1, 3) if channel == "commentary" else (1, 2)
        stops = channel == "final"
        return Frame([CHANNEL, channel, BODY], [RETURN if stops else END, *following], opens, ends=1, stops=stops)

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        """See `Renderer.reply_pieces`. The header of each result is missing here; `observation_ids` adds it."""
        return one_below_another(contents)

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        return [START, "user", BODY, *reply, END, *_ASSISTANT]

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        return self._from_tool(each_output(outputs), action_ids)

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        if action_ids and action_ids[-1] == CALL_ID:  # after a call the model expects a result of the tool
            return self._from_tool([[message]], action_ids)
        return super().correction_ids(message, action_ids)

    def _from_tool(self, contents: Sequence[Sequence[Piece]], action_ids: Sequence[int]) -> list[int]:
        header = (START, f"{RECIPIENT} to=assistant", CHANNEL, "commentary", BODY)
        results = [piece for content in contents for piece in (*header, *content, END)]
        return self.next_turn([*results, *_ASSISTANT], action_ids)

    def results(self, pieces: Sequence[Piece]) -> list[str]:
        return between(pieces, BODY, [END, *STOPS])


_ASSISTANT: tuple[Piece, ...] = (START, "assistant")


def _opening(*messages: tuple[str, str]) -> list[Piece]:
    return [piece for role, body in messages for piece in (START, role, BODY, body, END)] + list(_ASSISTANT)


def _developer_text(system: str) -> str:
    """Instructions and the tool's declaration, in openai-harmony's words."""
    instructions = f"# Instructions\n\n{system}\n\n" if system else ""
    return instructions + (
        "# Tools\n\n## functions\n\nnamespace functions {\n\n"
        f"// {TOOL_DESCRIPTION}\n"
        f"type {TOOL_NAME} = (_: {{\n// {ARGUMENT_DESCRIPTION}\n{TOOL_ARGUMENT}: string,\n}}) => any;\n\n"
        "} // namespace functions"
    )


_SYSTEM_TEXT = (
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\n"
    "Reasoning: {effort}\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)


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
    """The token of `STOPS` that ended the turn, or None."""
    problem: str = ""
    """Why the rest cannot be parsed, as a sentence for the model without the full stop; empty if all was parsed."""


def pieces_of(text: str) -> list[Piece]:
    """Split a text with control tokens written out into pieces. Those inside the JSON of a call stay text."""
    pieces: list[Piece] = []
    begin, bodies, addressed = 0, 0, False
    while (mark := _MARKS.search(text, begin)) is not None:
        before = text[begin : mark.start()]
        pieces += [before, Control(mark[0])]
        addressed = addressed or "to=" in before
        begin = mark.end()
        if mark[0] == BODY and addressed and bodies < MAX_CALLS_READ:
            end = end_of_json(text, begin)
            pieces.append(text[begin:end])
            begin, bodies = end, bodies + 1
        elif mark[0] in (END, *STOPS):
            addressed = False
    return [piece for piece in [*pieces, text[begin:]] if piece]


def read_turn(pieces: Sequence[Piece]) -> HarmonyTurn:
    """Parse what followed ``<|start|>assistant``. Everything after a stop token is ignored.

    Bytes that are not UTF-8 are lone surrogates.
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
    """The action of a turn; `truncated` is whether the token limit ended it, if no stop token did."""
    turn = read_turn(pieces)
    truncated = truncated and not any(isinstance(piece, Control) and piece in STOPS for piece in pieces)
    if turn.problem:
        if truncated:
            return RULES.cut_off()
        return RULES.malformed(f"Your reply could not be read as messages: {turn.problem}.")
    plain = [message for message in turn.messages if message.recipient is None]
    thinking = "\n".join(message.body for message in plain if message.channel == "analysis")
    text = "\n".join(message.body for message in plain if message.channel in ("commentary", "final"))
    return with_text(_decide(turn, text, truncated), text, thinking)


def _decide(turn: HarmonyTurn, text: str, truncated: bool) -> Action:
    messages = turn.messages
    for message in messages:
        if message.role != "assistant":
            return RULES.malformed(
                f'Your turn contains a message as "{excerpt(message.role)}"; you speak as assistant only.'
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
            shown = "no channel" if message.channel is None else f'the channel "{excerpt(message.channel)}"'
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
            named = excerpt(message.recipient or "")
            raise CallError(f'there is no tool "{named}"; the only tool is "{RECIPIENT}"')
        if not message.body.strip():
            raise CallError("it is empty")
        command, notes = command_of_arguments(decode_whole(message.body))
    except CallError as error:
        return Call(None, str(error))
    if message.channel != "commentary":
        notes += ("the call was run, but calls belong in the commentary channel",)
    return Call(command, notes=notes)


def _read_header(header: str, begun: int, place: int, role: str | None) -> HarmonyMessage:
    """Parse a header into a message without its body. The recipient may be before or after the channel.

    `begun` and `place` are the offsets of the header, which ends with ``<|message|>``, and of the body in the turn.
    `role` is given if the header may omit it.
    """
    unreadable = _HeaderError(f"the message header could not be read: {excerpt(header)}")
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
    return HarmonyMessage(
        kind, "", place, opens, role=role, channel=channel, recipient=recipient, constrained=constrained
    )


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
