"""How the tiny student and teacher are trained; see `tiny`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .tiny import Phase, TinyRecipe, TokenEpisode


def train_pair(
    recipe: TinyRecipe, tokenizer: Any, right: TokenEpisode, wrong: TokenEpisode, seed: int
) -> Iterator[tuple[str, Any]]:
    """First ``("student", model)``, then ``("teacher", the same model trained on)``; save the one before the other.

    It works in one thread, so that the sums, and with them the weights, come out the same whatever else runs.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = new_model(recipe, tokenizer)
            drill = Drill(model, recipe.batch, right, wrong, len(tokenizer), seed)
            for name, phases in (("student", recipe.student), ("teacher", recipe.teacher)):
                drill.restart()
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
    """Trains a model on two episodes, with noise in what it reads."""

    def __init__(
        self, model: Any, batch: int, right: TokenEpisode, wrong: TokenEpisode, vocabulary: int, seed: int
    ) -> None:
        self._model, self._vocabulary = model, vocabulary
        self._generator = torch.Generator().manual_seed(seed)
        self._batch, self._prompt = batch, right.prompt
        self._right, self._wrong = right, wrong
        self.restart()

    def restart(self) -> None:
        """Forget the optimizer's past."""
        self._optimizer = torch.optim.Adam(self._model.parameters())

    def train(self, phase: Phase) -> None:
        """Go through a phase."""
        wrong_part = (1 - phase.right) * phase.wrong_every
        mixed = _Rows([(self._right, 1 - wrong_part), (self._wrong, wrong_part)], self._batch, self._prompt)
        right = _Rows([(self._right, 1.0)], self._batch, self._prompt)
        self._model.train()
        for step in range(phase.steps):
            part = step / max(phase.steps - 1, 1)
            for group in self._optimizer.param_groups:
                group["lr"] = phase.rate + part * (phase.rate_end - phase.rate)
            self._step(right if step % phase.wrong_every else mixed, phase.noise)
        self._model.eval()

    def _step(self, rows: _Rows, noise: float) -> None:
        logits = self._model(input_ids=self._noisy(rows, noise)[:, :-1], use_cache=False).logits
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
    """A batch: the episodes by turns, each with its share of the loss, which falls on what the model says."""

    def __init__(self, shares: list[tuple[TokenEpisode, float]], batch: int, prompt: int) -> None:
        rows = [shares[row % len(shares)] for row in range(batch)]
        width = max(len(row.ids) for row, _ in rows)
        self.ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row, _ in rows])
        said = torch.tensor([row.said + [False] * (width - len(row.said)) for row, _ in rows])
        self.weights = said[:, 1:] * torch.tensor([[share] for _, share in rows])
        self.weights /= self.weights.sum()
        places = torch.arange(width)[None, :]
        ends = torch.tensor([[len(row.ids)] for row, _ in rows])
        self.open_to_noise = (places >= prompt) & (places < ends)
