"""A quick measurement of the shipped models without containers: the sampled design's text against the right one."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..problems.families.family import LAYOUTS, Family, Layout, Parameters, Split
from ..prompts import with_reference
from ..renderers import Renderer
from . import family_mix
from .family_episode import SYSTEM_PROMPT, call, write


@dataclass(frozen=True)
class Check:
    """Counts of sampled designs."""

    members: int
    right: int
    """Equal to the reference solution."""
    well_formed: int
    """Equal to the reference solution or to a habitual design."""
    slips: tuple[tuple[str, str], ...]
    """Some designs that are neither, each with the reference solution."""

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
    temperature: float = 1.0,
    layouts: Collection[Layout] = LAYOUTS,
) -> Check:
    """Sample a design for each of some members, and compare it.

    Args:
        model: A model of transformers.
        tokenizer: Its tokenizer.
        renderer: Its dialect, with that tokenizer.
        family: The family of problems.
        split: Where the members are drawn from.
        members: How many.
        seed: For the members and for sampling.
        reference: ``""``, or what the prompt has: ``own`` reference solutions, or those of ``another`` problem.
        temperature: For sampling.
        layouts: Layouts of the specifications.
    """
    rng = random.Random(f"{seed} {split} check")
    endless = (family.draw(rng, split) for _ in itertools.count())
    drawn = list(itertools.islice((one for one in endless if one.layout in layouts), members))
    prompts = []
    for number, one in enumerate(drawn):
        shown = drawn[number - 1] if reference == "another" else one
        specification = family.specification(one)
        begin = family_mix.start(family, specification)
        user = with_reference(begin.user, family.design(shown)) if reference else begin.user
        read = [*tokenizer.encode(call(begin.read), add_special_tokens=False), tokenizer.eos_token_id]
        start = renderer.initial_ids(SYSTEM_PROMPT, user) + read
        prompts.append(start + renderer.observation_ids([specification], read))
    texts = sample(model, tokenizer, prompts, seed, temperature)
    slips = []
    right = formed = 0
    for one, text in zip(drawn, texts, strict=True):
        wanted = call(write(family.design(one)))
        if text == wanted:
            right, formed = right + 1, formed + 1
        elif text in _habitual(family, one):
            formed += 1
        else:
            slips.append((_readable(text), _readable(wanted)))
    return Check(members, right, formed, tuple(slips[:20]))


def sample(
    model: Any, tokenizer: Any, prompts: Sequence[list[int]], seed: int, temperature: float, rows: int = 64
) -> list[str]:
    """A turn after each prompt, without its stop token."""
    texts = []
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        for begin in range(0, len(prompts), rows):
            some = prompts[begin : begin + rows]
            width = max(map(len, some))
            ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(one)) + one for one in some])
            mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in some])
            found = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=temperature,
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


def _habitual(family: Family, one: Parameters) -> set[str]:
    habits = family.habits_of(one)
    chosen = itertools.chain.from_iterable(itertools.combinations(habits, n) for n in range(1, len(habits) + 1))
    return {call(write(family.design(one, some))) for some in chosen}


def _readable(turn: str) -> str:
    try:
        return str(json.loads(turn.split("\n")[1])["arguments"]["command"])
    except (ValueError, IndexError, KeyError):
        return turn
