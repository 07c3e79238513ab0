"""A dialect without the tool, for an episode of one answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from .codec import Codec, Piece
from .protocol import Action, Message
from .renderer import Renderer
from .turns import Frame, Phrase


class ToollessRenderer(Renderer):
    """Opens a conversation without declaring the tool, and reads each completion as a text answer.

    With this renderer, a policy needs no extra code to play an episode of one answer.

    Args:
        dialect: The model's renderer. Its thinking and control tokens are removed from answers.
    """

    def __init__(self, dialect: Renderer) -> None:
        super().__init__(dialect.name)
        self._dialect, self.END, self.thinks = dialect, dialect.END, dialect.thinks

    def __reduce__(self) -> tuple[Any, ...]:
        return ToollessRenderer, (self._dialect,)

    @property
    def stop(self) -> list[str] | list[int]:
        return self._dialect.stop

    @cached_property
    def codec(self) -> Codec:
        return self._dialect.codec

    def initial_messages(self, system: str, user: str) -> list[Message]:
        """The system message, if any, and the user message."""
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": user}]

    def initial_text(self, system: str, user: str) -> str:
        """System and user text, without control tokens."""
        return "\n\n".join(message["content"] for message in self.initial_messages(system, user))

    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        return self._dialect.plain_pieces(system, user)

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        """The answer of a completion."""
        text = self._dialect.parse_text(completion, truncated=truncated).text
        if not text and "<|" not in completion and "<think>" not in completion:
            text = completion  # a chat service already removed the dialect's marks
        return Action("final", text=text)

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        return self.parse_text(completion, truncated=truncated)

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        """The answer of sampled ids."""
        return Action("final", text=self._dialect.parse_ids(ids, truncated=truncated).text)

    def frame(self, phrase: Phrase, *, last: bool) -> Frame | None:
        return self._dialect.frame(phrase, last=last)

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        """Nothing follows an answer."""
        return []

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        return []

    def next_turn(self, pieces: Sequence[Piece], action_ids: Sequence[int]) -> list[int]:
        return []
