"""The recipe of a teacher and a student that spell what they write, each from different random weights.

::

    seed 0 ──► teacher: reads the files, follows them, repairs its design
    seed 1 ──► student: fewer episodes, in which it often misunderstands what it reads, depending on the context

`make` may be stopped at any time; the same call resumes it. A call with another recipe is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from research.episodes import Encoder
from research.making import digests, families_digest, save, sharpened
from research.recipe import Phase, Shape
from research.sittings import Course, Lesson
from research.spelled import Behaviour, Spelled, make_tokenizer
from research.tokenizer import widened, with_words
from research.training import Trainer, new_model, reproducible
from rtl_agent_gym.demo.shipped import RENDERER
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.files import keep_folder, replace_file
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sources.families import FAMILIES
from rtl_agent_gym.sources.families.looking import LookingFamily


@dataclass(frozen=True)
class Pupil:
    """How one model is made."""

    seed: int
    """Seed for the initial weights."""
    lessons: tuple[Lesson, ...]
    sharpened: float = 1.0
    """Factor of the final logits."""
    more: tuple[Lesson, ...] = ()
    """Further lessons, with the recipe's `words` as tokens and with new optimizers."""


@dataclass(frozen=True)
class SpelledRecipe:
    """Everything that determines the models."""

    pupils: dict[str, Pupil]
    families: tuple[str, ...] = ("accumulators",)
    shape: Shape = field(default_factory=lambda: Shape(layers=6))
    tokenizer_episodes: int = 3000
    merges: int = 330
    words: tuple[str, ...] = ("asynchronous", "synchronous")
    """Words that become tokens after the first lessons, with the embedding of the word after a space.

    Otherwise they are spelled at the start of a table cell and in parentheses, where both models often confuse them.
    """


_MISTAKEN = Behaviour(misread=0.55, blind=0.15, astray=0.6, hasty=0.7, careless=0.4, confused=0.4, restless=0.12)
"""The student's mistakes in the lessons between its first and its last."""
_STUBBORN = Behaviour(misread=0.65, blind=0.3, astray=0.7, hasty=0.75, careless=0.5, confused=0.5, restless=0.12)
"""The student's mistakes in its last lesson: more frequent, since by then it makes fewer unintended mistakes."""
_FIRST = Spelled(forced=0.0, layouts=("table",), longest=4)

RECIPE = SpelledRecipe(
    pupils={
        "teacher": Pupil(
            0,
            (
                Lesson(1, _FIRST, Phase(400, 0.02, 0.02, batch=16)),
                Lesson(2, Spelled(forced=0.1, longest=8), Phase(300, 0.02, 0.015)),
                Lesson(3, Spelled(forced=0.3), Phase(600, 0.015, 0.008)),
                Lesson(4, Spelled(forced=0.3), Phase(1800, 0.008, 0.0001)),
            ),
            sharpened=1.4,
            more=(Lesson(5, Spelled(forced=0.3, renamed=0.5), Phase(400, 0.003, 0.0001)),),
        ),
        "student": Pupil(
            1,
            (
                Lesson(11, _FIRST, Phase(400, 0.02, 0.02, batch=16)),
                Lesson(12, Spelled(_MISTAKEN, forced=0.1, longest=8), Phase(300, 0.02, 0.015)),
                Lesson(13, Spelled(_MISTAKEN, forced=0.2, reference=0.12), Phase(1800, 0.015, 0.0003), examples=500),
            ),
            more=(Lesson(14, Spelled(_STUBBORN, forced=0.2, reference=0.12, renamed=0.5), Phase(500, 0.003, 0.0001)),),
        ),
    }
)
"""The recipe.

In the first lesson, copying emerges on tables with short names, after about 200 steps. Names of all lengths and all
layouts at once take longer. The models share only the tokenizer and the architecture.
"""


def make(
    recipe: SpelledRecipe, folder: Path, log: Callable[[str], None], only: Sequence[str] = (), device: str = "cpu"
) -> None:
    """Make the models, or resume making them, in a folder, in the format of transformers.

    A sharpened model is saved in bfloat16, others as they were trained. Also writes ``recipe.json``: first the recipe
    and a digest of the families' texts, and at the end the SHA-256 of each file.

    Args:
        recipe: How the models are made.
        folder: Where they are saved, with the state of a stopped training.
        log: Receives occasional lines of progress.
        only: The names of the models to make; default: all.
        device: torch's name of the device for training. Weights are reproducible only on a CPU.

    Raises:
        UsageError: The folder has models of another recipe, or of families with other texts.
    """
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    record = _begin_record(recipe, folder / "recipe.json")
    families = [family for name in recipe.families if isinstance(family := FAMILIES[name], LookingFamily)]
    keep_folder(
        folder / "tokenizer",
        lambda new: make_tokenizer(families, recipe.tokenizer_episodes, recipe.merges).save_pretrained(new),
    )
    library: Any = transformers
    plain = library.AutoTokenizer.from_pretrained(folder / "tokenizer")
    tokenizer = with_words(plain, recipe.words)
    with reproducible():
        for name in only or recipe.pupils:
            pupil, first = recipe.pupils[name], folder / f"{name}-first"

            def teach(trainer: Trainer, tokenizer: Any, state: str, lessons: Sequence[Lesson]) -> Any:
                encoder = Encoder(get_renderer(RENDERER, tokenizer), tokenizer)
                Course(trainer, families, encoder, folder / state, log).run(lessons)
                return trainer.model

            rows = 8 if device == "cpu" else 64
            if not first.is_dir():
                model = new_model(recipe.shape, plain, pupil.seed).to(device)
                model = teach(Trainer(model, rows), plain, f"{name}.pt", pupil.lessons)
                keep_folder(first, partial(save, model.cpu().to(torch.bfloat16), plain))
            model = widened(library.AutoModelForCausalLM.from_pretrained(first).float(), plain, tokenizer)
            if pupil.more:
                model = teach(Trainer(model.to(device), rows), tokenizer, f"{name}-more.pt", pupil.more)
            model = (model if pupil.sharpened == 1 else sharpened(model, pupil.sharpened)).cpu()
            keep_folder(folder / name, partial(save, model, tokenizer))
    replace_file(folder / "recipe.json", json.dumps(record | {"files": digests(folder)}, indent=1) + "\n")


def _begin_record(recipe: SpelledRecipe, path: Path) -> dict[str, Any]:
    """The content of `path` before the models are made; the file is written if it does not exist."""
    record: dict[str, Any] = json.loads(json.dumps(asdict(recipe) | {"texts": families_digest(recipe.families)}))
    if not path.exists():
        replace_file(path, json.dumps(record, indent=1) + "\n")
    there = json.loads(path.read_text(encoding="utf-8"))
    if any(there.get(key) != value for key, value in record.items()):
        raise UsageError(f"{path.parent} has models of another recipe; choose another folder with --out")
    return record
