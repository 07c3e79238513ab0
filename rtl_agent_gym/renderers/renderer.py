"""A model dialect: how one family of models reads a prompt and writes its turns.

A dialect's format is control tokens and text. A family defines its prompts and replies as pieces, and inherits two
sides: a text side, which needs no vocabulary, and a token side, which appends and never re-renders. The ids that the
model sampled stay in the next prompt unchanged.

Nothing that a model wrote raises an exception. A completion that cannot be run is an `Action` of kind ``malformed``
whose `Action.correction` tells the model what was wrong and shows the right form.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from ..errors import UsageError
from .actions import with_one_call
from .protocol import TOOL_ARGUMENT, Action, Frame, Kind, Message, ModelTurn, Part, Phrase, phrases_of
from .vocabularies import Codec, Control, Piece, printable


class Renderer(ABC):
    """One model dialect. Stateless: every method depends only on its arguments, and one object serves many episodes.

    The methods that take or return ids raise `UsageError` if the renderer has no vocabulary.

    Args:
        name: Its name in `get_renderer`.
        tokenizer: The model's tokenizer, for the token side only: a `tokenizers.Tokenizer` or a fast transformers one.
    """

    END: Control
    """The control token that ends a turn of the assistant, and sampling."""

    thinks: bool = False
    """Whether a turn may begin with thinking."""

    one_call: bool = False
    """Whether a turn has at most one call; several commands are then written as the lines of one command."""

    def __init__(self, name: str, tokenizer: Any = None) -> None:
        self.name, self._tokenizer = name, tokenizer

    @abstractmethod
    def initial_messages(self, system: str, user: str) -> list[Message]:
        """The opening as chat messages, with the tool declared in the first, for a chat service."""

    @abstractmethod
    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        """The opening, up to where the model starts to write."""

    @abstractmethod
    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        """The action of a completion without its stop token. Bytes that are not UTF-8 are lone surrogates."""

    @abstractmethod
    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        """The content of the turn sent back to the model: one or more results, or a correction."""

    @abstractmethod
    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        """The text of a reply as a turn: from the end of the assistant's turn up to where the model writes next."""

    def correction_pieces(self, message: str) -> list[Piece]:
        """A correction as pieces; plain text, unless a family writes its example with real control tokens."""
        return [message]

    def plain_pieces(self, system: str, user: str) -> list[Piece]:
        """The opening without the tool's declaration, for single-answer episodes. Raises `UsageError` if undefined."""
        raise UsageError(f"renderer {self.name!r} has no opening without a tool")

    def frame(self, phrase: Phrase, *, last: bool) -> Frame | None:
        """The pieces around a part of a turn; `last` is whether the turn ends after it. None leaves the part out.

        This default writes only text, and raises `UsageError` for a call.
        """
        if phrase.kind == "call":
            raise UsageError(f"renderer {self.name!r} cannot write calls: define `frame`")
        return Frame(after=[self.END] if last else []) if phrase.kind == "text" else None

    def read_parts(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        """The parts of a sampled turn, with offsets in characters. Raises `UsageError` if not defined.

        A part has everything between its tags; if `trimmed`, no surrounding white space, and of a call only arguments.
        """
        raise UsageError(f"renderer {self.name!r} cannot split a turn into parts: define `read_parts`")

    def instead_of_text(self, *, first: bool) -> list[Control]:
        """The control tokens that a model could write instead of a text that has no opening token.

        `first` is whether the text is the first part of its turn.
        """
        return []

    def results(self, pieces: Sequence[Piece]) -> list[str]:
        """The texts of the results or of the correction in pieces that `turn_pieces` returned."""
        raise UsageError(f"renderer {self.name!r} cannot read the results in a turn: define `results`")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "codec"}  # it is rebuilt quickly

    @property
    def stop(self) -> list[str] | list[int]:
        """The stop tokens: as ids if the renderer has a vocabulary, otherwise as text."""
        return [str(self.END)] if self._tokenizer is None else [self.codec.control(self.END)]

    def initial_text(self, system: str, user: str) -> str:
        """The opening as text that the model completes, control tokens written out."""
        return "".join(self.initial_pieces(system, user))

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        """The action of a completion. What follows the stop token is ignored.

        `truncated` is whether the token limit ended it; a completion with a stop token is complete.
        """
        before_stop, stopped = self.text_until_stop(completion)
        return self.parse_completion(before_stop, truncated=truncated and not stopped)

    def observation_text(self, outputs: Sequence[str]) -> str:
        """The reply to the commands of one action, one output each, as the model reads it."""
        return "".join(self.reply_pieces(each_output(outputs)))

    def correction_text(self, message: str) -> str:
        """`Action.correction` as the model reads it."""
        return "".join(self.reply_pieces([self.correction_pieces(message)]))

    def turn_text(self, turn: ModelTurn) -> str:
        """`turn` as a completion, as a model of this dialect would write it."""
        return "".join(self._turn_pieces(turn)).removesuffix(self.END)

    def read_observation(self, observation: str, count: int) -> list[str]:
        """The `count` outputs in an `observation_text` or `correction_text`; one text if they cannot be separated."""
        return [observation]

    def initial_ids(self, system: str, user: str) -> list[int]:
        """The opening as ids. Control tokens spelled in the two texts stay text."""
        return self.codec.encode(self.initial_pieces(system, user))

    def turn_ids(self, turn: ModelTurn) -> list[int]:
        """`turn` as ids, with the stop token at its end. Control tokens spelled in it stay text."""
        return self.codec.encode(self._turn_pieces(turn))

    def _turn_pieces(self, turn: ModelTurn) -> list[Piece]:
        return self._write(phrases_of(with_one_call(turn) if self.one_call else turn))[0]

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        """The action of sampled ids. Ids without a stop token count as truncated."""
        before_stop, stopped = self.until_stop(ids)
        return self.parse_completion(self.codec.decode(before_stop), truncated=not stopped)

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        """The ids to append directly after `action_ids`, up to where the model writes next.

        They first close the assistant's turn if the action did not end in a stop token. Control tokens spelled in
        outputs stay text.
        """
        return self.next_turn(self.turn_pieces(self.reply_pieces(each_output(outputs))), action_ids)

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        """`observation_ids` for the correction of a malformed action."""
        return self.next_turn(self.turn_pieces(self.reply_pieces([self.correction_pieces(message)])), action_ids)

    @cached_property
    def codec(self) -> Codec:
        """Encodes and decodes pieces. Raises `UsageError` if there is no tokenizer."""
        if self._tokenizer is None:
            raise UsageError(
                f"the token side of renderer {self.name!r} needs the model's tokenizer: "
                f"get_renderer({self.name!r}, tokenizer)"
            )
        return Codec(self._tokenizer)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids for people to read: control tokens written out, U+FFFD for bytes that are not UTF-8."""
        return printable(self.codec.decode(ids))

    def until_stop(self, ids: Sequence[int]) -> tuple[list[int], bool]:
        """The ids before the first stop token, and whether there is one."""
        stops = set(self.stop)
        end = next((place for place, id_ in enumerate(ids) if id_ in stops), None)
        return list(ids[:end]), end is not None

    def text_until_stop(self, text: str) -> tuple[str, bool]:
        """`until_stop` for text. A family whose calls may quote the stop token overrides this."""
        before, stop, _ = text.partition(self.END)
        return before, bool(stop)

    def next_turn(self, pieces: Sequence[Piece], action_ids: Sequence[int]) -> list[int]:
        """The ids of the pieces that follow an action, with `END` first if the action did not end its turn."""
        ended = bool(action_ids) and action_ids[-1] in [self.codec.control(self.END), *self.stop]
        return self.codec.encode([*([] if ended else [self.END]), *pieces])

    def contents(self, ids: Sequence[int]) -> list[Part]:
        """The parts of a sampled turn without white space around them, with offsets in bytes."""
        return self._in_bytes(ids, trimmed=True)

    def kinds(self, ids: Sequence[int]) -> list[Kind | None]:
        """The kind of each token of a sampled turn; None for control tokens and headers."""
        sizes = (len(self.codec.token_bytes(id_)) for id_ in ids)
        starts = list(accumulate(sizes, initial=0))[:-1]
        found: list[Kind | None] = [None] * len(starts)
        for part in self._in_bytes(ids, trimmed=False):
            first, end = bisect_left(starts, part.place), bisect_left(starts, part.place + len(part.data))
            found[first:end] = [part.kind] * (end - first)
        return found

    def framed(self, contents: Sequence[Part]) -> tuple[list[int], list[Part | None]]:
        """The ids of a turn with these contents, and the parts of that turn, with offsets in bytes.

        For content that is not UTF-8, the part is None, and the turn has replacement characters. A dialect without
        thinking writes thinking as text.
        """
        kinds: list[Kind] = ["text" if part.kind == "thinking" and not self.thinks else part.kind for part in contents]
        texts = [printable(part.body) for part in contents]
        bodies = [
            json.dumps({TOOL_ARGUMENT: text}, ensure_ascii=False) if part.raw else text
            for part, text in zip(contents, texts, strict=True)
        ]
        pieces, parts = self._write(list(map(Phrase, kinds, bodies)))
        encoded = [self.codec.encoded_bytes(piece) for piece in pieces]
        offset = list(accumulate(map(len, encoded), initial=0)).__getitem__
        framed = [
            replace(part.at(offset), body=encoded[part.place].decode("utf-8", "surrogateescape"))
            if text == content.body and part is not None
            else None
            for content, text, part in zip(contents, texts, parts, strict=True)
        ]
        return self.codec.encode(pieces), framed

    def _write(self, phrases: Sequence[Phrase]) -> tuple[list[Piece], list[Part | None]]:
        """An assistant turn, and its parts with offsets that count pieces; None for each omitted phrase."""
        pieces: list[Piece] = []
        parts: list[Part | None] = []
        for number, phrase in enumerate(phrases, 1):
            frame = self.frame(phrase, last=number == len(phrases))
            if frame is None:
                parts.append(None)
            else:
                begin, place = len(pieces), len(pieces) + len(frame.before)
                opens = None if frame.opens is None else (begin + frame.opens[0], begin + frame.opens[1])
                ends = place + 1 + frame.ends if frame.ends else None
                parts.append(Part(phrase.kind, phrase.text, place, opens, ends, frame.stops))
                pieces += [*frame.before, phrase.text, *frame.after]
        return pieces or [self.END], parts

    def outputs(self, ids: Sequence[int]) -> list[str]:
        """The texts that appended ids sent to the model."""
        return [printable(text) for text in self.results(self.codec.pieces(ids))]

    def _in_bytes(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        sizes = (len(char.encode("utf-8", "surrogateescape")) for char in self.codec.decode(ids))
        offset = list(accumulate(sizes, initial=0)).__getitem__
        return [part.at(offset) for part in self.read_parts(ids, trimmed=trimmed)]


def each_output(outputs: Sequence[str]) -> list[list[Piece]]:
    """Outputs as contents for `Renderer.reply_pieces`. Raises `UsageError` if there is none."""
    if not outputs:
        raise UsageError("an observation needs one output per command, and there is none")
    return [[printable(output)] for output in outputs]


def one_below_another(
    contents: Sequence[Sequence[Piece]], begin: Sequence[Piece] = (), end: Sequence[Piece] = ()
) -> list[Piece]:
    """The contents, each between `begin` and `end`, separated by newlines."""
    return [piece for content in contents for piece in ("\n", *begin, *content, *end)][1:]


def with_example(message: str, example: Sequence[Piece]) -> list[Piece]:
    """A correction as pieces; an `example` at its end keeps its control tokens."""
    before = message.removesuffix("".join(example))
    return [message] if before == message else [before, *example]


def split_results(observation: str, frame: tuple[str, str], count: int) -> list[str] | None:
    """The texts in a reply, each between the two parts of `frame`; None if the reply lacks them.

    If there are not `count` texts, one of them spells the frame, and everything is returned as one text.
    """
    begin, end = frame
    if not (observation.startswith(begin) and observation.endswith(end)):
        return None
    inner = observation[len(begin) : len(observation) - len(end)]
    found = inner.split(f"{end}\n{begin}")
    return found if len(found) == count else [inner]


class ToollessRenderer(Renderer):
    """Opens a conversation without declaring the tool, and reads each completion as a text answer.

    Thinking and control tokens of the dialect are removed from answers. With this renderer, a policy needs no extra
    code to play a single-answer episode.
    """

    def __init__(self, dialect: Renderer) -> None:
        super().__init__(dialect.name)
        self._dialect, self.END, self.thinks = dialect, dialect.END, dialect.thinks

    @property
    def stop(self) -> list[str] | list[int]:
        return self._dialect.stop

    @cached_property
    def codec(self) -> Codec:
        return self._dialect.codec

    def initial_messages(self, system: str, user: str) -> list[Message]:
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": user}]

    def initial_text(self, system: str, user: str) -> str:
        """System and user text, without control tokens."""
        return "\n\n".join(message["content"] for message in self.initial_messages(system, user))

    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        return self._dialect.plain_pieces(system, user)

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        text = self._dialect.parse_text(completion, truncated=truncated).text
        cut = truncated and self.thinks  # probably while thinking
        if not text and not cut and "<|" not in completion and "<think>" not in completion:
            text = completion  # a chat service already removed the dialect's markup
        return Action("final", text=text)

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        return self.parse_text(completion, truncated=truncated)

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        return Action("final", text=self._dialect.parse_ids(ids, truncated=truncated).text)

    def turn_text(self, turn: ModelTurn) -> str:
        return self._dialect.turn_text(turn)

    def turn_ids(self, turn: ModelTurn) -> list[int]:
        return self._dialect.turn_ids(turn)

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        """Nothing follows an answer."""
        return []

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        return []

    def next_turn(self, pieces: Sequence[Piece], action_ids: Sequence[int]) -> list[int]:
        return []
