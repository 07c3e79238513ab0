"""Qwen3's dialect: ChatML turns, calls in ``<tool_call>`` tags, results in ``<tool_response>`` tags.

Results and corrections go back as a user turn of tool responses. The model's chat template treats such a turn as part
of a tool loop, in which it keeps earlier thinking; so an append-only history matches the model's training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from . import qwen_text
from .codec import Control, Piece, written_out
from .protocol import TOOL, Action, Message, ModelTurn
from .qwen_text import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN
from .renderer import Renderer
from .turns import Frame, Part, Phrase, between

START, END = Control("<|im_start|>"), Control("<|im_end|>")
RESPONSE_OPEN, RESPONSE_CLOSE = Control("<tool_response>"), Control("</tool_response>")

OPENINGS: dict[str, list[Piece]] = {
    "qwen3": [],
    "qwen3_disable_thinking": [THINK_OPEN, "\n\n", THINK_CLOSE, "\n\n"],
    "qwen3_instruct": [],
}
"""The beginning of each turn of the assistant, by renderer name."""

QWEN_NAMES = tuple(OPENINGS)


class QwenRenderer(Renderer):
    """Qwen3 and related models. See `Renderer` for the methods.

    Args:
        name: ``qwen3`` (thinks), ``qwen3_disable_thinking`` (each turn opens with an empty think block) or
            ``qwen3_instruct`` (models without thinking).
        tokenizer: The model's tokenizer, for the token side only: a `tokenizers.Tokenizer` or a fast transformers one.
    """

    END = END

    def __init__(self, name: str = "qwen3", tokenizer: Any = None) -> None:
        if name not in OPENINGS:
            raise UsageError(f"no Qwen renderer {name!r}; there are {', '.join(QWEN_NAMES)}")
        super().__init__(name, tokenizer)
        self.thinks = name == "qwen3"

    def initial_messages(self, system: str, user: str) -> list[Message]:
        return [
            {"role": "system", "content": written_out(_system_content(system))},
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
        return [START, "assistant\n", *OPENINGS[self._name]]

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        return qwen_text.parse_completion(completion, truncated=truncated)

    def text_until_stop(self, text: str) -> tuple[str, bool]:
        stop = qwen_text.find_stop(text, END)
        return (text, False) if stop < 0 else (text[:stop], True)

    def read_parts(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        before_stop, stopped = self.until_stop(ids)
        text = self.codec.decode(before_stop)
        if trimmed:
            return qwen_text.contents_of(text, len(text) + len(END) if stopped else None)
        return qwen_text.split_completion(text).parts

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
        """See `Renderer.turn_text`. A ``</think>`` inside the thinking gets a space, so that it ends nothing."""
        return super().turn_text(replace(turn, thinking=turn.thinking.replace(THINK_CLOSE, "</ think>")))

    def instead_of_text(self, *, first: bool) -> list[Control]:
        return [CALL_OPEN, THINK_OPEN] if first and self.thinks else [CALL_OPEN]

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        pieces: list[Piece] = []
        for content in contents:
            pieces += ["\n"] if pieces else []
            pieces += [RESPONSE_OPEN, "\n", *content, "\n", RESPONSE_CLOSE]
        return pieces

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        return ["\n", START, "user\n", *reply, END, "\n", *self._assistant]

    def correction_pieces(self, message: str) -> list[Piece]:
        """The message, with the tags of the example at its end as the control tokens that the model should write."""
        before, example, after = message.rpartition(qwen_text.EXAMPLE)
        if not example or after:
            return [message]
        inner = example.removeprefix(CALL_OPEN).removesuffix(CALL_CLOSE)
        return [before, CALL_OPEN, inner, CALL_CLOSE]

    def results(self, pieces: Sequence[Piece]) -> list[str]:
        found = between(pieces, RESPONSE_OPEN, [RESPONSE_CLOSE])
        return [text.removeprefix("\n").removesuffix("\n") for text in found]

    def read_observation(self, observation: str, count: int) -> list[str]:
        first, last = f"{RESPONSE_OPEN}\n", f"\n{RESPONSE_CLOSE}"
        if not (observation.startswith(first) and observation.endswith(last)):
            return [observation]
        inner = observation[len(first) : len(observation) - len(last)]
        found = inner.split(f"{last}\n{first}")
        return found if len(found) == count else [inner]


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
