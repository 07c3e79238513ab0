"""Between text and the ids of a byte-level BPE vocabulary, with control tokens kept apart from text.

A prompt is a list of pieces: `Control` for a control token, and plain strings for everything else. Plain strings are
encoded by a copy of the tokenizer that knows no added tokens at all, so that ``<|im_end|>`` or ``</tool_response>``
in a tool's output can only ever become the ids of its letters. (The usual switch for that, ``split_special_tokens``,
leaves those added tokens active that are not marked special, and in Qwen's vocabulary the tool tags are such.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers.calls import printable


class Control(str):
    """The text of a control token, to be encoded as that one id."""

    __slots__ = ()


Piece = str
"""A `Control`, or plain text."""


def written_out(pieces: Iterable[Piece]) -> str:
    """The pieces as one text, control tokens spelled."""
    return "".join(pieces)


class Codec:
    """The two directions for one vocabulary.

    Args:
        tokenizer: A `tokenizers.Tokenizer`, or a fast tokenizer of transformers.

    Raises:
        UsageError: When it is something else, or not byte-level.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not hasattr(backend, "get_added_tokens_decoder"):
            raise UsageError(
                "a renderer needs a tokenizers.Tokenizer or a fast transformers tokenizer, "
                f"not {type(tokenizer).__name__}"
            )
        from tokenizers import Tokenizer

        if type(backend.decoder).__name__ != "ByteLevel":
            raise UsageError("a renderer needs a byte-level tokenizer, as Qwen's is; this one decodes in another way")
        self._controls = {token.content: int(id_) for id_, token in backend.get_added_tokens_decoder().items()}
        self._plain = Tokenizer(backend.model)  # shares the ranks, and leaves the added tokens behind
        if backend.normalizer is not None:
            self._plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._plain.pre_tokenizer = backend.pre_tokenizer
        self._bytes = {id_: text.encode() for text, id_ in self._controls.items()}
        self._char_bytes = char_bytes()

    def control(self, text: str) -> int:
        """The id of a control token. Raises `UsageError` when the vocabulary has none such."""
        try:
            return self._controls[text]
        except KeyError:
            raise UsageError(f"the tokenizer has no token {text}; is it the model's own?") from None

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """The ids of the pieces. Neighbouring texts are encoded as one, as a chat template's output would be."""
        ids: list[int] = []
        for is_control, run in groupby(pieces, key=lambda piece: isinstance(piece, Control)):
            if is_control:
                ids += [self.control(piece) for piece in run]
            elif text := "".join(run):
                ids += self._plain.encode(printable(text), add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelled.

        Bytes that are not UTF-8, and ids the vocabulary does not have, become lone surrogates (``surrogateescape``):
        they cannot be mistaken for anything the model wrote.
        """
        return b"".join(map(self._token_bytes, ids)).decode("utf-8", "surrogateescape")

    def _token_bytes(self, id_: int) -> bytes:
        known = self._bytes.get(id_)
        if known is None:
            token = self._plain.id_to_token(id_) if id_ >= 0 else None
            known = b"\xff" if token is None else bytes(self._char_bytes[char] for char in token)
            self._bytes[id_] = known
        return known


def char_bytes() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Bytes that print stand for themselves; the other 68 are moved above U+00FF, in order.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + n): byte for n, byte in enumerate(moved)}
