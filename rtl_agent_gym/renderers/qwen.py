"""Qwen3's dialect: ChatML turns, calls in ``<tool_call>`` tags, results in ``<tool_response>`` tags.

A turn's results and corrections go back as a user turn of tool responses. To the model's own chat template such a turn
belongs to the tool loop, in which it keeps earlier thinking; so a history that is only ever appended to is what the
model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import qwen_text
from rtl_agent_gym.renderers.codec import Control, Piece, written_out
from rtl_agent_gym.renderers.pieces import PieceRenderer
from rtl_agent_gym.renderers.protocol import (
    ARGUMENT_DESCRIPTION,
    TOOL_ARGUMENT,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    Action,
    Message,
)

START, END = Control("<|im_start|>"), Control("<|im_end|>")
THINK_OPEN, THINK_CLOSE = Control(qwen_text.THINK_OPEN), Control(qwen_text.THINK_CLOSE)
CALL_OPEN, CALL_CLOSE = Control(qwen_text.CALL_OPEN), Control(qwen_text.CALL_CLOSE)
RESPONSE_OPEN, RESPONSE_CLOSE = Control("<tool_response>"), Control("</tool_response>")

OPENINGS: dict[str, list[Piece]] = {
    "qwen3": [],
    "qwen3_disable_thinking": [THINK_OPEN, "\n\n", THINK_CLOSE, "\n\n"],
    "qwen3_instruct": [],
}
"""What each turn of the assistant starts with, by renderer name."""

QWEN_NAMES = tuple(OPENINGS)


class QwenRenderer(PieceRenderer):
    """Qwen3 and its relatives. See `Renderer` for what each method does.

    Args:
        name: ``qwen3`` (thinks), ``qwen3_disable_thinking`` (each turn opens with an empty think block) or
            ``qwen3_instruct`` (the models that know no thinking).
        tokenizer: The model's tokenizer, for the token side only: a `tokenizers.Tokenizer` or a fast transformers one.
    """

    END = END

    def __init__(self, name: str = "qwen3", tokenizer: Any = None) -> None:
        if name not in OPENINGS:
            raise UsageError(f"no Qwen renderer {name!r}; there are {', '.join(QWEN_NAMES)}")
        super().__init__(name, tokenizer)

    def initial_messages(self, system: str, user: str) -> list[Message]:
        return [
            {"role": "system", "content": written_out(_system_content(system))},
            {"role": "user", "content": user},
        ]

    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        declared = [START, "system\n", *_system_content(system), END, "\n"]
        return [*declared, START, "user\n", user, END, "\n", *self._opening]

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        return qwen_text.parse_completion(completion, truncated=truncated)

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        pieces: list[Piece] = []
        for content in contents:
            pieces += ["\n"] if pieces else []
            pieces += [RESPONSE_OPEN, "\n", *content, "\n", RESPONSE_CLOSE]
        return pieces

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        return ["\n", START, "user\n", *reply, END, "\n", *self._opening]

    def correction_pieces(self, message: str) -> list[Piece]:
        """The message, with the tags of the example it ends in as the tokens that the model is to write."""
        before, example, after = message.rpartition(qwen_text.EXAMPLE)
        if not example or after:
            return [message]
        inner = example.removeprefix(CALL_OPEN).removesuffix(CALL_CLOSE)
        return [before, CALL_OPEN, inner, CALL_CLOSE]

    @property
    def _opening(self) -> list[Piece]:
        return [START, "assistant\n", *OPENINGS[self._name]]


def _system_content(system: str) -> list[Piece]:
    """The system message with the tool declared in it, in the words of Qwen's chat template."""
    return [
        f"{system}\n\n" if system else "",
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{json.dumps(_DECLARATION)}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within ",
        CALL_OPEN,
        CALL_CLOSE,
        " XML tags:\n",
        CALL_OPEN,
        '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
        CALL_CLOSE,
    ]


_DECLARATION = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": TOOL_DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {TOOL_ARGUMENT: {"type": "string", "description": ARGUMENT_DESCRIPTION}},
            "required": [TOOL_ARGUMENT],
        },
    },
}
