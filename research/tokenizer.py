"""The tokenizer of the shipped models: byte-level BPE with Qwen3's control tokens, and whole tokens for frequent texts.

The text of a design between its names and numbers is the same in many episodes. Each such phrase is one token, so that
episodes are short. Specifications are split into words, so that other wordings can be read, and names into pieces.
Names with other pieces, and any other text, can be encoded too, with more tokens.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from research.episodes import TextEpisode, call
from research.variation import invented
from rtl_agent_gym.demo.founding import FOUNDING, READ
from rtl_agent_gym.demo.shipped import RENDERER
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import QWEN3_ADDED, QWEN3_SPECIAL, char_bytes
from rtl_agent_gym.sources.families.family import STEMS, Family, suffixes

CONTROLS = re.compile("|".join(map(re.escape, (*QWEN3_SPECIAL, *QWEN3_ADDED))))
"""Matches a control token."""
_WORDS = re.compile(r"[A-Za-z][A-Za-z-]*| `|`|\| item \| value \|\n\|---\|---\|\n\|| \|\n\|?| \| |\.\n-?|[.,]| \(|\)| ")
"""Matches the parts into which a specification is split."""
_REST = r"\d+|_?[A-Za-z]+|\n|."
SPELLED = r"\d|_|[a-z]+|[A-Z]|\n|."
"""How text without a token is split. With `SPELLED`, every digit and every capital letter is a separate part."""
_AT_LEAST = 4
"""How often a text must occur to become a token."""


def pieces(families: Iterable[Family]) -> list[str]:
    """The pieces of names in the training split; suffixes begin with ``_``."""
    tails = {
        f"_{suffix}"
        for family in families
        for role in family.roles
        for suffix in suffixes(role, held_out=False, is_output=role in family.outputs)
    }
    return [*STEMS, *sorted(tails)]


def longest_first(texts: Iterable[str]) -> list[str]:
    """The texts in the order in which the tokenizer tries them."""
    return sorted(texts, key=lambda text: (-len(text), text))


def make_tokenizer(families: Sequence[Family], episodes: Sequence[TextEpisode], merges: int) -> Any:
    """The tokenizer in transformers' format.

    Args:
        families: The families of problems, for their names.
        episodes: Representative episodes. The first output of each is a specification.
        merges: Maximum number of merges of byte pairs, which encode unknown words.
    """
    known = pieces(families)
    fixed = _frequent(families, episodes, known)
    rng = random.Random(0)
    words = [invented(rng) for _ in range(20000)]
    turns = [text for episode in episodes for turn in episode.turns for text in (turn.text, turn.output or "")]
    numbers = sorted({int(digits) for text in turns for digits in re.findall(r"\d{1,5}", text)})
    return build(fixed, known, words, numbers, merges)


def _frequent(families: Sequence[Family], episodes: Sequence[TextEpisode], known: Sequence[str]) -> list[str]:
    count: Counter[str] = Counter(FOUNDING.words * _AT_LEAST if FOUNDING in families else ())
    for family in families:
        count[f"\n{family.heading}\n\n"] += _AT_LEAST
    stems = [word for word in known if not word.startswith("_")]
    tails = [word for word in known if word.startswith("_")]
    generated = varying(rf"(?:{'|'.join(stems)})(?:{'|'.join(tails)})?")
    founding = varying("|".join(FOUNDING.words))
    for episode in episodes:
        is_founding = episode.turns[0].text == call(READ)
        variable = founding if is_founding else generated
        for text in _texts(episode, with_specification=is_founding):
            count.update(part for part in variable.split(text) if part)
            if not re.search(r"module|`", text):  # it has no names, so it may be the same in all episodes
                count[text] += 1
        if not is_founding:
            body = (episode.turns[0].output or "").split("\n\n", 2)[-1]
            words = _WORDS.findall(re.sub(r"`\w+`", "``", body))
            count.update(words)
            count.update(f" {word}" for word in words if word[0].isalpha())
    return longest_first(word for word, often in count.items() if often >= _AT_LEAST)


def varying(names: str) -> re.Pattern[str]:
    """A pattern for texts that differ between episodes: these names (a regular expression), and numbers."""
    return re.compile(rf"(?<![A-Za-z_])(?:{names})(?![A-Za-z_])|(?<![\d'])\d+(?![\d\],])")


def _texts(one: TextEpisode, with_specification: bool) -> Iterator[str]:
    """The texts between control tokens, with outputs split into lines."""
    renderer = get_renderer(RENDERER)
    parts = [renderer.initial_text(one.system, one.user), *renderer.turn_pieces(["|"])]
    for number, turn in enumerate(one.turns):
        parts.append(turn.text)
        if turn.output is not None and (number or with_specification):
            parts += re.split(r"(?<=\n)(?=.)", f"\n{turn.output}\n")
    return (text for part in parts for text in CONTROLS.split(part) if text)


def build(
    fixed: Sequence[str],
    known: Sequence[str],
    words: list[str],
    numbers: Sequence[int],
    merges: int,
    rest: str = _REST,
) -> Any:
    """A tokenizer in transformers' format.

    Args:
        fixed: Texts that become tokens, the longest first.
        known: Pieces of names that become tokens.
        words: Words from which the merges are learned.
        numbers: Numbers that become tokens.
        merges: Maximum number of merges.
        rest: A pattern that splits text without a token.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    def split(pattern: str) -> Any:
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    draft = Tokenizer(models.BPE())
    draft.pre_tokenizer = split(rest)
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    draft.train_from_iterator(words, trainer)
    model = json.loads(draft.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    for text in (*known, *map(str, numbers), *fixed):
        vocabulary.setdefault(_in_letters(text), len(vocabulary))
    merged = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merged, ignore_merges=True))
    tokenizer.pre_tokenizer = split(f"{_any_of(fixed)}|{rest}")
    tokenizer.decoder = decoders.ByteLevel()
    for names, special in ((QWEN3_SPECIAL, True), (QWEN3_ADDED, False)):
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=special) for name in names])
    return _of_transformers(tokenizer)


def _of_transformers(tokenizer: Any) -> Any:
    import transformers

    library: Any = transformers
    return library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )


def _any_of(texts: Sequence[str]) -> str:
    """A pattern that matches the first of these texts that fits, but no part of a longer word."""
    by_first: dict[str, list[str]] = {}
    for text in texts:  # grouped by first letter for speed, since the pattern is tried at every position
        after = "(?![A-Za-z0-9_])" if re.search(r"\w$", text) and not re.search("(?:0[xb]|'[hb])$", text) else ""
        by_first.setdefault(text[0], []).append(_escaped(text[1:]) + after)
    return "|".join(
        ("(?<![A-Za-z0-9_])" if re.match(r"\w", first) else "") + f"{_escaped(first)}(?:{'|'.join(rest)})"
        for first, rest in by_first.items()
    )


def _escaped(text: str) -> str:
    return re.sub(r"([^A-Za-z0-9_ \n])", r"\\\1", text)


def with_words(tokenizer: Any, words: Sequence[str]) -> Any:
    """The tokenizer with these texts, the longest first, as additional tokens; ids of control tokens follow theirs.

    A text is not matched inside a longer word.
    """
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    vocabulary |= {_in_letters(word): len(vocabulary) + number for number, word in enumerate(words)}
    for control in state["added_tokens"]:
        control["id"] += len(words)
    pattern = state["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    pattern["Regex"] = f"{_any_of(words)}|{pattern['Regex']}"
    return _of_transformers(Tokenizer.from_str(json.dumps(state)))


def _in_letters(text: str) -> str:
    """A text in the form in which byte-level BPE has it in its vocabulary."""
    letters = {byte: char for char, byte in char_bytes().items()}
    return "".join(letters[byte] for byte in text.encode())


def widened(model: Any, before: Any, after: Any, like: Mapping[str, str] | None = None) -> Any:
    """The model with embeddings for the additional tokens of `after`.

    Args:
        model: A transformers model with the tokenizer `before`.
        before: Its tokenizer.
        after: The tokenizer that `with_words` made from `before`.
        like: For each new text, the text whose tokens' mean embedding it gets; by default the text after a space.
    """
    import torch

    rows = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(-(-len(after) // 8) * 8, mean_resizing=False)
    known, texts = before.get_vocab(), {_in_letters(text): other for text, other in (like or {}).items()}
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        for token, place in after.get_vocab().items():
            text = texts.get(token, f" {token}")
            sources = [known[token]] if token in known else before.encode(text, add_special_tokens=False)
            embeddings[place] = rows[sources].mean(0)
        embeddings[len(after) :] = rows[before.pad_token_id]  # padding rows, which would otherwise be random
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = after.eos_token_id, after.pad_token_id
    return model
