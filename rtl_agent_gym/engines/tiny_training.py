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
        rows = [(right, wrong)[row % 2] for row in range(batch)]
        self._is_right = torch.tensor([float(row % 2 == 0) for row in range(batch)])
        width = max(len(row.ids) for row in rows)
        self._ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows])
        said = torch.tensor([row.said + [False] * (width - len(row.said)) for row in rows])
        self._said = said[:, 1:].float()
        places = torch.arange(width)[None, :]
        ends = torch.tensor([[len(row.ids)] for row in rows])
        self._open_to_noise = (places >= right.prompt) & (places < ends)
        self.restart()

    def restart(self) -> None:
        """Forget the optimizer's past."""
        self._optimizer = torch.optim.Adam(self._model.parameters())

    def train(self, phase: Phase) -> None:
        """Go through a phase."""
        weights = self._said * (self._is_right * phase.right + (1 - self._is_right) * (1 - phase.right))[:, None]
        weights /= weights.sum()
        self._model.train()
        for step in range(phase.steps):
            part = step / max(phase.steps - 1, 1)
            for group in self._optimizer.param_groups:
                group["lr"] = phase.rate + part * (phase.rate_end - phase.rate)
            logits = self._model(input_ids=self._noisy(phase.noise)[:, :-1], use_cache=False).logits
            losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), self._ids[:, 1:], reduction="none")
            loss = (losses * weights).sum()
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
        self._model.eval()

    def _noisy(self, part: float) -> Tensor:
        shape = self._ids.shape
        hit = (torch.rand(shape, generator=self._generator) < part) & self._open_to_noise
        random = torch.randint(self._vocabulary, shape, generator=self._generator)
        return torch.where(hit, random, self._ids)
