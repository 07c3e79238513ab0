"""Further lessons of a shipped model, in episodes of another form, whose fixed texts become tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from research.episodes import TokenEpisode
from research.making import save, sharpened
from research.recipe import RECIPE, Phase
from research.tokenizer import widened, with_words
from research.training import Trainer, reproducible
from rtl_agent_gym.demo.shipped import shipped


def teach(
    name: str,
    words: Callable[[Any], Mapping[str, str]],
    episodes: Callable[[Any], Iterator[TokenEpisode]],
    phase: Phase,
    folder: Path,
    log: Callable[[str], None],
) -> None:
    """Train a shipped model, and save what it becomes in the format of transformers, in bfloat16.

    Args:
        name: ``student`` or ``teacher``.
        words: For the model's tokenizer, the texts that become tokens, as for `widened`.
        episodes: For the new tokenizer, the episodes of the lessons.
        phase: Steps and rates.
        folder: Where the model is saved.
        log: Gets a line of progress every 25 steps.
    """
    import transformers

    library: Any = transformers
    with reproducible():
        plain = library.AutoTokenizer.from_pretrained(shipped(name))
        chosen = words(plain)
        tokenizer = with_words(plain, list(chosen))
        model = library.AutoModelForCausalLM.from_pretrained(shipped(name)).float()
        with torch.no_grad():
            model.model.norm.weight.div_(RECIPE.sharpened)
        trainer = Trainer(widened(model, plain, tokenizer, chosen))
        losses: list[float] = []

        def note(step: int, loss: float, seconds: float) -> None:
            losses.append(loss)
            if (step + 1) % 25 == 0:
                log(f"{name}: step {step + 1}, {sum(losses) / len(losses):.4f} nats a token, {seconds:.0f} s")
                losses.clear()

        trainer.run(phase, episodes(tokenizer), note)
        save(sharpened(trainer.model, RECIPE.sharpened), tokenizer, folder)
