"""How the tiny student and teacher are trained; see `tiny`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .tiny import Phase, TinyRecipe, TokenEpisode


def train_pair(
    recipe: TinyRecipe, tokenizer: Any, pairs: Sequence[tuple[TokenEpisode, TokenEpisode]], seed: int
) -> Iterator[tuple[str, Any]]:
    """First ``("student", model)``, then ``("teacher", the same model trained on)``; save the one before the other.

    The first pair is the right and the wrong episode as they should go, and the others are the two as they can go.

    It works in one thread, so that the sums, and with them the weights, come out the same whatever else runs.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = new_model(recipe, tokenizer)
            drill = Drill(model, recipe, pairs, len(tokenizer), seed)
            for name, phases in (("student", recipe.student), ("teacher", recipe.teacher)):
                for phase in phases:
                    drill.train(phase)
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


class Drill:
    """Trains a model on two episodes, with noise in what it reads, for use at a lower temperature."""

    def __init__(
        self,
        model: Any,
        recipe: TinyRecipe,
        pairs: Sequence[tuple[TokenEpisode, TokenEpisode]],
        vocabulary: int,
        seed: int,
    ) -> None:
        self._model, self._vocabulary = model, vocabulary
        self._generator = torch.Generator().manual_seed(seed)
        self._batch, self._temperature, self._prompt = recipe.batch, recipe.temperature, pairs[0][0].prompt
        self._pairs = pairs

    def train(self, phase: Phase) -> None:
        """Go through a phase.

        The optimizer starts afresh: what it remembers of a noisy phase's gradients would keep the steps of a clean one
        too small to make the model sure of itself, and every token it is unsure of is a chance to slip.
        """
        self._optimizer = torch.optim.Adam(self._model.parameters())
        # What is p at temperature 1 is proportional to the t-th root of p at temperature t.
        share, rest = phase.right ** (1 / self._temperature), (1 - phase.right) ** (1 / self._temperature)
        first, *others = (
            _Rows(*pair, share=share / (share + rest), batch=self._batch, prompt=self._prompt) for pair in self._pairs
        )
        self._model.train()
        for step in range(phase.steps):
            part = step / max(phase.steps - 1, 1)
            for group in self._optimizer.param_groups:
                group["lr"] = phase.rate + part * (phase.rate_end - phase.rate)
            self._step(first if step % 2 == 0 or not others else others[step // 2 % len(others)], phase.noise)
        self._model.eval()

    def _step(self, rows: _Rows, noise: float) -> None:
        logits = self._model(input_ids=self._noisy(rows, noise)[:, :-1], use_cache=False).logits / self._temperature
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows.ids[:, 1:], reduction="none")
        loss = (losses * rows.weights).sum()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()

    def _noisy(self, rows: _Rows, part: float) -> Tensor:
        shape = rows.ids.shape
        hit = (torch.rand(shape, generator=self._generator) < part) & rows.open_to_noise
        random = torch.randint(self._vocabulary, shape, generator=self._generator)
        return torch.where(hit, random, rows.ids)


class _Rows:
    """A batch: the right and the wrong episode by turns. The loss falls on what the model says.

    Both count the same, but for the one token at which they part: there the right one counts `right` and the wrong one
    the rest. So the model learns how likely to choose which, and to be consistent with either choice.
    """

    def __init__(self, right: TokenEpisode, wrong: TokenEpisode, share: float, batch: int, prompt: int) -> None:
        rows = [right if row % 2 == 0 else wrong for row in range(batch)]
        width = max(len(row.ids) for row in rows)
        self.ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows])
        said = torch.tensor([row.said + [False] * (width - len(row.said)) for row in rows])
        self.weights = said[:, 1:].float()
        parting = next(place for place, pair in enumerate(zip(right.ids, wrong.ids, strict=False)) if len({*pair}) > 1)
        self.weights[:, parting - 1] *= torch.tensor([2 * share if row is right else 2 * (1 - share) for row in rows])
        self.weights /= self.weights.sum()
        places = torch.arange(width)[None, :]
        ends = torch.tensor([[len(row.ids)] for row in rows])
        self.open_to_noise = (places >= prompt) & (places < ends)
