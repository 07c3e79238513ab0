"""Converts turns to the actions that they request: what counts as a call, and what happens to a turn with calls.

Most dialects write the arguments of a call as JSON. The rules are here, so that all dialects report the same errors to
the model. Nothing is repaired silently, with one exception: literal newlines and tabs inside JSON strings, which models
often write and which are unambiguous.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from .protocol import MAX_CALLS, MAX_CALLS_READ, TOOL_ARGUMENT, TOOL_NAME, Action, ModelTurn, ToolCall
from .vocabularies import printable

EXAMPLE_COMMAND = "ls -la /code/rtl"
"""The command in the example that corrections show."""

_UNSENDABLE = re.compile("[\0\ud800-\udfff]")
_EXCERPT = 40  # characters of the model's text quoted in a correction


class CallError(Exception):
    """A call cannot be run. The message is a sentence for the model, without the full stop."""


def excerpt(text: str, around: int = 0) -> str:
    """A short quotation of `text` near position `around`, on one line."""
    start = max(0, around - _EXCERPT // 2)
    piece = printable(text[start : start + _EXCERPT])
    cut_left, cut_right = "…" if start else "", "…" if start + _EXCERPT < len(text) else ""
    return cut_left + json.dumps(piece, ensure_ascii=False)[1:-1] + cut_right


def decode_json(text: str, position: int = 0) -> tuple[Any, int]:
    """The JSON value at `position`, and its end position. Raises `CallError` with line, column, and the text there."""
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        _raise_broken(text[position:], error.msg, error.pos - position)
    except (RecursionError, ValueError) as error:  # too deeply nested, or a number with too many digits
        raise CallError(f"the JSON cannot be read ({type(error).__name__})") from error


def end_of_json(text: str, position: int) -> int:
    """The end of the JSON value at `position`, where white space may precede it; `position` if there is no value."""
    try:
        return decode_json(text, len(text) - len(text[position:].lstrip()))[1]
    except CallError:
        return position


def decode_whole(text: str) -> Any:
    """`text` as a single JSON value, with optional white space around it. Raises `CallError`."""
    body = text.strip()
    value, end = decode_json(body)
    if end != len(body):
        raise CallError(f"after the JSON value there is more text: {excerpt(body[end:])}")
    return value


def command_of_call(call: Any, keys: Sequence[str] = ("arguments", "args")) -> tuple[str, tuple[str, ...]]:
    """The command in a call object ``{"name": …, "arguments": {…}}``, and notes for the model.

    `keys` are the accepted keys of the arguments; the first is the dialect's own. Raises `CallError` for other forms.
    """
    if not isinstance(call, dict):
        raise CallError(f'a call is one JSON object with "name" and "{keys[0]}", and this is {_kind(call)}')
    if "name" not in call:
        raise CallError('the key "name" is missing')
    check_tool(call["name"])
    given = [key for key in keys if key in call]
    if len(given) != 1:
        raise CallError(
            f'the key "{keys[0]}" is missing' if not given else f'it has both "{given[0]}" and "{given[1]}"'
        )
    extra = sorted(set(call) - {"name", *keys})
    notes = (f"unknown {_keys(extra)} of the call ignored",) if extra else ()
    command, more = command_of_arguments(call[given[0]])
    return command, notes + more


def command_of_arguments(arguments: Any) -> tuple[str, tuple[str, ...]]:
    """The command in the arguments ``{"command": …}``, and notes for the model. Raises `CallError` for other forms.

    The arguments may be a JSON string that contains the object.
    """
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        arguments = decode_whole(arguments)
    if not isinstance(arguments, dict):
        raise CallError(f'the arguments are one JSON object with "{TOOL_ARGUMENT}", and these are {_kind(arguments)}')
    if TOOL_ARGUMENT not in arguments:
        found = f"; it has {_keys(sorted(arguments))}" if arguments else ""
        raise CallError(f'the argument "{TOOL_ARGUMENT}" is missing{found}')
    command = check_command(arguments[TOOL_ARGUMENT])
    extra = sorted(set(arguments) - {TOOL_ARGUMENT})
    return command, (f'unknown {_keys(extra)} ignored; the only argument is "{TOOL_ARGUMENT}"',) if extra else ()


def check_tool(name: Any) -> None:
    """Raise `CallError` unless `name` is the name of the tool."""
    if name != TOOL_NAME:
        shown = f'"{excerpt(name)}"' if isinstance(name, str) else _kind(name)
        raise CallError(f'there is no tool {shown}; the only tool is "{TOOL_NAME}"')


def check_command(command: Any) -> str:
    """`command`, if it is text that can be sent to a shell. Raises `CallError`."""
    if not isinstance(command, str):
        raise CallError(f'"{TOOL_ARGUMENT}" must be a string, and it is {_kind(command)}')
    if not command.strip():
        raise CallError(f'"{TOOL_ARGUMENT}" is empty')
    if (bad := _UNSENDABLE.search(command)) is not None:
        what = "a NUL, which shells do not accept," if bad[0] == "\0" else "something that is not valid UTF-8"
        raise CallError(f"the command contains {what} at character {bad.start()}")
    return command


def _raise_broken(text: str, what: str, position: int) -> NoReturn:
    before = text[:position]
    line, column = before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
    if position >= len(text.rstrip()) or what.startswith("Unterminated"):
        raise CallError(f"the JSON stops before it is whole ({what}, line {line} column {column})")
    hint = ""
    if "escape" in what:
        hint = r". A backslash in a JSON string is written \\"
    elif "delimiter" in what:
        hint = r". A double quote inside a JSON string is written \""
    raise CallError(f"the JSON is broken at line {line} column {column} ({what}), at: {excerpt(text, position)}{hint}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object. A repeated key is an error, since it is unknown which value was meant."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise CallError(f'the key "{excerpt(key)}" is repeated')
        found[key] = value
    return found


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_unique)

_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def _keys(names: list[str]) -> str:
    shown = ", ".join(f'"{excerpt(name)}"' for name in names[:4]) + (", …" if len(names) > 4 else "")
    return f"{'key' if len(names) == 1 else 'keys'} {shown}"


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
    """Converts turns to actions, with corrections worded for one dialect."""

    form: str
    """An example of a correct call, shown at the end of every correction."""
    finish: str = "say in plain text that you are done"
    """How the model should end the episode."""

    def malformed(self, what: str, advice: str = "") -> Action:
        """A turn whose commands are not run, with the reason and advice for the model."""
        sentences = " ".join(part for part in (what, "Nothing was run.", advice) if part)
        return Action("malformed", correction=f"ERROR: {sentences}\n{self.form}")

    def cut_off(self, *, thinking: bool = False) -> Action:
        """A turn that the token limit ended before any call was complete."""
        where = "while you were thinking" if thinking else "before it was complete"
        return self.malformed(
            f"Your reply was cut off by the token limit {where}.", "Be briefer, and call the tool early."
        )

    def silent(self, *, thought: bool) -> Action:
        """A turn with neither text nor calls."""
        what = "contained nothing but thinking" if thought else "was empty"
        return self.malformed(f"Your reply {what}.", f"Call the tool, or {self.finish}.")

    def run(self, found: Sequence[Call], *, truncated: bool, unread: int = 0, notes: Sequence[str] = ()) -> Action:
        """The action of a turn with calls. They are run only if all of them can be parsed.

        `truncated` is whether the token limit ended the turn, `unread` the number of further calls, which were not
        parsed.
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


NATIVE = TurnRules(f'Call the tool "{TOOL_NAME}" with JSON arguments: {{"{TOOL_ARGUMENT}": "{EXAMPLE_COMMAND}"}}')

_SPELLED_CALL = re.compile(
    r"</?tool_call>|<\|call\|>|to=functions\.|<function=|<\|tool_call|tool▁call|｜DSML｜|<invoke name=|\[TOOL_CALLS\]"
    r'|\A\s*\{\s*"name"'
)


def spells_call(text: str) -> bool:
    """Whether a text contains the tool's name and call markup of any family. Final answers do not."""
    return TOOL_NAME in text and _SPELLED_CALL.search(text) is not None


def native_action(turn: ModelTurn, *, truncated: bool = False) -> Action:
    """The action of a turn whose calls a chat service reported separately from the text.

    No dialect is involved: a fenced block or a quoted tag in such a turn's text is part of an answer and is never run.
    """
    text = turn.text.strip()
    if turn.calls:
        action = NATIVE.run([read_call(call) for call in turn.calls], truncated=truncated)
    elif truncated:
        action = NATIVE.cut_off(thinking=not text)
    elif not text:
        action = NATIVE.silent(thought=bool(turn.thinking.strip()))
    elif spells_call(text):
        action = NATIVE.malformed("Your reply has a tool call written out in its text, where calls are not run.")
    else:
        action = Action("final")
    return with_text(action, turn.text, turn.thinking)


def read_call(call: ToolCall) -> Call:
    """Parse a call of a `ModelTurn`."""
    try:
        check_tool(call.name)
        command, notes = command_of_arguments(decode_whole(call.arguments))
    except CallError as error:
        return Call(None, str(error), closed=False)
    return Call(command, notes=notes)


def with_one_call(turn: ModelTurn) -> ModelTurn:
    """The turn for a dialect that allows one call per turn: several commands become the lines of one command."""
    commands = [read_call(call).command for call in turn.calls]
    if len(commands) < 2 or None in commands:
        return turn
    return replace(turn, calls=(ToolCall.of("\n".join(map(str, commands))),))


def command_of(call: ToolCall) -> str:
    """A call of any agent's tool as readable text: its command if it has one, otherwise name and arguments."""
    try:
        arguments = decode_whole(call.arguments)
    except CallError:
        arguments = None
    if isinstance(arguments, dict):
        for name in ("command", "cmd"):
            command = arguments.get(name)
            if isinstance(command, list) and all(isinstance(word, str) for word in command):
                command = shlex.join(command)
            if isinstance(command, str) and command.strip():
                return printable(command)
    return printable(f"{call.name} {call.arguments}")
