"""A student and a teacher of about a million parameters, made on the spot in less than a minute on a laptop's CPU.

Both are Qwen3 models that know one episode (`tiny_episode`), with Qwen's control tokens. The student does it right now
and then, and more often makes a plausible mistake; the teacher does it right. Neither has merely memorised one path:
they were trained with tokens of their inputs replaced at random, so that they find back when they slip. Without that
one slip turns the rest of an episode into noise, and a student cannot be taught by what it does.

Models are kept in the user's cache folder, under a digest of everything that went into them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..renderers import Renderer, get_renderer
from ..renderers.vocabularies import cache_folder
from .tiny_episode import DESIGN, RENDERER, SLIPS, SYSTEM_PROMPT, USER_PROMPT, WRONG_DESIGN, Script, endings, script

# fmt: off
QWEN3_CONTROLS: tuple[tuple[str, bool], ...] = (
    *((text, True) for text in (
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
        "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
        "<|image_pad|>", "<|video_pad|>",
    )),
    *((text, False) for text in (
        "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
        "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    )),
)
# fmt: on
"""Qwen3's control tokens, and whether its tokenizer calls them special."""

# Words with the white space before them, so that an episode has few tokens: each is a chance to slip.
_SPLIT = r"\s*\S+|\s+"


@dataclass(frozen=True)
class Phase:
    """A stretch of training."""

    steps: int
    rate: float
    """Adam's learning rate at its start."""
    rate_end: float
    """And at its end, reached linearly."""
    right: float
    """The probability of the right choice at the token where the right and the wrong episode part."""
    noise: float
    """The part of the input tokens after the prompt that are replaced by random ones."""


@dataclass(frozen=True)
class TinyRecipe:
    """Everything that makes the models, but the seed."""

    vocabulary: int = 1100
    hidden: int = 192
    layers: int = 2
    heads: int = 4
    batch: int = 2
    """Episodes a step, right and wrong by turns; an even number."""
    temperature: float = 1.5
    """At which they are taught. They are used at 1, where they are surer of all they do: each of an episode's tokens is
    a chance to slip."""
    student: tuple[Phase, ...] = (
        Phase(280, 4e-3, 1e-3, right=0.13, noise=0.03),
        Phase(160, 1e-3, 1e-4, right=0.13, noise=0.0),
    )
    teacher: tuple[Phase, ...] = (Phase(100, 1e-3, 1e-4, right=0.995, noise=0.0),)
    """After the student's."""
    versions: dict[str, str] = field(
        default_factory=lambda: {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    )

    def digest(self, seed: int) -> str:
        """Of all that the models depend on."""
        texts = [
            SYSTEM_PROMPT,
            USER_PROMPT,
            DESIGN,
            WRONG_DESIGN,
            *map(repr, (*_scripts(), *endings(script(DESIGN)))),
            *SLIPS,
            RENDERER,
            _SPLIT,
        ]
        whole = json.dumps([asdict(self), texts, seed], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TinyModels:
    """Where the models are: folders as transformers saves them, the tokenizer in each."""

    student_path: Path
    teacher_path: Path
    tokenizer_path: Path


def make_tiny(seed: int = 0, recipe: TinyRecipe | None = None, folder: Path | None = None) -> TinyModels:
    """The tiny student and teacher, from the cache or made now.

    The same seed gives the same weights on the same machine. Making them takes the better part of a minute on one core.

    Args:
        seed: For the first weights and the noise.
        recipe: How they are made.
        folder: Where they are kept; the user's cache folder if not given.
    """
    recipe = recipe or TinyRecipe()
    kept = (folder or cache_folder() / "tiny") / f"{recipe.digest(seed)}-{seed}"
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=kept.parent))
        try:
            _make(scratch, recipe, seed)
            # Whoever comes first stays; a folder that is there cannot be replaced by this.
            with contextlib.suppress(OSError):
                os.rename(scratch, kept)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return TinyModels(kept / "student", kept / "teacher", kept / "tokenizer")


def make_tokenizer(vocabulary: int) -> Any:
    """A byte-level BPE tokenizer with Qwen3's control tokens, trained on the episode, as transformers have it."""
    import transformers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_SPLIT), "isolated"), to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    renderer = get_renderer(RENDERER)
    texts = [renderer.initial_text(SYSTEM_PROMPT, USER_PROMPT), *SLIPS]
    for one in _scripts():
        texts += [*one.turns, *one.outputs]
    pieces = [piece for text in texts for piece in _without_controls(text)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(QWEN3_CONTROLS),
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=special) for text, special in QWEN3_CONTROLS])
    library: Any = transformers
    return library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )


@dataclass(frozen=True)
class TokenEpisode:
    """An episode as ids, and which of them the model says."""

    ids: list[int]
    said: list[bool]
    prompt: int
    """The length of the opening."""


def episode_ids(one: Script, renderer: Renderer, tokenizer: Any) -> TokenEpisode:
    """The whole episode as the environment's renderer puts it together."""
    ids = renderer.initial_ids(SYSTEM_PROMPT, USER_PROMPT)
    prompt, said = len(ids), [False] * len(ids)
    for number, turn in enumerate(one.turns):
        action = [*tokenizer.encode(turn, add_special_tokens=False), tokenizer.eos_token_id]
        answer = renderer.observation_ids([one.outputs[number]], action) if number < len(one.outputs) else []
        ids += action + answer
        said += [True] * len(action) + [False] * len(answer)
    return TokenEpisode(ids, said, prompt)


def _scripts() -> tuple[Script, Script]:
    return script(DESIGN), script(WRONG_DESIGN)


def _without_controls(text: str) -> list[str]:
    """The text in pieces, its control tokens left out."""
    for control, _ in QWEN3_CONTROLS:
        text = text.replace(control, "\0")
    return [piece for piece in text.split("\0") if piece]


def _make(folder: Path, recipe: TinyRecipe, seed: int) -> None:
    from ..engines.models import quiet
    from . import tiny_training

    tokenizer = make_tokenizer(recipe.vocabulary)
    tokenizer.save_pretrained(folder / "tokenizer")
    renderer = get_renderer(RENDERER, tokenizer)
    right, wrong = _scripts()
    pairs = [
        (episode_ids(one, renderer, tokenizer), episode_ids(other, renderer, tokenizer))
        for one, other in zip((right, *endings(right)), (wrong, *endings(wrong)), strict=True)
    ]
    for name, model in tiny_training.train_pair(recipe, tokenizer, pairs, seed):
        with quiet():
            model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
