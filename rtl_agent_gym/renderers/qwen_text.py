"""Parsing Qwen's completions: a text is split into thinking, calls and other text, and these determine the action.

Tags inside the JSON of a call, such as ``grep '</tool_call>'``, are part of the command and not tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from markdown_it import MarkdownIt

from . import calls
from .actions import Call, TurnRules, with_text
from .calls import CallError
from .codec import Control
from .protocol import MAX_CALLS_READ, TOOL_NAME, Action
from .turns import Kind, Part

THINK_OPEN, THINK_CLOSE = Control("<think>"), Control("</think>")
CALL_OPEN, CALL_CLOSE = Control("<tool_call>"), Control("</tool_call>")

EXAMPLE = f'{CALL_OPEN}\n{{"name": "{TOOL_NAME}", "arguments": {{"command": "{calls.EXAMPLE_COMMAND}"}}}}\n{CALL_CLOSE}'
"""The right form of a call, as corrections show it."""

RULES = TurnRules(f"The right form of a call:\n{EXAMPLE}")

_TAGS = re.compile("|".join(map(re.escape, (THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE))))
_SPACE = re.compile(r"\s*")
_ARGUMENTS = re.compile(r'"(?:arguments|args)"\s*:\s*')
_MARKDOWN = MarkdownIt("zero").enable(["code", "fence"]).disable(["normalize", "inline"])


@dataclass
class SplitCompletion:
    """A completion split into parts, which cover everything except the tags between them."""

    parts: list[Part] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """The first `MAX_CALLS_READ`."""
    unread_calls: int = 0
    """The number of further calls."""
    stray_close: bool = False
    """Whether there is a ``</tool_call>`` outside a call."""

    def bodies(self, kind: Kind) -> list[str]:
        """The bodies of the parts of a kind."""
        return [part.body for part in self.parts if part.kind == kind]

    @property
    def text(self) -> str:
        """The text outside thinking and calls."""
        return "".join(self.bodies("text")).strip()

    @property
    def still_thinking(self) -> bool:
        """Whether a ``<think>`` was never closed."""
        return any(part.kind == "thinking" and part.ends is None for part in self.parts)


def find_stop(text: str, stop: str) -> int:
    """Where a stop token begins that is not part of a call's JSON; -1 if there is none."""
    position = 0
    for _ in range(MAX_CALLS_READ):  # parsing each call could scan all of the text
        end = text.find(stop, position)
        call = text.find(CALL_OPEN, position, max(end, 0))
        if call < 0:
            return end
        position = calls.end_of_json(text, call + len(CALL_OPEN))
    return text.find(stop, position)


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
            found.unread_calls += 1  # parsing each could scan all of the text
        elif tag[0] == CALL_OPEN:
            call, end, position = _read_call(text, position)
            found.calls.append(call)
            add("call", tag.end(), end, tag.span(), position if call.closed else None)
        elif tag[0] == CALL_CLOSE:
            found.stray_close = True
    add("text", position, len(text))
    return found


def contents_of(text: str, stop: int | None) -> list[Part]:
    """The parts of a completion without white space around them; of a call, only the arguments.

    Args:
        text: The completion, without its stop token.
        stop: Offset of the end of the stop token, or None without one.
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


def parse_completion(completion: str, *, truncated: bool = False) -> Action:
    """The action of a completion from which the stop token was removed."""
    found = split_completion(completion)
    thinking = "\n".join(block.strip("\n") for block in found.bodies("thinking"))
    return with_text(_decide(found, truncated), found.text, thinking)


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
        value, end = calls.decode_json(text, start)
    except CallError as error:
        # Described from the body alone: the decoder may have read beyond the call.
        return Call(None, _why_broken(text[start:body_end]) or str(error), closed), body_end, after
    body_end, after, closed = _extent(text, end)
    rest = text[end:body_end]
    if rest.strip() and (closed or not rest[0].isspace()):
        more = f"after the JSON object there is more text: {calls.excerpt(rest.strip())}"
        return Call(None, more, closed), body_end, after
    if not closed:
        body_end = after = end
    try:
        command, notes = calls.command_of_call(value)
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
        calls.decode_whole(body)
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
        found = [calls.check_command(fence.body) for fence in fences]
    except CallError as error:
        return RULES.malformed(f"Your ```bash block could not be run: {error}.")
    taken = f"{'a' if len(found) == 1 else 'each'} ```bash block was taken as a call; use {CALL_OPEN} instead"
    return RULES.run([Call(command) for command in found], truncated=truncated, notes=[taken])


class _Fence(NamedTuple):
    """A fenced block of Markdown."""

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
    return any(_names_tool(body) for body in bodies)


def _names_tool(body: str) -> bool:
    if TOOL_NAME not in body:
        return False
    try:
        value = calls.decode_whole(body)
    except CallError:
        return False
    return isinstance(value, dict) and value.get("name") == TOOL_NAME
