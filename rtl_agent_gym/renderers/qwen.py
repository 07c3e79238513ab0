"""Qwen3's dialect: ChatML turns, calls in ``<tool_call>`` tags, results in ``<tool_response>`` tags.

A turn's results and corrections go back as a user turn of tool responses. To the model's own chat template such a turn
belongs to the tool loop, in which it keeps earlier thinking; so a history that is only ever appended to is what the
model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers.calls import printable
from rtl_agent_gym.renderers.codec import Codec, Control, Piece, written_out
from rtl_agent_gym.renderers.protocol import (
    ARGUMENT_DESCRIPTION,
    TOOL_ARGUMENT,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    Action,
    Message,
)
from rtl_agent_gym.renderers.qwen_text import (
    CALL_CLOSE,
    CALL_OPEN,
    EXAMPLE,
    THINK_CLOSE,
    THINK_OPEN,
    parse_completion,
)

START, END = Control("<|im_start|>"), Control("<|im_end|>")
RESPONSE_OPEN, RESPONSE_CLOSE = Control("<tool_response>"), Control("</tool_response>")

QWEN_NAMES = ("qwen3", "qwen3_disable_thinking", "qwen3_instruct")


class QwenRenderer:
    """Qwen3 and its relatives. See `Renderer` for what each method does.

    Args:
        name: ``qwen3`` (thinks), ``qwen3_disable_thinking`` (each turn opens with an empty think block) or
            ``qwen3_instruct`` (the models that know no thinking).
        tokenizer: The model's tokenizer, for the token side only: a `tokenizers.Tokenizer` or a fast transformers one.
    """

    def __init__(self, name: str = "qwen3", tokenizer: Any = None) -> None:
        if name not in QWEN_NAMES:
            raise UsageError(f"no Qwen renderer {name!r}; there are {', '.join(QWEN_NAMES)}")
        self._name, self._tokenizer = name, tokenizer

    def __repr__(self) -> str:
        return f"QwenRenderer({self._name!r})"

    def __reduce__(self) -> tuple[type[QwenRenderer], tuple[str, Any]]:
        return QwenRenderer, (self._name, self._tokenizer)  # the codec is quickly made again

    @property
    def name(self) -> str:
        return self._name

    @property
    def stop(self) -> list[str] | list[int]:
        return [str(END)] if self._tokenizer is None else [self._codec.control(END)]

    def initial_messages(self, system: str, user: str) -> list[Message]:
        return [
            {"role": "system", "content": written_out(_system_content(system))},
            {"role": "user", "content": user},
        ]

    def initial_text(self, system: str, user: str) -> str:
        return written_out(self._initial(system, user))

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        return parse_completion(completion.rstrip().removesuffix(END), truncated=truncated)

    def observation_text(self, outputs: Sequence[str]) -> str:
        return written_out(_responses(_as_pieces(outputs)))

    def correction_text(self, message: str) -> str:
        return written_out(_responses([[message]]))

    def initial_ids(self, system: str, user: str) -> list[int]:
        return self._codec.encode(self._initial(system, user))

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        end = self._codec.control(END)
        ids = list(ids)
        whole = end in ids
        spoken = ids[: ids.index(end)] if whole else ids
        return parse_completion(self._codec.decode(spoken), truncated=not whole)

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        return self._next_turn(_responses(_as_pieces(outputs)), action_ids)

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        return self._next_turn(_responses([_with_example(message)]), action_ids)

    @cached_property
    def _codec(self) -> Codec:
        if self._tokenizer is None:
            raise UsageError(
                f"the token side of renderer {self._name!r} needs the model's tokenizer: "
                f"get_renderer({self._name!r}, tokenizer)"
            )
        return Codec(self._tokenizer)

    def _initial(self, system: str, user: str) -> list[Piece]:
        return [
            START,
            "system\n",
            *_system_content(system),
            END,
            "\n",
            START,
            "user\n",
            user,
            END,
            "\n",
            *self._opening,
        ]

    @property
    def _opening(self) -> list[Piece]:
        """What the assistant's turn starts with."""
        silent = [Control(THINK_OPEN), "\n\n", Control(THINK_CLOSE), "\n\n"]
        return [START, "assistant\n", *(silent if self._name == "qwen3_disable_thinking" else [])]

    def _next_turn(self, responses: list[Piece], action_ids: Sequence[int]) -> list[int]:
        ended = bool(action_ids) and action_ids[-1] == self._codec.control(END)
        closing: list[Piece] = [] if ended else [END]
        return self._codec.encode([*closing, "\n", START, "user\n", *responses, END, "\n", *self._opening])


def _system_content(system: str) -> list[Piece]:
    """The system message with the tool declared in it, in the words of Qwen's chat template."""
    tags: list[Piece] = [Control(CALL_OPEN), Control(CALL_CLOSE)]
    return [
        f"{system}\n\n" if system else "",
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{json.dumps(_DECLARATION)}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within ",
        *tags,
        " XML tags:\n",
        tags[0],
        '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
        tags[1],
    ]


def _responses(contents: Sequence[Sequence[Piece]]) -> list[Piece]:
    if not contents:
        raise UsageError("an observation needs one output per command, and there is none")
    pieces: list[Piece] = []
    for content in contents:
        pieces += ["\n"] if pieces else []
        pieces += [RESPONSE_OPEN, "\n", *content, "\n", RESPONSE_CLOSE]
    return pieces


def _as_pieces(outputs: Sequence[str]) -> list[list[Piece]]:
    return [[printable(output)] for output in outputs]


def _with_example(message: str) -> list[Piece]:
    """The message, with the tags of the example it ends in as the tokens that the model is to write."""
    before, example, after = message.rpartition(EXAMPLE)
    if not example or after:
        return [message]
    inner = EXAMPLE.removeprefix(CALL_OPEN).removesuffix(CALL_CLOSE)
    return [before, Control(CALL_OPEN), inner, Control(CALL_CLOSE)]


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
