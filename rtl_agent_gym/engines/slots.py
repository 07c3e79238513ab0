"""The key-value cache of many sequences, one slot each, kept between the turns of a conversation.

A sequence begins at the start of its row, and each step has the same shape. Prompts are computed in chunks, which also
all have the same shape, and of a row only what was computed so is used for another prompt. So log-probabilities are
bit-identical, whatever else is sampled and whatever is cached, and a run is reproducible although its sandboxes answer
in no fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from .models import Weights

GROWTH = 256
"""Rows grow by this many tokens at a time."""
CHUNK = 64
"""Tokens of a prompt that are computed together if the sampling is steady. It divides `GROWTH`."""


class RowCache(Cache):
    """The rows, as a cache for transformers' models."""

    def __init__(self, rows: int) -> None:
        super().__init__(layers=[])
        self.rows, self.capacity = rows, 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._target: tuple[slice, Tensor, int] = (slice(0, 0), torch.empty(0), 0)

    def set_target(self, rows: slice, positions: Tensor, length: int) -> None:
        """Set where the next forward pass writes, and how much of each row it reads.

        Args:
            rows: The rows of its batch.
            positions: Positions of its tokens; rows × tokens.
            length: Number of tokens of each row that it reads.
        """
        self._target = (rows, positions, length)

    def reserve(self, length: int) -> None:
        """Ensure a capacity of at least this many tokens in every row."""
        if length <= self.capacity:
            return
        self.capacity = -(-length // GROWTH) * GROWTH
        for store in (self._keys, self._values):
            for layer, old in store.items():
                store[layer] = self._zeros(old)
                store[layer][:, :, : old.shape[2]] = old

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first tokens of one row to another."""
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[target, :, :length] = tensor[source, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each attention layer: store its new keys and values, and return all of them."""
        rows, positions, length = self._target
        if layer_idx not in self._keys:
            self._keys[layer_idx] = self._zeros(key_states)
            self._values[layer_idx] = self._zeros(value_states)
        index = torch.arange(rows.start, rows.stop, device=positions.device).unsqueeze(1)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[index, :, positions] = key_states.transpose(1, 2)
        values[index, :, positions] = value_states.transpose(1, 2)
        return keys[rows, :, :length], values[rows, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens before this pass; called by some models."""
        return int(self._target[1].min())

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.rows, like.shape[1], self.capacity, like.shape[3])


@dataclass
class Slot:
    """One row of the cache, and the tokens that it holds."""

    row: int
    weights: int = -1
    """`Weights.key` of the model that computed the keys and values."""
    tokens: list[int] = field(default_factory=list)
    prefilled: int = 0
    """How many of them, from the first, were computed as part of a prompt; the others one by one."""
    busy: bool = False
    used: int = 0
    """When it was last acquired; the least recently used slot is replaced."""

    def shared(self, weights: int, prompt: Sequence[int]) -> int:
        """Length of the prefix shared with a prompt, without the prompt's last token, which must always be computed."""
        if self.weights != weights:
            return 0
        length = 0
        for mine, wanted in zip(self.tokens, prompt[:-1], strict=False):
            if mine != wanted:
                break
            length += 1
        return length


class SlotTable:
    """The slots of one base model and of all weights trained from it.

    Args:
        weights: Any of these weights, for the shape.
        rows: Maximum number of sequences sampled at once.
        steady: Always compute the same shapes, so that a sequence's log-probabilities depend on its tokens alone.
    """

    def __init__(self, weights: Weights, rows: int, steady: bool) -> None:
        self._cache = RowCache(rows)
        self._slots = [Slot(row) for row in range(rows)]
        self._steady = steady
        self._clock = 0
        self._device = weights.base.device
        self._layer_types = set(getattr(weights.module.config, "layer_types", None) or ())
        self._window = _window(weights.module.config)

    def acquire(self, weights: Weights, prompt: Sequence[int]) -> Slot | None:
        """A free slot with the longest prefix of the prompt that any slot holds; None if all slots are busy."""
        free = [slot for slot in self._slots if not slot.busy]
        if not free:
            return None
        shared = {slot.row: slot.shared(weights.key, prompt) for slot in self._slots}
        best = max(self._slots, key=lambda slot: (shared[slot.row], -slot.row))
        length = shared[best.row]
        continues = not best.busy and length == len(best.tokens)
        if self._steady:  # what single steps have computed may differ in the last bits
            length = min(length, best.prefilled)
            length -= length % CHUNK if length < len(prompt) - 1 else 0
        # If the best slot is busy or holds more than the shared prefix, keep it and copy the prefix to another slot.
        others = [slot for slot in free if slot is not best]
        chosen = best if (length and continues) or not others else min(others, key=lambda slot: slot.used)
        if chosen is not best and length:
            self._cache.copy(best.row, chosen.row, length)
        self._clock += 1
        chosen.weights, chosen.tokens, chosen.prefilled = weights.key, list(prompt[:length]), length
        chosen.busy, chosen.used = True, self._clock
        return chosen

    def prefill(self, weights: Weights, slot: Slot, prompt: Sequence[int]) -> None:
        """Compute the missing part of a prompt, except its last token, which is the first one given to `step`."""
        last, rows = len(prompt) - 1, slice(slot.row, slot.row + 1)
        while (start := len(slot.tokens)) < last:
            # A chunk is filled with zeros, which the conversation's own next tokens overwrite.
            end = start + CHUNK if self._steady else last
            self._cache.reserve(max(end, last + 1))
            ids = list(prompt[start : min(end, last)])
            positions = torch.arange(start, end, device=self._device.name).clamp(max=weights.base.context - 1)
            padded = torch.tensor([ids + [0] * (end - start - len(ids))])
            self._forward(weights, rows, padded, positions.unsqueeze(0), end)
            slot.tokens += ids
            slot.prefilled = len(slot.tokens)

    def step(self, weights: Weights, slots: Sequence[Slot], tokens: Sequence[int]) -> Tensor:
        """Add one token to each slot. Returns the logits after it; slots × vocabulary."""
        self._cache.reserve(max(len(slot.tokens) for slot in self._slots) + 1)
        rows = self._cache.rows if self._steady else max(slot.row for slot in slots) + 1
        ids = torch.zeros(rows, 1, dtype=torch.long)
        for slot, token in zip(slots, tokens, strict=True):
            ids[slot.row, 0] = token
        # The other rows write behind their last token; their own next token will overwrite it.
        places = [[len(slot.tokens)] for slot in self._slots[:rows]]
        positions = torch.tensor(places, device=self._device.name)
        length = self._cache.capacity if self._steady else max(place[0] for place in places) + 1
        logits = self._forward(weights, slice(0, rows), ids, positions, length)
        for slot, token in zip(slots, tokens, strict=True):
            slot.tokens.append(token)
        return logits[[slot.row for slot in slots]]

    def _forward(self, weights: Weights, rows: slice, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        self._cache.set_target(rows, positions, length)
        output = weights.module(
            input_ids=ids.to(self._device.name),
            position_ids=positions,
            attention_mask=self._masks(positions, length),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()  # type: ignore[no-any-return]

    def _masks(self, positions: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Added to the attention scores: 0 for visible tokens, the lowest number for hidden ones."""
        distance = positions.unsqueeze(-1) - torch.arange(length, device=positions.device)
        full = self._mask(distance < 0)
        if self._window is None:
            return full
        narrow = self._mask((distance < 0) | (distance >= self._window))
        if not self._layer_types:
            return narrow
        masks = {"full_attention": full, "sliding_attention": narrow}
        return masks if "sliding_attention" in self._layer_types else full

    def _mask(self, hidden: Tensor) -> Tensor:
        mask = torch.zeros(hidden.shape, dtype=self._device.dtype, device=hidden.device)
        return mask.masked_fill_(hidden, torch.finfo(self._device.dtype).min).unsqueeze(1)


def _window(config: Any) -> int | None:
    if getattr(config, "use_sliding_window", True) is False:
        return None
    return getattr(config, "sliding_window", None)
