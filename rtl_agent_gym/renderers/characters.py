"""Coded text: one character in place of each control token, and a tokenizer whose ids are its characters.

The library ``renderers`` works on token ids and needs a tokenizer. With this one it renders and parses without any
vocabulary, and text that only spells a control token stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from .vocabularies import Control, Piece, printable

FIRST_CONTROL, FIRST_BODY, FIRST_ESCAPE = 0xD800, 0xDB00, 0xDC00
"""Surrogates, which no text has: in place of control tokens, of bodies in a shape, and of first letters of spelled
control tokens. Bytes that are not UTF-8 are U+DC80 and above."""

CONTROLS = re.compile("([\ud800-\udaff])")
BODIES = re.compile("([\udb00-\udbff])")


class CharacterTokenizer:
    """A tokenizer whose ids are the characters of coded text, for the library.

    Args:
        controls: The control tokens.
        model: The model's name. Few of the library's renderers depend on it.
    """

    unk_token_id = -1
    eos_token_id = None

    def __init__(self, controls: Sequence[str], model: str = "") -> None:
        self.name_or_path = model
        self._codes = {text: chr(FIRST_CONTROL + number) for number, text in enumerate(controls)}
        self._texts = {code: Control(text) for text, code in self._codes.items()}
        spelled = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
        self._spelled = re.compile(spelled)
        firsts = sorted({text[0] for text in controls})
        self._escapes = {first: chr(FIRST_ESCAPE + number) for number, first in enumerate(firsts)}
        self._unescaped = str.maketrans({escape: first for first, escape in self._escapes.items()})

    def encode(self, text: str, **_: Any) -> list[int]:
        """The ids of a text in which control tokens are written out."""
        return list(map(ord, self.coded(text)))

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The text of ids, control tokens written out, and those that are only spelled still hidden."""
        return "".join(self._texts.get(char, char) for char in map(chr, ids))

    def convert_tokens_to_ids(self, token: str) -> int:
        """The id of a control token; -1 for any other text."""
        return ord(self._codes[token]) if token in self._codes else self.unk_token_id

    def coded(self, text: str) -> str:
        """The text with each control token that is written out in it as one character."""
        return self._spelled.sub(lambda found: self._codes[found[0]], text)

    def protected(self, text: str) -> str:
        """The text with control tokens that are spelled in it hidden from `coded`, until `pieces` restores them."""
        return self.hidden(printable(text))

    def hidden(self, text: str) -> str:
        """`protected` for text of a model, in which bytes that are not UTF-8 are lone surrogates."""
        return self._spelled.sub(lambda found: self._escapes[found[0][0]] + found[0][1:], text)

    def written(self, coded: Iterable[str]) -> str:
        """Coded characters as text, control tokens written out."""
        return "".join(self._texts.get(char, char) for char in coded).translate(self._unescaped)

    def pieces(self, coded: str) -> list[Piece]:
        """Coded text as pieces."""
        split = filter(None, CONTROLS.split(coded))
        return [self._texts[text] if text in self._texts else text.translate(self._unescaped) for text in split]

    def from_pieces(self, pieces: Sequence[Piece]) -> str:
        """Coded text from pieces. A control token of another family is text."""
        return "".join(
            self._codes.get(piece, piece) if isinstance(piece, Control) else self.hidden(piece) for piece in pieces
        )


def id_list(coded: str) -> list[int]:
    """The ids of coded text."""
    return list(map(ord, coded))
