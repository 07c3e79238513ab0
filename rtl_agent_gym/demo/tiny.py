"""A student and a teacher of about a million parameters, built in less than a minute on a laptop's CPU.

Both are Qwen3 models that know one episode (`tiny_episode`), with Qwen's control tokens. The student usually makes a
plausible mistake; the teacher does not. They are trained with randomly replaced input tokens, so that they recover from
a wrong token. Without that, one wrong token turns the rest of an episode into noise, from which a student cannot learn.

Models are kept in the user's cache folder, under a digest of everything that they depend on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..renderers import get_renderer
from ..renderers.vocabularies import QWEN3_ADDED, QWEN3_SPECIAL, cache_folder
from .keeping import keep_folder
from .tiny_episode import DESIGN, RENDERER, SLIPS, SYSTEM_PROMPT, USER_PROMPT, WORDS, WRONG_DESIGN, endings, script
from .tiny_recipe import Phase, TinyRecipe

__all__ = ["Phase", "TinyModels", "TinyRecipe", "make_tiny", "make_tokenizer"]

_CONTROLS = re.compile("|".join(map(re.escape, [*QWEN3_SPECIAL, *QWEN3_ADDED])))


@dataclass(frozen=True)
class TinyModels:
    """The models' folders in the format of transformers, each with the tokenizer."""

    student_path: Path
    teacher_path: Path
    tokenizer_path: Path


def make_tiny(seed: int = 0, recipe: TinyRecipe | None = None, folder: Path | None = None) -> TinyModels:
    """The tiny student and teacher, from the cache or built now, which takes almost a minute on one core.

    The same seed gives the same weights on the same machine.

    Args:
        seed: For the initial weights and the noise.
        recipe: How they are built.
        folder: Where they are kept; by default the user's cache folder.
    """
    recipe = recipe or TinyRecipe()
    kept = keep_folder(
        (folder or cache_folder() / "tiny") / f"{recipe.digest(seed)}-{seed}",
        lambda scratch: _make(scratch, recipe, seed),
    )
    return TinyModels(kept / "student", kept / "teacher", kept / "tokenizer")


def make_tokenizer(vocabulary: int) -> Any:
    """A byte-level BPE tokenizer with Qwen3's control tokens, trained on the episode, in transformers' format."""
    import transformers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"), to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    texts = [get_renderer(RENDERER).initial_text(SYSTEM_PROMPT, USER_PROMPT), *SLIPS]
    for one in (script(DESIGN), script(WRONG_DESIGN)):
        texts += [*one.turns, *one.outputs]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(QWEN3_SPECIAL) - len(QWEN3_ADDED),
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([piece for text in texts for piece in _CONTROLS.split(text) if piece], trainer)
    for names, special in ((QWEN3_SPECIAL, True), (QWEN3_ADDED, False)):
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=special) for name in names])
    library: Any = transformers
    return library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )


def _make(folder: Path, recipe: TinyRecipe, seed: int) -> None:
    from ..engines.models import without_progress_bars
    from .tiny_training import episode_ids, train_pair

    tokenizer = make_tokenizer(recipe.vocabulary)
    tokenizer.save_pretrained(folder / "tokenizer")
    renderer = get_renderer(RENDERER, tokenizer)
    right, wrong = (
        [episode_ids(one, renderer, tokenizer) for one in (script(design), *endings(script(design)))]
        for design in (DESIGN, WRONG_DESIGN)
    )
    for name, model in train_pair(recipe, tokenizer, list(zip(right, wrong, strict=True)), seed):
        with without_progress_bars():
            model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
