"""Further training of the shipped models on episodes of another form, whose recurring texts become tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from research.episodes import TokenEpisode
from research.making import save, sharpened
from research.recipe import RECIPE, Phase
from research.tokenizer import widened, with_words
from research.training import Trainer, every_25_steps, reproducible
from rtl_agent_gym.demo.shipped import shipped

EPISODES = 300
"""The number of episodes from which the new tokens are chosen."""


class Lessons(Protocol):
    """How a model is trained further."""

    @property
    def phase(self) -> Phase:
        """Steps and rates."""


LessonsT = TypeVar("LessonsT", bound=Lessons)


def teach(
    folder: Path,
    log: Callable[[str], None],
    recipe: Mapping[str, LessonsT],
    words: Callable[[Any], Mapping[str, str]],
    episodes: Callable[[Any, LessonsT], Iterator[TokenEpisode]],
) -> None:
    """Train shipped models further, and save the results in a folder, in the format of transformers, in bfloat16.

    Args:
        folder: Where the models are saved.
        log: Gets a line of progress every 25 steps.
        recipe: By name of the shipped model to start from (``student`` or ``teacher``), how it is trained.
        words: Returns, for a model's tokenizer, the texts that become tokens, as `like` of `widened`.
        episodes: Returns the episodes of the training, encoded with the new tokenizer.
    """
    import transformers

    library: Any = transformers
    with reproducible():
        for name, lessons in recipe.items():
            plain = library.AutoTokenizer.from_pretrained(shipped(name))
            chosen = words(plain)
            tokenizer = with_words(plain, list(chosen))
            model = library.AutoModelForCausalLM.from_pretrained(shipped(name)).float()
            with torch.no_grad():
                model.model.norm.weight.div_(RECIPE.sharpened)
            trainer = Trainer(widened(model, plain, tokenizer, chosen))
            trainer.run(lessons.phase, episodes(tokenizer, lessons), every_25_steps(log, name))
            save(sharpened(trainer.model, RECIPE.sharpened), tokenizer, folder / name)


def frequent(count: Counter[str], tokenizer: Any, episodes: int) -> list[str]:
    """The texts that occur at least once per 20 episodes and that the tokenizer splits into several tokens."""
    least = episodes // 20
    return [
        text
        for text, often in count.items()
        if often >= least and len(tokenizer.encode(text, add_special_tokens=False)) > 1
    ]
