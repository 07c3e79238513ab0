"""Further lessons of the shipped models, in episodes of another form, whose fixed texts become tokens."""

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
"""Those that the tokens are chosen from."""


class Lessons(Protocol):
    """How a model is taught."""

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
    """Train shipped models, and save what they become in a folder, in the format of transformers, in bfloat16.

    Args:
        folder: Where the models are saved.
        log: Gets a line of progress every 25 steps.
        recipe: The models by the names of the shipped ones that they come from, ``student`` and ``teacher``.
        words: For a model's tokenizer, the texts that become tokens, as for `widened`.
        episodes: For the new tokenizer, the episodes of the lessons.
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
    """The texts that are in one of 20 episodes and need several tokens."""
    least = episodes // 20
    return [
        text
        for text, often in count.items()
        if often >= least and len(tokenizer.encode(text, add_special_tokens=False)) > 1
    ]
