"""Qwen3's dialect: ChatML turns, calls in ``<tool_call>`` tags, results in ``<tool_response>`` tags.

Results and corrections go back as a user turn of tool responses. The model's chat template treats such a turn as part
of a tool loop, in which it keeps earlier thinking; so an append-only history matches the model's training.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

from ..errors import UsageError
from .actions import (
    EXAMPLE_COMMAND,
    Call,
    CallError,
    TurnRules,
    check_command,
    command_of_call,
    decode_json,
    decode_whole,
    end_of_json,
    excerpt,
    with_text,
)
from .protocol import MAX_CALLS_READ, TOOL, TOOL_NAME, Action, Frame, Kind, Message, ModelTurn, Part, Phrase, between
from .renderer import Renderer, one_below_another, split_results, with_example
from .vocabularies import Control, Piece

START, END = Control("<|im_start|>"), Control("<|im_end|>")
RESPONSE_OPEN, RESPONSE_CLOSE = Control("<tool_response>"), Control("</tool_response>")

THINK_OPEN, THINK_CLOSE = Control("<think>"), Control("</think>")
CALL_OPEN, CALL_CLOSE = Control("<tool_call>"), Control("</tool_call>")

OPENINGS: dict[str, list[Piece]] = {
    "qwen3": [],
    "qwen3_disable_thinking": [THINK_OPEN, "\n\n", THINK_CLOSE, "\n\n"],
    "qwen3_instruct": [],
}
"""The beginning of each turn of the assistant, by renderer name."""

QWEN_NAMES = tuple(OPENINGS)

_EXAMPLE = (CALL_OPEN, f'\n{{"name": "{TOOL_NAME}", "arguments": {{"command": "{EXAMPLE_COMMAND}"}}}}\n', CALL_CLOSE)
EXAMPLE = "".join(_EXAMPLE)
"""The right form of a call, as corrections show it."""

RULES = TurnRules(f"The right form of a call:\n{EXAMPLE}")

_TAGS = re.compile("|".join(map(re.escape, (THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE))))
_SPACE = re.compile(r"\s*")
_ARGUMENTS = re.compile(r'"(?:arguments|args)"\s*:\s*')
_MARKDOWN = MarkdownIt("zero").enable(["code", "fence"]).disable(["normalize", "inline"])


class QwenRenderer(Renderer):
    """Qwen3 and related models. See `Renderer` for the methods.

    ``qwen3`` thinks, ``qwen3_disable_thinking`` opens each turn with an empty think block, and ``qwen3_instruct`` is
    for models without thinking.
    """

    END = END

    def __init__(self, name: str = "qwen3", tokenizer: Any = None) -> None:
        if name not in OPENINGS:
            raise UsageError(f"no Qwen renderer {name!r}; choose one of {', '.join(QWEN_NAMES)}")
        super().__init__(name, tokenizer)
        self.thinks = name == "qwen3"

    def initial_messages(self, system: str, user: str) -> list[Message]:
        return [
            {"role": "system", "content": "".join(_system_content(system))},
            {"role": "user", "content": user},
        ]

    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        return self._opening(_system_content(system), user)

    def plain_pieces(self, system: str, user: str) -> list[Piece]:
        return self._opening([system] if system else [], user)

    def _opening(self, system: Sequence[Piece], user: str) -> list[Piece]:
        declared = [START, "system\n", *system, END, "\n"] if system else []
        return [*declared, START, "user\n", user, END, "\n", *self._assistant]

    @property
    def _assistant(self) -> list[Piece]:
        return [START, "assistant\n", *OPENINGS[self.name]]

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        found = split_completion(completion)
        thinking = "\n".join(block.strip("\n") for block in found.bodies("thinking"))
        return with_text(_decide(found, truncated), found.text, thinking)

    def text_until_stop(self, text: str) -> tuple[str, bool]:
        """See `Renderer.text_until_stop`. A stop token in a call's JSON is part of the call."""
        position = 0
        for _ in range(MAX_CALLS_READ):  # bounded, since parsing a call may scan the whole text
            end = text.find(END, position)
            call = text.find(CALL_OPEN, position, max(end, 0))
            if call < 0:
                break
            position = end_of_json(text, call + len(CALL_OPEN))
        end = text.find(END, position)
        return (text, False) if end < 0 else (text[:end], True)

    def read_parts(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        before_stop, stopped = self.until_stop(ids)
        text = self.codec.decode(before_stop)
        if trimmed:
            return contents_of(text, len(text) + len(END) if stopped else None)
        return split_completion(text).parts

    def frame(self, phrase: Phrase, *, last: bool) -> Frame:
        end: list[Piece] = [END] if last else []
        if phrase.kind == "thinking":
            return Frame([THINK_OPEN, "\n"], ["\n", THINK_CLOSE, "\n\n", *end], opens=(0, 1), ends=2)
        if phrase.kind == "text":
            return Frame(after=end or ["\n"], ends=len(end), stops=last)
        name = json.dumps(phrase.tool, ensure_ascii=False)
        before = [CALL_OPEN, f'\n{{"name": {name}, "arguments": ']
        return Frame(before, ["}\n", CALL_CLOSE, *(end or ["\n"])], opens=(0, 1), ends=2 + len(end), stops=last)

    def turn_text(self, turn: ModelTurn) -> str:
        """See `Renderer.turn_text`. A ``</think>`` inside the thinking gets a space, so that it does not close it."""
        return super().turn_text(replace(turn, thinking=turn.thinking.replace(THINK_CLOSE, "</ think>")))

    def instead_of_text(self, *, first: bool) -> list[Control]:
        return [CALL_OPEN, THINK_OPEN] if first and self.thinks else [CALL_OPEN]

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        return one_below_another(contents, [RESPONSE_OPEN, "\n"], ["\n", RESPONSE_CLOSE])

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        return ["\n", START, "user\n", *reply, END, "\n", *self._assistant]

    def correction_pieces(self, message: str) -> list[Piece]:
        return with_example(message, _EXAMPLE)

    def results(self, pieces: Sequence[Piece]) -> list[str]:
        found = between(pieces, RESPONSE_OPEN, [RESPONSE_CLOSE])
        return [text.removeprefix("\n").removesuffix("\n") for text in found]

    def read_observation(self, observation: str, count: int) -> list[str]:
        return split_results(observation, (f"{RESPONSE_OPEN}\n", f"\n{RESPONSE_CLOSE}"), count) or [observation]


def _system_content(system: str) -> list[Piece]:
    """The system message with the tool's declaration, worded as in Qwen's chat template."""
    return [
        f"{system}\n\n" if system else "",
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{json.dumps(TOOL)}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within ",
        CALL_OPEN,
        CALL_CLOSE,
        " XML tags:\n",
        CALL_OPEN,
        '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
        CALL_CLOSE,
    ]


@dataclass
class SplitCompletion:
    """A completion split into parts, which cover everything except the tags between them."""

    parts: list[Part] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """The first `MAX_CALLS_READ` calls; the others are only counted."""
    unread_calls: int = 0
    stray_close: bool = False
    """Whether there is a ``</tool_call>`` outside a call."""

    def bodies(self, kind: Kind) -> list[str]:
        return [part.body for part in self.parts if part.kind == kind]

    @property
    def text(self) -> str:
        """The text outside thinking and calls."""
        return "".join(self.bodies("text")).strip()

    @property
    def still_thinking(self) -> bool:
        """Whether a ``<think>`` was never closed."""
        return any(part.kind == "thinking" and part.ends is None for part in self.parts)


def split_completion(text: str) -> SplitCompletion:
    """Split a completion from which the stop token was removed."""
    found = SplitCompletion()
    position, opened = 0, False

    def add(kind: Kind, begin: int, end: int, opens: tuple[int, int] | None = None, ends: int | None = None) -> None:
        if opens is not None or end > begin:
            found.parts.append(Part(kind, text[begin:end], begin, opens, ends))

    while (tag := _TAGS.search(text, position)) is not None:
        add("text", position, tag.start())
        position = tag.end()
        if tag[0] == THINK_OPEN:
            close, opened = text.find(THINK_CLOSE, position), True
            begin, position = position, len(text) if close < 0 else close + len(THINK_CLOSE)
            add("thinking", begin, position if close < 0 else close, tag.span(), None if close < 0 else position)
        elif tag[0] == THINK_CLOSE and not opened:
            opened, found = True, SplitCompletion()  # the prompt opened it: everything up to here was thinking
            found.parts.append(Part("thinking", text[: tag.start()], 0, None, tag.end()))
        elif tag[0] == CALL_OPEN and len(found.calls) == MAX_CALLS_READ:
            found.unread_calls += 1  # parsing each call may scan the whole text
        elif tag[0] == CALL_OPEN:
            call, end, position = _read_call(text, position)
            found.calls.append(call)
            add("call", tag.end(), end, tag.span(), position if call.closed else None)
        elif tag[0] == CALL_CLOSE:
            found.stray_close = True
    add("text", position, len(text))
    return found


def contents_of(text: str, stop: int | None) -> list[Part]:
    """The parts of a completion without surrounding white space; of a call, only the arguments.

    `stop` is the offset after the stop token, which `text` does not include; None if there was none.
    """
    parts = [part for outer in split_completion(text).parts for part in _inner(outer)]
    if stop is not None and parts:
        last = parts[-1]
        end = last.ends if last.kind == "call" else last.place + len(last.body) if last.kind == "text" else None
        if end is not None and not text[end:].strip():
            parts[-1] = replace(last, ends=stop, stops=True)
    return parts


def _inner(part: Part) -> Iterator[Part]:
    if part.kind != "call":
        yield from part.stripped()
    elif (found := _ARGUMENTS.search(part.body)) is not None:
        try:
            _, end = json.JSONDecoder(strict=False).raw_decode(part.body, found.end())
        except (ValueError, RecursionError):
            return
        yield replace(part, body=part.body[found.end() : end], place=part.place + found.end())


def _calls_in(thoughts: Sequence[str]) -> list[Call]:
    found: list[Call] = []
    for thought in thoughts:
        position = 0
        while len(found) < MAX_CALLS_READ and (start := thought.find(CALL_OPEN, position)) >= 0:
            call, _, position = _read_call(thought, start + len(CALL_OPEN))
            found.append(call)
    return found


def _read_call(text: str, position: int) -> tuple[Call, int, int]:
    """The call whose opening tag ends at `position`, the end of its body, and where parsing continues."""
    start = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # also matches the empty text
    body_end, after, closed = _extent(text, start)
    try:
        value, end = decode_json(text, start)
    except CallError as error:
        # The message is about the body alone: the decoder may have read beyond the call.
        return Call(None, _why_broken(text[start:body_end]) or str(error), closed), body_end, after
    body_end, after, closed = _extent(text, end)
    rest = text[end:body_end]
    if rest.strip() and (closed or not rest[0].isspace()):
        more = f"after the JSON object there is more text: {excerpt(rest.strip())}"
        return Call(None, more, closed), body_end, after
    if not closed:
        body_end = after = end
    try:
        command, notes = command_of_call(value)
    except CallError as error:
        return Call(None, str(error), closed), body_end, after
    missing = () if closed else (f"the call was run though {CALL_CLOSE} was missing",)
    return Call(command, "", closed, notes + missing), body_end, after


def _extent(text: str, start: int) -> tuple[int, int, bool]:
    """The end of a call's body, the start of what follows, and whether the call has its closing tag."""
    tag = _TAGS.search(text, start)
    if tag is None:
        return len(text), len(text), False
    return (tag.start(), tag.end(), True) if tag[0] == CALL_CLOSE else (tag.start(), tag.start(), False)


def _why_broken(body: str) -> str:
    if not body.strip():
        return "it is empty"
    try:
        decode_whole(body)
    except CallError as error:
        return str(error)
    return ""


def _decide(found: SplitCompletion, truncated: bool) -> Action:
    thought = _calls_in(found.bodies("thinking"))
    if found.calls:
        return _with_thought(RULES.run(found.calls, truncated=truncated, unread=found.unread_calls), thought)
    text = found.text
    fenced = _decide_fences(text, truncated)
    if fenced is not None:
        return _with_thought(fenced, thought)
    if truncated:
        return RULES.cut_off(thinking=found.still_thinking)
    if any(call.command is not None for call in thought) or (thought and not text):
        return RULES.malformed(
            f"Your tool call was inside your thinking ({THINK_OPEN}…{THINK_CLOSE}), where calls are not run.",
            f"Close your thinking with {THINK_CLOSE} first, then call the tool.",
        )
    if not text:
        if found.still_thinking:
            return RULES.malformed(f"Your thinking was never closed with {THINK_CLOSE}, and nothing followed it.")
        return RULES.silent(thought=bool(found.bodies("thinking")))
    if found.stray_close:
        return RULES.malformed(f"Your reply has a {CALL_CLOSE} without a {CALL_OPEN} before it.")
    if _is_bare_call(text):
        return RULES.malformed(f"Your reply is a call without {CALL_OPEN} and {CALL_CLOSE} around it.")
    return Action("final")


def _with_thought(action: Action, thought: Sequence[Call]) -> Action:
    """The action, with a note if a call inside the thinking was not run."""
    if action.kind == "command" and any(call.command not in (None, *action.commands) for call in thought):
        return replace(action, notes=(*action.notes, "a call inside your thinking was not run"))
    return action


def _decide_fences(text: str, truncated: bool) -> Action | None:
    fences = [fence for fence in _fences_in(text) if fence.language in ("bash", "sh", "shell")]
    if not fences:
        return None
    if not fences[-1].closed:
        if truncated:
            return RULES.malformed("Your ```bash block was cut off by the token limit.", "Write long files in pieces.")
        return RULES.malformed("Your ```bash block has no closing ``` line.")
    try:
        found = [check_command(fence.body) for fence in fences]
    except CallError as error:
        return RULES.malformed(f"Your ```bash block could not be run: {error}.")
    taken = f"{'a' if len(found) == 1 else 'each'} ```bash block was taken as a call; use {CALL_OPEN} instead"
    return RULES.run([Call(command) for command in found], truncated=truncated, notes=[taken])


class _Fence(NamedTuple):
    language: str
    """The first word after the opening marks, in lower case; empty if there is none."""
    body: str
    closed: bool


def _fences_in(text: str) -> list[_Fence]:
    found: list[_Fence] = []
    for token in _MARKDOWN.parse(text.replace("\r\n", "\n") + "\n"):
        if token.type == "fence" and token.map is not None:
            words = token.info.split()
            closed = token.map[1] - token.map[0] == token.content.count("\n") + 2  # lines with both marks
            found.append(_Fence(words[0].lower() if words else "", token.content.removesuffix("\n"), closed))
    return found


def _is_bare_call(text: str) -> bool:
    bodies = [text, *(fence.body for fence in _fences_in(text) if fence.language in ("", "json", "tool_call"))]
    for body in bodies:
        with contextlib.suppress(CallError):
            value = decode_whole(body) if TOOL_NAME in body else None
            if isinstance(value, dict) and value.get("name") == TOOL_NAME:
                return True
    return False
