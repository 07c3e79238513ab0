"""Training of the shipped models: Muon for the matrices, embeddings included, Adam for the norms.

With Adam for the embeddings, learning to copy from the specification takes many times as long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from research.episodes import TokenEpisode
from research.recipe import Phase, Shape


@contextlib.contextmanager
def reproducible() -> Iterator[None]:
    """Compute in one thread, so that weights do not depend on the number of cores, and flush denormals to zero."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def new_model(shape: Shape, tokenizer: Any, seed: int) -> Any:
    """A Qwen3 model with random weights."""
    import transformers

    library: Any = transformers  # its models are untyped
    config = library.Qwen3Config(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = library.Qwen3ForCausalLM(config)
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            torch.nn.init.constant_(norm.weight, shape.sharpness)
    return model


def every_25_steps(log: Callable[[str], None], name: str) -> Callable[[int, float, float], None]:
    """A function for `Trainer.run` that logs the mean loss of every 25 steps."""
    losses: list[float] = []

    def note(step: int, loss: float, seconds: float) -> None:
        losses.append(loss)
        if (step + 1) % 25 == 0:
            log(f"{name}: step {step + 1}, {sum(losses) / len(losses):.4f} nats a token, {seconds:.0f} CPU seconds")
            losses.clear()

    return note


class Trainer:
    """Trains one model in consecutive phases.

    Args:
        model: The model, on the device where it is trained.
        rows: Number of episodes per forward and backward pass.
    """

    def __init__(self, model: Any, rows: int = 8) -> None:
        self.model, self.rows = model, rows
        matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2]
        chosen = {id(weight) for weight in matrices}
        rest = [weight for weight in model.parameters() if id(weight) not in chosen]
        self.muon = torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.0, momentum=0.95)
        self.adam = torch.optim.Adam(rest, lr=1e-3, betas=(0.9, 0.95))

    def run(
        self, phase: Phase, episodes: Iterator[TokenEpisode], log: Callable[[int, float, float], None] | None = None
    ) -> None:
        """Train for one phase; `log` gets the step, its mean loss in nats per token, and the CPU seconds so far."""
        self.model.train()
        begun = time.process_time()
        for step in range(phase.steps):
            loss = self.take(phase, step, [next(episodes) for _ in range(phase.batch)])
            if log is not None:
                log(step, loss, time.process_time() - begun)
        self.model.eval()

    def take(self, phase: Phase, step: int, episodes: Sequence[TokenEpisode]) -> float:
        """Take one step of a phase, at its rates; returns the mean loss in nats per token."""
        part = step / max(phase.steps - 1, 1)
        rate = (phase.rate + part * (phase.rate_end - phase.rate)) * min(1.0, (step + 1) / phase.warmup)
        self.muon.param_groups[0]["lr"], self.adam.param_groups[0]["lr"] = rate, rate * phase.adam
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=phase.bfloat16):
            return self.step(episodes)

    def state(self) -> dict[str, Any]:
        """The weights and the optimizers' averages."""
        return {name: getattr(self, name).state_dict() for name in ("model", "muon", "adam")}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        for name, saved in state.items():
            getattr(self, name).load_state_dict(saved)

    def step(self, episodes: Sequence[TokenEpisode]) -> float:
        """Take one optimizer step; returns the mean loss in nats per trained token."""
        rows = sorted(episodes, key=lambda episode: len(episode.ids))
        count = sum(sum(episode.learned) for episode in rows)
        self.model.zero_grad(set_to_none=True)
        total = 0.0
        for begin in range(0, len(rows), self.rows):
            loss = summed_loss(self.model, rows[begin : begin + self.rows]) / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step()  # type: ignore[no-untyped-call]
        self.adam.step()
        return total


def summed_loss(model: Any, rows: Sequence[TokenEpisode]) -> torch.Tensor:
    """The sum of the losses of the tokens that are trained on."""
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows], device=model.device)
    flags = [row.learned[1:] + [False] * (width - len(row.ids)) for row in rows]
    learned = torch.tensor(flags, device=model.device)
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[learned])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][learned], reduction="sum")
