"""Encoding and decoding with a byte-level BPE vocabulary, with control tokens kept apart from text.

A prompt is a list of pieces: `Control` for a control token, and plain strings for everything else. Plain strings are
encoded by a copy of the tokenizer without any added tokens, so that ``<|im_end|>`` or ``</tool_response>`` in a tool's
output is always encoded as ordinary text. (The usual option for that, ``split_special_tokens``, keeps added tokens
active that are not marked special, such as the tool tags in Qwen's vocabulary.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from ..errors import UsageError
from .calls import printable


class Control(str):
    """The text of a control token, encoded as its single id."""

    __slots__ = ()


Piece = str
"""A `Control`, or plain text."""


def written_out(pieces: Iterable[Piece]) -> str:
    """The pieces as one text, control tokens written out."""
    return "".join(pieces)


class Codec:
    """Encodes and decodes with one vocabulary.

    Args:
        tokenizer: A `tokenizers.Tokenizer`, or a fast tokenizer of transformers.

    Raises:
        UsageError: It is something else, or not byte-level.
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
            raise UsageError("a renderer needs a byte-level tokenizer, such as Qwen's; this one decodes differently")
        plain = Tokenizer(backend.model)  # shares the ranks, without the added tokens
        if backend.normalizer is not None:
            plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            plain.pre_tokenizer = backend.pre_tokenizer
        byte_of = char_bytes()

        def bytes_of(id_: int) -> bytes:
            token = plain.id_to_token(id_) if id_ >= 0 else None
            return b"\xff" if token is None else bytes(byte_of[char] for char in token)

        self._set_vocabulary(
            {token.content: int(id_) for id_, token in backend.get_added_tokens_decoder().items()},
            lambda text: list(plain.encode(text, add_special_tokens=False).ids),
            bytes_of,
        )

    def _set_vocabulary(
        self, controls: dict[str, int], encode: Callable[[str], list[int]], bytes_of: Callable[[int], bytes]
    ) -> None:
        self._ids = controls
        self._controls = {id_: Control(text) for text, id_ in controls.items()}
        self._encode, self._bytes_of = encode, bytes_of
        self._bytes = {id_: text.encode() for text, id_ in controls.items()}

    def control(self, text: str) -> int:
        """The id of a control token. Raises `UsageError` if the vocabulary does not have it."""
        try:
            return self._ids[text]
        except KeyError:
            raise UsageError(f"the tokenizer has no token {text}; is it the model's own?") from None

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """The ids of the pieces. Adjacent texts are encoded together, as in a chat template's output."""
        ids: list[int] = []
        for is_control, run in groupby(pieces, key=lambda piece: isinstance(piece, Control)):
            if is_control:
                ids += [self.control(piece) for piece in run]
            elif text := "".join(run):
                ids += self._encode(printable(text))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens written out.

        Bytes that are not UTF-8, and ids that the vocabulary does not have, become lone surrogates
        (``surrogateescape``), which cannot be confused with text of the model.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "surrogateescape")

    def pieces(self, ids: Iterable[int]) -> list[Piece]:
        """The ids as pieces: control tokens, and between them text as `decode` returns it."""
        found: list[Piece] = []
        for is_control, run in groupby(ids, key=self._controls.__contains__):
            if is_control:
                found += [self._controls[id_] for id_ in run]
            else:
                found.append(self.decode(run))
        return found

    def encoded_bytes(self, piece: Piece) -> bytes:
        """The bytes of a piece's tokens, which differ from the piece where the tokenizer normalises text (NFC)."""
        return piece.encode() if isinstance(piece, Control) else b"".join(map(self.token_bytes, self.encode([piece])))

    def token_bytes(self, id_: int) -> bytes:
        """The bytes of a token; for a control token, of its name."""
        known = self._bytes.get(id_)
        if known is None:
            known = self._bytes[id_] = self._bytes_of(id_)
        return known


class HarmonyCodec(Codec):
    """A `Codec` for Harmony's vocabulary.

    Args:
        encoding: An `openai_harmony.HarmonyEncoding`.
        controls: The control tokens that the dialect uses; all others are text.
    """

    def __init__(self, encoding: Any, controls: Iterable[str]) -> None:
        from openai_harmony import HarmonyError

        def bytes_of(id_: int) -> bytes:
            try:
                return bytes(encoding._inner.decode_bytes([id_]))
            except (HarmonyError, OverflowError):  # the vocabulary does not have it
                return b"\xff"

        self._set_vocabulary(
            {mark: encoding.encode(mark, allowed_special={mark})[0] for mark in controls},
            lambda text: list(encoding.encode(text, disallowed_special=())),
            bytes_of,
        )


def char_bytes() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary represents.

    Printable bytes represent themselves; the other 68 are moved above U+00FF, in order.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + n): byte for n, byte in enumerate(moved)}
