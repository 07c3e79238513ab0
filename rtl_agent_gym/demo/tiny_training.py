"""Trains the tiny student and teacher; see `tiny`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..renderers import Renderer
from .tiny_episode import SYSTEM_PROMPT, USER_PROMPT, Script
from .tiny_recipe import Phase, TinyRecipe


@dataclass(frozen=True)
class TokenEpisode:
    """An episode as ids."""

    ids: list[int]
    sampled: list[bool]
    """Whether the model samples each id."""
    prompt: int
    """Length of the prompt."""


Pair = tuple[TokenEpisode, TokenEpisode]
"""The right and the wrong episode."""


def episode_ids(one: Script, renderer: Renderer, tokenizer: Any) -> TokenEpisode:
    """The episode as the environment's renderer builds it."""
    ids = renderer.initial_ids(SYSTEM_PROMPT, USER_PROMPT)
    prompt, sampled = len(ids), [False] * len(ids)
    for number, turn in enumerate(one.turns):
        action = [*tokenizer.encode(turn, add_special_tokens=False), tokenizer.eos_token_id]
        answer = renderer.observation_ids([one.outputs[number]], action) if number < len(one.outputs) else []
        ids += action + answer
        sampled += [True] * len(action) + [False] * len(answer)
    return TokenEpisode(ids, sampled, prompt)


def train_pair(recipe: TinyRecipe, tokenizer: Any, pairs: Sequence[Pair], seed: int) -> Iterator[tuple[str, Any]]:
    """Yield ``("student", model)``, then ``("teacher", model)``, the same model trained further; save each at once.

    It runs in one thread, so that the weights are reproducible.

    Args:
        recipe: The hyperparameters.
        tokenizer: The tokenizer.
        pairs: First the normal episodes, then variants in which something goes wrong.
        seed: For the initial weights and the noise.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = new_model(recipe, tokenizer)
            noise = torch.Generator().manual_seed(seed)
            for name, phases in (("student", recipe.student), ("teacher", recipe.teacher)):
                for phase in phases:
                    train(model, recipe, phase, pairs, noise)
                yield name, model
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def new_model(recipe: TinyRecipe, tokenizer: Any) -> Any:
    """A Qwen3 model with random weights."""
    import transformers

    library: Any = transformers  # its models are untyped
    config = library.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=3 * recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads // 2,
        head_dim=recipe.hidden // recipe.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return library.Qwen3ForCausalLM(config)


def train(model: Any, recipe: TinyRecipe, phase: Phase, pairs: Sequence[Pair], generator: torch.Generator) -> None:
    """Train the model for one phase.

    Each phase has a new optimizer: its averages of a noisy phase's gradients would make the steps of a phase without
    noise too small, and the model would not become confident.
    """
    optimizer = torch.optim.Adam(model.parameters())
    # A probability p at temperature 1 is proportional to its t-th root at temperature t.
    share, rest = phase.right ** (1 / recipe.temperature), (1 - phase.right) ** (1 / recipe.temperature)
    batches = [_Batch(pair, share / (share + rest), recipe.batch) for pair in pairs]
    model.train()
    for step in range(phase.steps):
        part = step / max(phase.steps - 1, 1)
        for group in optimizer.param_groups:
            group["lr"] = phase.rate + part * (phase.rate_end - phase.rate)
        odd = step % 2 and len(batches) > 1
        batch = batches[1 + step // 2 % (len(batches) - 1)] if odd else batches[0]
        inputs = batch.noisy_ids(phase.noise, model.config.vocab_size, generator)[:, :-1]
        logits = model(input_ids=inputs, use_cache=False).logits / recipe.temperature
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.ids[:, 1:], reduction="none")
        optimizer.zero_grad(set_to_none=True)
        (losses * batch.weights).sum().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


class _Batch:
    """The right and the wrong episode, alternately. The loss is on the sampled tokens.

    Both have the same weight, except for the first token in which they differ: there the right one has the weight
    `share` and the wrong one the rest. So the model learns how often to choose which, and to be consistent afterwards.
    """

    def __init__(self, pair: Pair, share: float, size: int) -> None:
        right, wrong = pair
        rows = [right, wrong] * (size // 2)
        width = max(len(row.ids) for row in rows)
        self.ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows])
        sampled = torch.tensor([row.sampled + [False] * (width - len(row.sampled)) for row in rows])
        self.weights = sampled[:, 1:].float()
        differ = next(place for place, both in enumerate(zip(right.ids, wrong.ids, strict=False)) if len({*both}) > 1)
        self.weights[:, differ - 1] *= torch.tensor([2 * share, 2 * (1 - share)] * (size // 2))
        self.weights /= self.weights.sum()
        places = torch.arange(width)[None, :]
        ends = torch.tensor([[len(row.ids)] for row in rows])
        self._after_prompt = (places >= right.prompt) & (places < ends)

    def noisy_ids(self, part: float, vocabulary: int, generator: torch.Generator) -> Tensor:
        """The ids, with a fraction of those after the prompt replaced by random ones."""
        hit = (torch.rand(self.ids.shape, generator=generator) < part) & self._after_prompt
        random = torch.randint(vocabulary, self.ids.shape, generator=generator)
        return torch.where(hit, random, self.ids)
