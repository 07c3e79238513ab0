"""gpt-oss's dialect: OpenAI's Harmony format.

The ids of prompts and results equal openai-harmony's rendering. One grammar (`harmony_text`) parses both ids and text.
openai-harmony is imported, and its vocabulary loaded, when the token side is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..errors import UsageError
from . import harmony_text
from .actions import read_call
from .codec import Codec, HarmonyCodec, Piece
from .harmony_text import BODY, CALL, CHANNEL, CONSTRAIN, END, MARKS, RECIPIENT, RETURN, START, STOPS
from .protocol import (
    ARGUMENT_DESCRIPTION,
    TOOL_ARGUMENT,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    Action,
    Message,
    ModelTurn,
    ToolCall,
)
from .renderer import Renderer, each_output
from .turns import Frame, Part, Phrase, between
from .vocabularies import harmony_encoding

EFFORTS = {
    "gpt_oss": "medium",
    "gpt_oss_low_reasoning": "low",
    "gpt_oss_medium_reasoning": "medium",
    "gpt_oss_high_reasoning": "high",
}
"""Reasoning effort by renderer name."""

GPT_OSS_NAMES = tuple(EFFORTS)

CALL_ID, RETURN_ID = 200012, 200002
"""Harmony's ids for ``<|call|>`` and ``<|return|>``, at which sampling stops."""


class GptOssRenderer(Renderer):
    """gpt-oss. See `Renderer` for the methods.

    Args:
        name: A key of `EFFORTS`.
        tokenizer: Not used; Harmony has its own vocabulary.
    """

    END = END
    thinks = True

    def __init__(self, name: str = "gpt_oss", tokenizer: Any = None) -> None:
        if name not in EFFORTS:
            raise UsageError(f"no gpt-oss renderer {name!r}; there are {', '.join(EFFORTS)}")
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
        rules = f"{_SYSTEM_TEXT.format(effort=EFFORTS[self._name])}\n{_TOOLS_TEXT}"
        return _opening(("system", rules), ("developer", _developer_text(system)), ("user", user))

    def plain_pieces(self, system: str, user: str) -> list[Piece]:
        instructions = [("developer", f"# Instructions\n\n{system}")] if system else []
        return _opening(("system", _SYSTEM_TEXT.format(effort=EFFORTS[self._name])), *instructions, ("user", user))

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        pieces = harmony_text.pieces_of(completion)
        return harmony_text.parse_pieces(pieces, truncated=truncated and not harmony_text.stopped(pieces))

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        pieces = self.codec.pieces(ids)
        return harmony_text.parse_pieces(pieces, truncated=not harmony_text.stopped(pieces))

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        return self.parse_text(completion, truncated=truncated)

    def read_parts(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        messages = harmony_text.read_turn(self.codec.pieces(ids)).messages
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

    def turn_text(self, turn: ModelTurn) -> str:
        """See `Renderer.turn_text`. A turn has one call, so several commands become the lines of one."""
        return super().turn_text(_with_one_call(turn))

    def turn_ids(self, turn: ModelTurn) -> list[int]:
        """See `Renderer.turn_ids`, and `turn_text` for several commands."""
        return super().turn_ids(_with_one_call(turn))

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        """See `Renderer.reply_pieces`. Here without the header of each result, which `observation_ids` adds."""
        return [piece for content in contents for piece in ("\n", *content)][1:]

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        """See `Renderer.turn_pieces`. The reply becomes a turn of the user."""
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


def _with_one_call(turn: ModelTurn) -> ModelTurn:
    commands = [read_call(call).command for call in turn.calls]
    if len(commands) < 2 or None in commands:
        return turn
    return replace(turn, calls=(ToolCall.of("\n".join(map(str, commands))),))


_ASSISTANT: tuple[Piece, ...] = (START, "assistant")


def _opening(*messages: tuple[str, str]) -> list[Piece]:
    return [piece for role, body in messages for piece in (START, role, BODY, body, END)] + list(_ASSISTANT)


def _developer_text(system: str) -> str:
    """Instructions and the tool's declaration, worded as openai-harmony does."""
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
_TOOLS_TEXT = "Calls to these tools must go to the commentary channel: 'functions'."
