"""Parsing one tool call, in any dialect.

Both families write the arguments of a call as JSON. The rules for what is accepted are here, so that all dialects
report the same errors to the model. Nothing is repaired silently, with one exception: literal newlines and tabs inside
JSON strings, which models write often and which are unambiguous.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from .protocol import TOOL_ARGUMENT, TOOL_NAME

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


def printable(text: str) -> str:
    """`text` with U+FFFD for lone surrogates, which stand for undecodable bytes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def decode_json(text: str, position: int = 0) -> tuple[Any, int]:
    """The JSON value at `position`, and its end position.

    Raises:
        CallError: With line, column, and the text at that position.
    """
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        _raise_broken(text[position:], error.msg, error.pos - position)
    except (RecursionError, ValueError) as error:  # too deeply nested, or a number with too many digits
        raise CallError(f"the JSON cannot be read ({type(error).__name__})") from error


def end_of_json(text: str, position: int) -> int:
    """Where the JSON value ends that begins at `position`, after white space; `position` itself if there is none."""
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


def command_of_call(call: Any) -> tuple[str, tuple[str, ...]]:
    """The command in a call object ``{"name": …, "arguments": {…}}``, and notes for the model.

    ``args`` is accepted for ``arguments``, and arguments may be a JSON string that contains the object.

    Raises:
        CallError: It is not a call of the tool with a command.
    """
    if not isinstance(call, dict):
        raise CallError(f'a call is one JSON object with "name" and "arguments", and this is {_kind(call)}')
    if "name" not in call:
        raise CallError('the key "name" is missing')
    check_tool(call["name"])
    given = [key for key in ("arguments", "args") if key in call]
    if len(given) != 1:
        raise CallError('the key "arguments" is missing' if not given else 'it has both "arguments" and "args"')
    arguments = call[given[0]]
    if isinstance(arguments, str):
        arguments = decode_whole(arguments)
    extra = sorted(set(call) - {"name", "arguments", "args"})
    notes = (f"unknown {_keys(extra)} of the call ignored",) if extra else ()
    command, more = command_of_arguments(arguments)
    return command, notes + more


def command_of_arguments(arguments: Any) -> tuple[str, tuple[str, ...]]:
    """The command in the arguments ``{"command": …}``, and notes for the model. Raises `CallError`."""
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
    """The object of these pairs. A repeated key is an error: which value was meant is unknown."""
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
