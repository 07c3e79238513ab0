"""Turns of policies that know their commands beforehand, worded as a model of the dialect would."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..renderers import Renderer
from ..renderers.protocol import TOOL_ARGUMENT, TOOL_NAME


def write_turn(renderer: Renderer, text: str, commands: Sequence[str] = ()) -> str:
    """A completion that says `text` and calls the tool once per command.

    Harmony has room for one call in a turn, so there several commands become one text of several lines.
    """
    if renderer.name.startswith("gpt_oss"):
        if not commands:
            return f"<|channel|>final<|message|>{text}<|return|>"
        call = json.dumps({TOOL_ARGUMENT: "\n".join(commands)}, ensure_ascii=False)
        thought = f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant" if text else ""
        return f"{thought}<|channel|>commentary to=functions.{TOOL_NAME} <|constrain|>json<|message|>{call}<|call|>"
    calls = [
        "<tool_call>\n"
        + json.dumps({"name": TOOL_NAME, "arguments": {TOOL_ARGUMENT: command}}, ensure_ascii=False)
        + "\n</tool_call>"
        for command in commands
    ]
    return "\n".join(part for part in (text, *calls) if part)


def heredoc(path: str, content: str) -> str:
    """The bash command that writes a file, byte for byte when it ends with a line feed or is empty."""
    mark = "EOF"
    while mark in content:
        mark += "_"
    folder = path.rpartition("/")[0]
    make = f"mkdir -p '{folder}' && " if folder else ""
    if content and not content.endswith("\n"):  # a here-document always ends its last line
        return f"{make}{{ head -c -1 > '{path}'; }} <<'{mark}'\n{content}\n{mark}"
    return f"{make}cat > '{path}' <<'{mark}'\n{content}{mark}"
