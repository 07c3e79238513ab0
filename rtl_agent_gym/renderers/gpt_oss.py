"""gpt-oss's dialect: OpenAI's Harmony format.

The token side renders the prompt and each tool result through openai-harmony. It never renders what the model said:
that is kept as the ids that were sampled. Ids and text are read by one grammar (`harmony_text`). openai-harmony is
imported, and its vocabulary loaded, when the token side is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import harmony_text
from rtl_agent_gym.renderers.calls import printable
from rtl_agent_gym.renderers.codec import Control, Piece
from rtl_agent_gym.renderers.harmony_text import BODY, END, RECIPIENT, START, HeaderError
from rtl_agent_gym.renderers.protocol import (
    ARGUMENT_DESCRIPTION,
    TOOL_ARGUMENT,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    Action,
    Message,
)
from rtl_agent_gym.renderers.vocabularies import harmony_encoding

EFFORTS = {
    "gpt_oss": "medium",
    "gpt_oss_low_reasoning": "low",
    "gpt_oss_medium_reasoning": "medium",
    "gpt_oss_high_reasoning": "high",
}
"""Reasoning effort by renderer name."""

GPT_OSS_NAMES = tuple(EFFORTS)

CALL_ID, RETURN_ID, END_ID = 200012, 200002, 200007
"""Harmony's ids for ``<|call|>``, ``<|return|>`` and ``<|end|>``. Sampling stops at the first two."""


class GptOssRenderer:
    """gpt-oss. See `Renderer` for what each method does.

    Args:
        name: A key of `EFFORTS`.
        tokenizer: Not used; Harmony brings its own vocabulary.
    """

    def __init__(self, name: str = "gpt_oss", tokenizer: Any = None) -> None:
        if name not in EFFORTS:
            raise UsageError(f"no gpt-oss renderer {name!r}; there are {', '.join(EFFORTS)}")
        self._name = name

    def __repr__(self) -> str:
        return f"GptOssRenderer({self._name!r})"

    def __reduce__(self) -> tuple[type[GptOssRenderer], tuple[str]]:
        return GptOssRenderer, (self._name,)  # the encoding itself cannot be pickled

    @property
    def name(self) -> str:
        return self._name

    @property
    def stop(self) -> list[str] | list[int]:
        return [CALL_ID, RETURN_ID]

    def initial_messages(self, system: str, user: str) -> list[Message]:
        return [{"role": "system", "content": _developer_text(system)}, {"role": "user", "content": user}]

    def initial_text(self, system: str, user: str) -> str:
        messages = (
            ("system", _SYSTEM_TEXT.format(effort=EFFORTS[self._name])),
            ("developer", _developer_text(system)),
            ("user", user),
        )
        return "".join(f"{START}{role}{BODY}{body}{END}" for role, body in messages) + f"{START}assistant"

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        return _action(harmony_text.pieces_of(completion), truncated)

    def observation_text(self, outputs: Sequence[str]) -> str:
        return "\n".join(_at_least_one(outputs))

    def correction_text(self, message: str) -> str:
        return message

    def initial_ids(self, system: str, user: str) -> list[int]:
        import openai_harmony as oh

        effort = oh.ReasoningEffort[EFFORTS[self._name].upper()]
        developer = oh.DeveloperContent.new().with_function_tools(
            [oh.ToolDescription.new(TOOL_NAME, TOOL_DESCRIPTION, _PARAMETERS)]
        )
        if system:
            developer = developer.with_instructions(printable(system))
        conversation = oh.Conversation.from_messages(
            [
                oh.Message.from_role_and_content(oh.Role.SYSTEM, oh.SystemContent.new().with_reasoning_effort(effort)),
                oh.Message.from_role_and_content(oh.Role.DEVELOPER, developer),
                oh.Message.from_role_and_content(oh.Role.USER, printable(user)),
            ]
        )
        return list(self._encoding.render_conversation_for_completion(conversation, oh.Role.ASSISTANT))

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        pieces = self._pieces(ids)
        return _action(pieces, truncated=harmony_text.stop_of(pieces) is None)

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        return self._next_turn([self._tool_message(output) for output in _at_least_one(outputs)], action_ids)

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        import openai_harmony as oh

        if action_ids and action_ids[-1] == CALL_ID:  # after a call the model expects to hear from the tool
            return self._next_turn([self._tool_message(message)], action_ids)
        return self._next_turn([oh.Message.from_role_and_content(oh.Role.USER, printable(message))], action_ids)

    @cached_property
    def _encoding(self) -> Any:
        return harmony_encoding()

    def _pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Sampled ids as control tokens and text; bytes that are not UTF-8, and unknown ids, as lone surrogates."""
        pieces: list[Piece] = []
        run: list[int] = []
        for id_ in ids:
            if (mark := self._controls.get(id_)) is None:
                run.append(id_)
                continue
            pieces += [self._text(run), mark] if run else [mark]
            run = []
        return [*pieces, self._text(run)] if run else pieces

    def _text(self, ids: list[int]) -> str:
        import openai_harmony as oh

        try:
            return str(self._encoding.decode(ids, errors="surrogateescape"))
        except oh.HarmonyError:  # an id that the vocabulary does not have
            if len(ids) == 1:
                return "\udcff"
            half = len(ids) // 2  # in halves, as one id alone may be a part of a character
            text = self._text(ids[:half]) + self._text(ids[half:])
            return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")

    @cached_property
    def _controls(self) -> dict[int, Control]:
        return {self._encoding.encode(mark, allowed_special={mark})[0]: mark for mark in harmony_text.MARKS}

    def _tool_message(self, output: str) -> Any:
        import openai_harmony as oh

        author = oh.Author.new(oh.Role.TOOL, RECIPIENT)
        message = oh.Message.from_author_and_content(author, printable(output))
        return message.with_recipient("assistant").with_channel("commentary")

    def _next_turn(self, messages: Sequence[Any], action_ids: Sequence[int]) -> list[int]:
        ended = bool(action_ids) and action_ids[-1] in (CALL_ID, RETURN_ID, END_ID)
        ids = [] if ended else [END_ID]
        for message in messages:
            ids += self._encoding.render(message)
        return ids + self._generation_start

    @cached_property
    def _generation_start(self) -> list[int]:
        return list(self._encoding.encode(f"{START}assistant", allowed_special={START}))


def _action(pieces: Sequence[Piece], truncated: bool) -> Action:
    try:
        turn = harmony_text.read_turn(pieces)
    except HeaderError as error:
        return _not_harmony(str(error), truncated)
    return harmony_text.decide(turn.messages, truncated=truncated, called=turn.stop == harmony_text.CALL)


def _not_harmony(why: str, truncated: bool) -> Action:
    if truncated:
        return harmony_text.malformed(
            "Your reply was cut off by the token limit before it was complete.", "Be briefer, and call the tool early."
        )
    return harmony_text.malformed(f"Your reply could not be read as messages: {why}.")


def _at_least_one(outputs: Sequence[str]) -> Sequence[str]:
    if not outputs:
        raise UsageError("an observation needs one output per command, and there is none")
    return outputs


def _developer_text(system: str) -> str:
    """Instructions and the tool's declaration, in Harmony's words."""
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
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.\n"
    "Calls to these tools must go to the commentary channel: 'functions'."
)

_PARAMETERS = {
    "type": "object",
    "properties": {TOOL_ARGUMENT: {"type": "string", "description": ARGUMENT_DESCRIPTION}},
    "required": [TOOL_ARGUMENT],
}
