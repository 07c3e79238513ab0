"""Makes the shipped models by their recipe."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..engines.models import without_progress_bars
from ..problems.families import FAMILIES as GENERATED
from ..renderers import get_renderer
from . import family_mix, family_tokenizer
from .family_check import check
from .family_episode import RENDERER, Encoder
from .family_mix import Mix
from .family_recipe import FamilyRecipe, Part
from .family_training import Trainer, new_model, reproducible
from .founding import FOUNDING

FAMILIES = {**GENERATED, FOUNDING.name: FOUNDING}


def make(recipe: FamilyRecipe, folder: Path, log: Callable[[str], None], members: int = 0) -> None:
    """Make the models ``teacher`` and ``student`` in a folder, in the format of transformers, in bfloat16.

    Also writes ``recipe.json``: the recipe, and the SHA-256 of each file and of the families' texts. It runs in one
    thread, so that the weights are reproducible.

    Args:
        recipe: How they are made.
        folder: Where they are saved.
        log: Gets a line of progress now and then.
        members: Held-out members of each family on which a model is measured at its end.
    """
    with reproducible():
        tokenizer = new_tokenizer(recipe)
        trainer = Trainer(new_model(recipe.shape, tokenizer, recipe.seed))
        encoder = Encoder(get_renderer(RENDERER, tokenizer), tokenizer)
        for name, parts in (("teacher", recipe.teacher), ("student", recipe.student)):
            for number, part in enumerate(parts):
                trainer = _train(trainer, part, encoder, log, f"{name} {number}")
            model = sharpened(trainer.model, recipe.sharpened)
            for family in sorted({family for part in parts for family in part.families}) if members else ():
                found = check(
                    model, tokenizer, encoder.renderer, FAMILIES[family], "combinations", members, recipe.seed
                )
                log(f"{name}: {family}, combinations: {found}")
            save(model, tokenizer, folder / name)
        write_record(recipe, folder)


def write_record(recipe: FamilyRecipe, folder: Path) -> None:
    """Write ``recipe.json`` beside the models."""
    record = asdict(recipe) | {
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        "families": families_digest(recipe.trained_families),
        "files": digests(folder),
    }
    (folder / "recipe.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def new_tokenizer(recipe: FamilyRecipe) -> Any:
    """The recipe's tokenizer."""
    families = [FAMILIES[name] for name in recipe.tokenizer_families]
    rng, mix = random.Random(0), Mix(follow=0.6, mend=0.5)
    episodes = [family_mix.draw(rng.choice(families), mix, rng) for _ in range(recipe.tokenizer_episodes)]
    return family_tokenizer.make_tokenizer(families, episodes, recipe.merges, 0)


def _train(trainer: Trainer, part: Part, encoder: Encoder, log: Callable[[str], None], name: str) -> Trainer:
    if part.rounded:
        trainer.model.to(torch.bfloat16).float()
    if not part.keep_optimizer:
        trainer = Trainer(trainer.model)
    families = [FAMILIES[name] for name in part.families]
    losses: list[float] = []

    def note(step: int, loss: float, seconds: float) -> None:
        losses.append(loss)
        if (step + 1) % 25 == 0:
            log(f"{name}: step {step + 1}, {sum(losses) / len(losses):.4f} nats a token, {seconds:.0f} CPU seconds")
            losses.clear()

    trainer.run(part.phase, family_mix.stream(families, part.mix, encoder, part.seed + 1000), note)
    return trainer


def sharpened(model: Any, factor: float) -> Any:
    """A copy in bfloat16 whose logits are multiplied by a factor, as if its temperature were divided by it."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.model.norm.weight.mul_(factor)
    return model.to(torch.bfloat16)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a model in the format of transformers."""
    with without_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def families_digest(names: Sequence[str]) -> str:
    """A digest of specifications and designs of some families. Models only know the texts they were trained on."""
    text = ""
    for name in names:
        family, rng = FAMILIES[name], random.Random(0)
        for member in (family.draw(rng, "train") for _ in range(200)):
            text += family.specification(member) + "".join(family.design(member).values())
    return hashlib.sha256(text.encode()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of the models, by path."""
    files = sorted(path for path in folder.glob("*/*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
