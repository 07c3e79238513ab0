"""Between text and the ids of a byte-level BPE vocabulary, with control tokens kept apart from text.

A prompt is a list of pieces: `Control` for a control token, and plain strings for everything else. Plain strings are
encoded by a copy of the tokenizer that knows no added tokens at all, so that ``<|im_end|>`` or ``</tool_response>``
in a tool's output can only ever become the ids of its letters. (The usual switch for that, ``split_special_tokens``,
leaves those added tokens active that are not marked special, and in Qwen's vocabulary the tool tags are such.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        plain = Tokenizer(backend.model)  # shares the ranks, and leaves the added tokens behind
        if backend.normalizer is not None:
            plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            plain.pre_tokenizer = backend.pre_tokenizer
        byte_of = char_bytes()

        def spell(id_: int) -> bytes:
            token = plain.id_to_token(id_) if id_ >= 0 else None
            return b"\xff" if token is None else bytes(byte_of[char] for char in token)

        self._use(
            {token.content: int(id_) for id_, token in backend.get_added_tokens_decoder().items()},
            lambda text: list(plain.encode(text, add_special_tokens=False).ids),
            spell,
        )

    def _use(self, controls: dict[str, int], encode: Callable[[str], list[int]], spell: Callable[[int], bytes]) -> None:
        self._ids = controls
        self._controls = {id_: Control(text) for text, id_ in controls.items()}
        self._encode, self._spell = encode, spell
        self._bytes = {id_: text.encode() for text, id_ in controls.items()}

    def control(self, text: str) -> int:
        """The id of a control token. Raises `UsageError` when the vocabulary has none such."""
        try:
            return self._ids[text]
        except KeyError:
            raise UsageError(f"the tokenizer has no token {text}; is it the model's own?") from None

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """The ids of the pieces. Neighbouring texts are encoded as one, as a chat template's output would be."""
        ids: list[int] = []
        for is_control, run in groupby(pieces, key=lambda piece: isinstance(piece, Control)):
            if is_control:
                ids += [self.control(piece) for piece in run]
            elif text := "".join(run):
                ids += self._encode(printable(text))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens spelled.

        Bytes that are not UTF-8, and ids the vocabulary does not have, become lone surrogates (``surrogateescape``):
        they cannot be mistaken for anything the model wrote.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "surrogateescape")

    def pieces(self, ids: Iterable[int]) -> list[Piece]:
        """The control tokens among ids, and the texts between them as `decode` gives them."""
        found: list[Piece] = []
        for is_control, run in groupby(ids, key=self._controls.__contains__):
            if is_control:
                found += [self._controls[id_] for id_ in run]
            else:
                found.append(self.decode(run))
        return found

    def spelled(self, piece: Piece) -> bytes:
        """The bytes of a piece's tokens: a vocabulary may normalise (NFC) before it looks up."""
        return piece.encode() if isinstance(piece, Control) else b"".join(map(self.token_bytes, self.encode([piece])))

    def token_bytes(self, id_: int) -> bytes:
        """What a token spells; a control token its name."""
        known = self._bytes.get(id_)
        if known is None:
            known = self._bytes[id_] = self._spell(id_)
        return known


class HarmonyCodec(Codec):
    """The same for Harmony's vocabulary.

    Args:
        encoding: An `openai_harmony.HarmonyEncoding`.
        controls: The control tokens that the dialect uses; any other is text.
    """

    def __init__(self, encoding: Any, controls: Iterable[str]) -> None:
        from openai_harmony import HarmonyError

        def spell(id_: int) -> bytes:
            try:
                return bytes(encoding._inner.decode_bytes([id_]))
            except (HarmonyError, OverflowError):  # the vocabulary does not have it
                return b"\xff"

        self._use(
            {mark: encoding.encode(mark, allowed_special={mark})[0] for mark in controls},
            lambda text: list(encoding.encode(text, disallowed_special=())),
            spell,
        )


def char_bytes() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Bytes that print stand for themselves; the other 68 are moved above U+00FF, in order.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + n): byte for n, byte in enumerate(moved)}
