"""Makes the shipped models from their recipe, and measures models without sandboxes."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from research import mixture
from research.episodes import Encoder, call, write
from research.mixture import Mix
from research.recipe import FamilyRecipe, Part
from research.tokenizer import make_tokenizer
from research.training import Trainer, every_25_steps, new_model, reproducible
from rtl_agent_gym.demo.founding import FOUNDING
from rtl_agent_gym.demo.shipped import RENDERER, SYSTEM_PROMPT
from rtl_agent_gym.engines.models import without_progress_bars
from rtl_agent_gym.prompts import with_reference
from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.sources.families import FAMILIES as GENERATED
from rtl_agent_gym.sources.families.family import LAYOUTS, Family, Layout, Parameters, Split
from rtl_agent_gym.sources.families.looking import LookingFamily

FAMILIES = {**GENERATED, FOUNDING.name: FOUNDING}


def make(recipe: FamilyRecipe, folder: Path, log: Callable[[str], None], members: int = 0) -> None:
    """Make the models ``teacher`` and ``student`` in a folder, in the format of transformers, in bfloat16.

    Also writes ``recipe.json``: the recipe, and the SHA-256 of each file and of the families' texts. Everything runs in
    one thread, so that the weights are reproducible.

    Args:
        recipe: How the models are made.
        folder: Where they are saved.
        log: Receives occasional lines of progress.
        members: Number of held-out members of each family on which a finished model is measured; 0: not measured.
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
    episodes = [mixture.draw(rng.choice(families), mix, rng) for _ in range(recipe.tokenizer_episodes)]
    return make_tokenizer(families, episodes, recipe.merges)


def _train(trainer: Trainer, part: Part, encoder: Encoder, log: Callable[[str], None], name: str) -> Trainer:
    if part.rounded:
        trainer.model.to(torch.bfloat16).float()
    if not part.keep_optimizer:
        trainer = Trainer(trainer.model)
    families = [FAMILIES[name] for name in part.families]
    episodes = mixture.stream(families, part.mix, encoder, part.seed + 1000)
    trainer.run(part.phase, episodes, every_25_steps(log, name))
    return trainer


def sharpened(model: Any, factor: float) -> Any:
    """A copy in bfloat16 whose logits are multiplied by `factor`, as if the temperature were divided by it."""
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
    """A digest of the families' specifications, documents and designs: models know only those of their training."""
    text = ""
    for name in names:
        family, rng = FAMILIES[name], random.Random(0)
        for member in (family.draw(rng, "train") for _ in range(200)):
            documents = family.documents(member) if isinstance(family, LookingFamily) else {}
            text += family.specification(member) + "".join((family.design(member) | documents).values())
    return hashlib.sha256(text.encode()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each of the models' files, by path."""
    files = sorted(path for name in ("student", "teacher") for path in (folder / name).glob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@dataclass(frozen=True)
class Check:
    """Results of sampled designs: counts."""

    members: int
    right: int
    """Designs that equal the reference solution."""
    well_formed: int
    """Designs that equal the reference solution or a design with habits."""

    def __str__(self) -> str:
        return (
            f"{self.right}/{self.members} right ({self.right / self.members:.1%}), "
            f"{self.well_formed / self.members:.1%} well-formed"
        )


def check(
    model: Any,
    tokenizer: Any,
    renderer: Renderer,
    family: Family,
    split: Split,
    members: int,
    seed: int,
    *,
    reference: str = "",
    layouts: Collection[Layout] = LAYOUTS,
) -> Check:
    """Sample a design for each of some members, and compare it with the reference solution.

    Args:
        model: A model of transformers.
        tokenizer: Its tokenizer.
        renderer: Its dialect, with that tokenizer.
        family: The family of problems.
        split: Where the members are drawn from.
        members: Number of members.
        seed: Seed for drawing members and for sampling.
        reference: Which reference solution the prompt contains: none (``""``), the member's ``own``, or ``another``'s.
        layouts: Layouts of the specifications.
    """
    drawn = draw_members(family, split, members, seed, layouts)
    prompts = [
        prompt_of(
            tokenizer, renderer, family, member, {"": None, "own": member, "another": drawn[number - 1]}[reference]
        )
        for number, member in enumerate(drawn)
    ]
    pairs = list(zip(drawn, sample(model, tokenizer, prompts, seed), strict=True))
    right = sum(text == call(write(family.design(member))) for member, text in pairs)
    return Check(members, right, sum(text in _well_formed(family, member) for member, text in pairs))


def draw_members(
    family: Family, split: Split, members: int, seed: int, layouts: Collection[Layout] = LAYOUTS
) -> list[Parameters]:
    """Random members of a split with these layouts."""
    rng = random.Random(f"{seed} {split} check")
    endless = (family.draw(rng, split) for _ in itertools.count())
    return list(itertools.islice((member for member in endless if member.layout in layouts), members))


def prompt_of(
    tokenizer: Any, renderer: Renderer, family: Family, member: Parameters, shown: Parameters | None = None
) -> list[int]:
    """The token ids before the turn that writes the design, after the specification has been read.

    Args:
        tokenizer: The model's tokenizer.
        renderer: Its dialect, with that tokenizer.
        family: The family of problems.
        member: The problem.
        shown: The member whose reference solution is in the prompt; None for none.
    """
    specification = family.specification(member)
    begin = mixture.start(family, specification)
    user = with_reference(begin.user, family.design(shown)) if shown is not None else begin.user
    read = [*tokenizer.encode(call(begin.read), add_special_tokens=False), tokenizer.eos_token_id]
    start = renderer.initial_ids(SYSTEM_PROMPT, user) + read
    return start + renderer.observation_ids([specification], read)


def sample(model: Any, tokenizer: Any, prompts: Sequence[list[int]], seed: int) -> list[str]:
    """Sample a turn after each prompt, without its stop token."""
    texts, rows = [], 64
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        for begin in range(0, len(prompts), rows):
            some = prompts[begin : begin + rows]
            width = max(map(len, some))
            ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(row)) + row for row in some])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in some])
            found = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=200,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
            for row in found[:, width:].tolist():
                end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
                texts.append(str(tokenizer.decode(row[:end])))
    return texts


def _well_formed(family: Family, one: Parameters) -> set[str]:
    habits = family.habits_of(one)
    chosen = itertools.chain.from_iterable(itertools.combinations(habits, n) for n in range(len(habits) + 1))
    return {call(write(family.design(one, some))) for some in chosen}
