"""The half of a renderer that is the same for every dialect of turns, control tokens and text.

Most chat formats are that: a prompt is text between control tokens, a completion is text that ends in one of them, and
a reply is more text between control tokens. A family of this kind says what stands where, and inherits both sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers.calls import printable
from rtl_agent_gym.renderers.codec import Codec, Control, Piece, written_out
from rtl_agent_gym.renderers.protocol import Action, Message


class PieceRenderer(ABC):
    """A `Renderer` made of pieces: `Control` tokens, and text in which none can be spelled.

    Args:
        name: The name it is had by.
        tokenizer: The model's tokenizer, for the token side only: a `tokenizers.Tokenizer` or a fast transformers one.
    """

    END: Control
    """What ends a turn of the assistant, and sampling."""

    def __init__(self, name: str, tokenizer: Any = None) -> None:
        self._name, self._tokenizer = name, tokenizer

    @abstractmethod
    def initial_messages(self, system: str, user: str) -> list[Message]:
        """The opening as chat messages, with the tool declared in the first."""

    @abstractmethod
    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        """The whole opening, up to where the model writes first."""

    @abstractmethod
    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        """The action in a completion without its stop token. What was not UTF-8 in it is a lone surrogate."""

    @abstractmethod
    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        """What the model reads in a turn that goes back, for one or more contents: results, or a correction."""

    @abstractmethod
    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        """Such a turn in its frame: from behind the assistant's closed turn up to where the model writes next."""

    def correction_pieces(self, message: str) -> list[Piece]:
        """A correction as pieces; text, unless a family shows its example with real control tokens."""
        return [message]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[str, Any]]:
        return type(self), (self._name, self._tokenizer)  # the codec is quickly made again

    @property
    def name(self) -> str:
        """The name it is had by."""
        return self._name

    @property
    def stop(self) -> list[str] | list[int]:
        """`END`: as an id where there is a tokenizer, otherwise as text."""
        return [str(self.END)] if self._tokenizer is None else [self.codec.control(self.END)]

    def initial_text(self, system: str, user: str) -> str:
        """See `Renderer.initial_text`."""
        return written_out(self.initial_pieces(system, user))

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        """See `Renderer.parse_text`."""
        return self.parse_completion(completion.rstrip().removesuffix(self.END), truncated=truncated)

    def observation_text(self, outputs: Sequence[str]) -> str:
        """See `Renderer.observation_text`."""
        return written_out(self.reply_pieces(_contents(outputs)))

    def correction_text(self, message: str) -> str:
        """See `Renderer.correction_text`."""
        return written_out(self.reply_pieces([self.correction_pieces(message)]))

    def initial_ids(self, system: str, user: str) -> list[int]:
        """See `Renderer.initial_ids`."""
        return self.codec.encode(self.initial_pieces(system, user))

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        """See `Renderer.parse_ids`."""
        end, ids = self.codec.control(self.END), list(ids)
        whole = end in ids
        spoken = ids[: ids.index(end)] if whole else ids
        return self.parse_completion(self.codec.decode(spoken), truncated=not whole)

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        """See `Renderer.observation_ids`."""
        return self._next_turn(_contents(outputs), action_ids)

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        """See `Renderer.correction_ids`."""
        return self._next_turn([self.correction_pieces(message)], action_ids)

    @cached_property
    def codec(self) -> Codec:
        """Between pieces and ids. Raises `UsageError` where there is no tokenizer."""
        if self._tokenizer is None:
            raise UsageError(
                f"the token side of renderer {self._name!r} needs the model's tokenizer: "
                f"get_renderer({self._name!r}, tokenizer)"
            )
        return Codec(self._tokenizer)

    def _next_turn(self, contents: Sequence[Sequence[Piece]], action_ids: Sequence[int]) -> list[int]:
        ended = bool(action_ids) and action_ids[-1] == self.codec.control(self.END)
        closing: list[Piece] = [] if ended else [self.END]
        return self.codec.encode([*closing, *self.turn_pieces(self.reply_pieces(contents))])


def _contents(outputs: Sequence[str]) -> list[list[Piece]]:
    if not outputs:
        raise UsageError("an observation needs one output per command, and there is none")
    return [[printable(output)] for output in outputs]
