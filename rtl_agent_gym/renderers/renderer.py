"""A model dialect: how one family of models reads a prompt and writes its turns.

A format of turns is control tokens and text: a prompt is text between control tokens, a completion is text that ends in
one of them, and so is what goes back. A family says what stands where, in pieces, and inherits two sides: a text side,
which needs nothing but the standard library, and a token side, which appends and never re-renders. Whatever ids the
model sampled stay in the next prompt as they are.

Nothing here raises for what a model wrote. A completion that cannot be acted on is an `Action` of kind ``malformed``
whose `Action.correction` tells the model what was wrong and shows the right form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers.calls import printable
from rtl_agent_gym.renderers.codec import Codec, Control, Piece, written_out
from rtl_agent_gym.renderers.protocol import Action, Message, ModelTurn
from rtl_agent_gym.renderers.turns import Kind, Part, Phrase, TurnWriter, byte_offsets, kinds_of, phrases_of


class Renderer(ABC):
    """One model dialect. Stateless: every method depends on its arguments alone, and one object serves many episodes.

    The methods that deal in ids raise `UsageError` when the renderer was made without the vocabulary they need.

    Args:
        name: Its name in `get_renderer`.
        tokenizer: The model's tokenizer, for the token side only: a `tokenizers.Tokenizer` or a fast transformers one.
    """

    END: Control
    """What ends a turn of the assistant, and sampling."""

    thinks: bool = False
    """Whether a turn may begin with thinking."""

    def __init__(self, name: str, tokenizer: Any = None) -> None:
        self._name, self._tokenizer = name, tokenizer

    @abstractmethod
    def initial_messages(self, system: str, user: str) -> list[Message]:
        """The opening as chat messages, with the tool declared in the first, for a model behind a chat interface."""

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

    def plain_pieces(self, system: str, user: str) -> list[Piece]:
        """An opening in which no tool is declared, for one completion that answers for itself.

        Raises:
            UsageError: The family has none.
        """
        raise UsageError(f"renderer {self._name!r} has no opening without a tool")

    def write(self, phrases: Sequence[Phrase]) -> TurnWriter:
        """A turn of the assistant with these parts, up to its stop token.

        A family that does not say how it writes thinking and calls writes text alone.

        Raises:
            UsageError: There are calls, and the family does not write them.
        """
        written = TurnWriter()
        for phrase in phrases:
            if phrase.kind == "call":
                raise UsageError(f"renderer {self._name!r} reads calls and does not write them: define its `write`")
            if phrase.kind == "text":
                written.say("text", phrase.text, None)
        written.end(self.END, stops=True)
        return written

    def read_parts(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        """The parts of a sampled turn, their offsets in characters.

        Args:
            ids: The turn.
            trimmed: Give the parts without white space around them, and of a call its arguments alone; otherwise
                everything that stands between tags.

        Raises:
            UsageError: The family's turns are only read as actions.
        """
        raise UsageError(f"the parts of a turn of renderer {self._name!r} cannot be told: define `read_parts`")

    def instead_of_text(self, *, first: bool) -> list[Control]:
        """What a model would write where it begins a text without a token that says so.

        Args:
            first: Whether the text would be the first part of its turn.
        """
        return []

    def results(self, pieces: Sequence[Piece]) -> list[str]:
        """The contents in what `turn_pieces` framed."""
        raise UsageError(f"the results in a turn of renderer {self._name!r} cannot be told: define `results`")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[str, Any]]:
        return type(self), (self._name, self._tokenizer)  # the codec is quickly made again

    @property
    def name(self) -> str:
        """Its name in `get_renderer`."""
        return self._name

    @property
    def stop(self) -> list[str] | list[int]:
        """Where sampling must end: token ids where the renderer has its vocabulary, otherwise their text."""
        return [str(self.END)] if self._tokenizer is None else [self.codec.control(self.END)]

    def initial_text(self, system: str, user: str) -> str:
        """The opening as the text that the model completes, control tokens written out."""
        return written_out(self.initial_pieces(system, user))

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        """The action in a completion.

        Args:
            completion: What the model wrote, with or without its stop token at the end.
            truncated: Whether the token limit ended it rather than the model.
        """
        return self.parse_completion(completion.rstrip().removesuffix(self.END), truncated=truncated)

    def observation_text(self, outputs: Sequence[str]) -> str:
        """What goes back for the commands of one action, one output each, as the content that the model reads."""
        return written_out(self.reply_pieces(each_output(outputs)))

    def correction_text(self, message: str) -> str:
        """`Action.correction` as the content that the model reads."""
        return written_out(self.reply_pieces([self.correction_pieces(message)]))

    def turn_text(self, turn: ModelTurn) -> str:
        """A completion that says `turn`, as a model of this dialect would write it."""
        return written_out(self.write(phrases_of(turn)).pieces).removesuffix(self.END)

    def read_observation(self, observation: str, count: int) -> list[str]:
        """The outputs in what `observation_text` or `correction_text` gave.

        Args:
            observation: The text that went back.
            count: How many outputs it holds; all are given as one where the text does not tell them apart.
        """
        return [observation]

    def initial_ids(self, system: str, user: str) -> list[int]:
        """The opening as ids. Both texts are plain: control tokens spelled in them stay text."""
        return self.codec.encode(self.initial_pieces(system, user))

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        """The action in sampled ids. Ids that do not end in a stop token count as truncated."""
        spoken, stopped = self.until_stop(ids)
        return self.parse_completion(self.codec.decode(spoken), truncated=not stopped)

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        """The ids to append after exactly `action_ids`, up to where the model writes next.

        They close the assistant's turn first when the action did not end in its stop token. Outputs are plain text:
        control tokens spelled in them stay text.
        """
        return self.next_turn(self.turn_pieces(self.reply_pieces(each_output(outputs))), action_ids)

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        """The same for the correction of a malformed action."""
        return self.next_turn(self.turn_pieces(self.reply_pieces([self.correction_pieces(message)])), action_ids)

    @cached_property
    def codec(self) -> Codec:
        """Between pieces and ids. Raises `UsageError` where there is no tokenizer."""
        if self._tokenizer is None:
            raise UsageError(
                f"the token side of renderer {self._name!r} needs the model's tokenizer: "
                f"get_renderer({self._name!r}, tokenizer)"
            )
        return Codec(self._tokenizer)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids for people to read: control tokens spelled, U+FFFD where it is not UTF-8."""
        return printable(self.codec.decode(ids))

    def until_stop(self, ids: Sequence[int]) -> tuple[list[int], bool]:
        """The ids before the first `END`, and whether there is one."""
        end, ids = self.codec.control(self.END), list(ids)
        return (ids[: ids.index(end)], True) if end in ids else (ids, False)

    def next_turn(self, pieces: Sequence[Piece], action_ids: Sequence[int]) -> list[int]:
        """The ids of what follows an action, whose turn is closed first where it did not end itself."""
        ended = bool(action_ids) and action_ids[-1] in [self.codec.control(self.END), *self.stop]
        return self.codec.encode([*([] if ended else [self.END]), *pieces])

    def contents(self, ids: Sequence[int]) -> list[Part]:
        """What a sampled turn says: its parts without white space around them, their offsets in bytes."""
        return self._in_bytes(ids, trimmed=True)

    def kinds(self, ids: Sequence[int]) -> list[Kind | None]:
        """The kind of each token of a sampled turn; None for control tokens and headers."""
        sizes = (len(self.codec.token_bytes(id_)) for id_ in ids)
        return kinds_of(self._in_bytes(ids, trimmed=False), list(accumulate(sizes, initial=0))[:-1])

    def framed(self, contents: Sequence[Part]) -> tuple[list[int], list[Part | None]]:
        """The ids of a turn with these contents, and each of them as it stands there, offsets in bytes.

        A content that is not UTF-8 is None there, and a replacement character is in its place. A dialect that does not
        think says in plain text what was thought.
        """
        kinds: list[Kind] = ["text" if part.kind == "thinking" and not self.thinks else part.kind for part in contents]
        bodies = [printable(part.body) for part in contents]
        written = self.write(list(map(Phrase, kinds, bodies)))
        placed = zip(contents, written.located(self.codec.spelled), strict=True)
        return self.codec.encode(written.pieces), [part if own.readable else None for own, part in placed]

    def outputs(self, ids: Sequence[int]) -> list[str]:
        """The texts that went back to the model in ids that were appended."""
        return [printable(text) for text in self.results(self.codec.pieces(ids))]

    def _in_bytes(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        offset = byte_offsets(self.codec.decode(ids))
        return [part.at(offset) for part in self.read_parts(ids, trimmed=trimmed)]


def each_output(outputs: Sequence[str]) -> list[list[Piece]]:
    """Outputs as the contents of a turn that goes back. Raises `UsageError` where there is none."""
    if not outputs:
        raise UsageError("an observation needs one output per command, and there is none")
    return [[printable(output)] for output in outputs]
