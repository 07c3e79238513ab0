"""Samples the sequences of all requests together: each step adds one token to each sequence.

The key-value cache has one row per sequence, and is kept between the turns of a conversation. A sequence begins at the
start of its row. If the sampling is steady, all steps have the same shape. Prompts are then computed in chunks, which
also have the same shape, and another prompt reuses only those parts of a row that were computed in chunks. So
log-probabilities are bit-identical, independent of other requests and of the cache, and a run is reproducible although
its sandboxes answer in no fixed order.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
import tinker
import torch
from torch import Tensor
from transformers import Cache

from ..errors import NotFinite, UsageError
from .models import Base, Weights, cache_argument, own_lengths
from .training import Scores

GROWTH = 256
"""Rows grow by this many tokens at a time."""
CHUNK = 64
"""Tokens of a prompt that are computed together if the sampling is steady. It divides `GROWTH`."""
PIECE = 2048
"""The same if it is not steady. It limits the size of the mask, which has a row as long as the prompt per token."""


@dataclass
class _Sequence:
    request: _Call
    generator: np.random.Generator
    slot: Slot | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: tinker.StopReason | None = None

    @property
    def finished(self) -> bool:
        """Whether it needs no more tokens; also true once its request has failed or was cancelled."""
        return self.stop_reason is not None or self.request.future.done()

    def release(self) -> None:
        if self.slot is not None:
            self.slot.busy, self.slot = False, None


@dataclass
class _Call:
    weights: Weights
    prompt: list[int]
    params: tinker.SamplingParams
    limit: int
    """Maximum number of tokens."""
    stops: Stops
    scores: Scores | None
    future: Future[tinker.SampleResponse]
    number: int
    sequences: list[_Sequence] = field(default_factory=list)

    def answer_if_complete(self) -> None:
        if self.future.done() or any(sequence.stop_reason is None for sequence in self.sequences):
            return
        response = tinker.SampleResponse(
            sequences=[
                tinker.SampledSequence(
                    stop_reason=sequence.stop_reason or "length",
                    sequence_id=f"{self.number}-{index}",
                    tokens_np=np.array(sequence.tokens, dtype=np.int32),
                    logprobs_np=np.array(sequence.logprobs, dtype=np.float32),
                )
                for index, sequence in enumerate(self.sequences)
            ],
            _prompt_logprobs_list=self.scores.logprobs if self.scores else None,
            _topk_prompt_logprobs_list=self.scores.top if self.scores else None,
        )
        with contextlib.suppress(InvalidStateError):  # it was just cancelled
            self.future.set_result(response)


class Scheduler:
    """Does all sampling of one engine. Its methods run in the engine's thread.

    Each step gives free slots to waiting sequences, then adds one token to each running sequence. So new requests join
    the running ones at the next token. At most `rows` sequences of each base model run; the others wait. `steady` says
    whether the sampling of a model is steady (see `SlotTable`), and `seed` is for requests without a seed.
    """

    def __init__(self, rows: int, steady: Callable[[Base], bool], seed: int) -> None:
        self._rows, self._steady = rows, steady
        self._seeds = np.random.default_rng(seed)
        self._tables: dict[str, SlotTable] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._count = 0

    def add(
        self,
        weights: Weights,
        prompt: list[int],
        samples: int,
        params: tinker.SamplingParams,
        scores: Scores | None,
        future: Future[tinker.SampleResponse],
    ) -> None:
        """Enqueue a request; with `scores`, `samples` may be 0. Raises `UsageError` if it is invalid."""
        check_params(params)
        weights.base.check_prompt(prompt, weights.base.context - 1)
        if samples < (0 if scores else 1):
            raise UsageError(f"num_samples must be at least 1, got {samples}")
        left = weights.base.context - len(prompt)
        limit = min(left, params.max_tokens or left)
        stops = Stops(params.stop, weights.base.end_ids, lambda: weights.base.tokenizer)
        self._count += 1
        request = _Call(weights, prompt, params, limit, stops, scores, future, self._count)
        seed = params.seed if params.seed is not None else int(self._seeds.integers(2**62))
        request.sequences = [
            _Sequence(request, np.random.default_rng([seed & 2**63 - 1, index])) for index in range(samples)
        ]
        self._waiting += request.sequences
        request.answer_if_complete()

    def step(self) -> bool:
        """Sample one token of each running sequence. Returns whether there is more to do."""
        with torch.inference_mode():
            self._drop_finished()
            self._admit()
            groups: dict[int, list[_Sequence]] = {}
            for sequence in self._running:
                groups.setdefault(sequence.request.weights.key, []).append(sequence)
            for group in groups.values():
                try:
                    self._advance(group)
                except Exception as error:  # from a model's code; the waiting callers get it
                    self._fail(group, error)
        self._drop_finished()
        return bool(self._running or self._waiting)

    def release(self) -> None:
        """Free all keys and values, unless a sequence runs or waits; later prompts are then recomputed."""
        if not self._running and not self._waiting:
            self._tables.clear()

    def fail_all(self) -> None:
        """Fail all unanswered requests, because the engine is closing."""
        error = UsageError("the engine was closed before this request was answered")
        self._fail([*self._running, *self._waiting], error)

    def _admit(self) -> None:
        while self._waiting:
            sequence = self._waiting[0]
            request = sequence.request
            table = self._table(request.weights)
            try:
                sequence.slot = table.acquire(request.weights, request.prompt)
                if sequence.slot is None:
                    return
                self._waiting.popleft()
                table.prefill(request.weights, sequence.slot, request.prompt)
            except Exception as error:
                self._fail([sequence], error)
                continue
            self._running.append(sequence)

    def _advance(self, group: list[_Sequence]) -> None:
        weights = group[0].request.weights
        slots = [sequence.slot for sequence in group if sequence.slot is not None]
        last = [(sequence.tokens or sequence.request.prompt)[-1] for sequence in group]
        logits = self._table(weights).step(weights, slots, last)
        params = [sequence.request.params for sequence in group]
        ids, logprobs = draw(logits, params, [sequence.generator.random() for sequence in group])
        for sequence, token, logprob in zip(group, ids, logprobs, strict=True):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            if sequence.request.stops.reached(sequence.tokens):
                sequence.stop_reason = "stop"
            elif len(sequence.tokens) >= sequence.request.limit:
                sequence.stop_reason = "length"
            if sequence.stop_reason is not None:
                sequence.release()
                sequence.request.answer_if_complete()

    def _table(self, weights: Weights) -> SlotTable:
        path = weights.base.path
        if path not in self._tables:
            self._tables[path] = SlotTable(weights, self._rows, self._steady(weights.base))
        return self._tables[path]

    def _fail(self, group: Iterable[_Sequence], error: BaseException) -> None:
        for sequence in group:
            sequence.release()
            if not sequence.request.future.done():
                with contextlib.suppress(InvalidStateError):
                    sequence.request.future.set_exception(error)
        self._drop_finished()

    def _drop_finished(self) -> None:
        for sequence in self._running:
            if sequence.finished:
                sequence.release()
        self._running = [sequence for sequence in self._running if not sequence.finished]
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.finished)


@dataclass
class Slot:
    """One row of the cache, and the tokens in it."""

    row: int
    weights: int = -1
    """`Weights.key` of the model that computed the keys and values."""
    tokens: list[int] = field(default_factory=list)
    prefilled: int = 0
    """How many of the tokens, from the first, were computed as part of a prompt; the others in single steps."""
    busy: bool = False
    used: int = 0
    """When it was last acquired; the least recently used slot is replaced."""

    def shared(self, weights: int, prompt: Sequence[int]) -> int:
        """Length of the prefix shared with a prompt, excluding its last token, which must always be computed."""
        if self.weights != weights:
            return 0
        pairs = zip(self.tokens, prompt[:-1], strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


class SlotTable:
    """The slots of one base model and of all weights trained from it.

    If `steady`, they always compute the same shapes, so that a sequence's log-probabilities depend only on its tokens.
    `weights` may be any of these weights, which have the same shape; `rows` is the maximum number of sequences at once.
    """

    def __init__(self, weights: Weights, rows: int, steady: bool) -> None:
        self._cache = RowCache(rows)
        self._cache_argument = cache_argument(weights.module)
        self._slots = [Slot(row) for row in range(rows)]
        self._steady = steady
        self._clock = 0
        self._device = weights.base.device
        config = weights.base.config
        self._layer_types = set(getattr(config, "layer_types", None) or ())
        slides = getattr(config, "use_sliding_window", True) is not False
        self._window = getattr(config, "sliding_window", None) if slides else None

    def acquire(self, weights: Weights, prompt: Sequence[int]) -> Slot | None:
        """A free slot, filled with the longest prefix of the prompt that any slot has; None if all slots are busy."""
        free = [slot for slot in self._slots if not slot.busy]
        if not free:
            return None
        shared = {slot.row: slot.shared(weights.key, prompt) for slot in self._slots}
        best = max(self._slots, key=lambda slot: (shared[slot.row], -slot.row))
        length = shared[best.row]
        continues = not best.busy and length == len(best.tokens)
        if self._steady:  # results of single steps may differ in the last bits
            length = min(length, best.prefilled)
            length -= length % CHUNK if length < len(prompt) - 1 else 0
        # If the best slot is busy or has more than the shared prefix, keep it and copy the prefix to another slot.
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
            end = start + CHUNK if self._steady else min(start + PIECE, last)
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
        # The other rows write after their last token; their own next token will overwrite it.
        places = [[len(slot.tokens)] for slot in self._slots[:rows]]
        positions = torch.tensor(places, device=self._device.name)
        length = self._cache.capacity if self._steady else max(place[0] for place in places) + 1
        busy = {slot.row for slot in slots}
        lengths = [place[0] + 1 if row in busy else 0 for row, place in enumerate(places)]
        # Row by row, attention is slower per token, but skips the idle rows and the unused ends of short rows.
        sparse = self._steady or 2 * sum(lengths) < rows * length
        by_row = sparse and self._device.name == "cpu" and not self._window
        with own_lengths(lengths) if by_row else contextlib.nullcontext():
            logits = self._forward(weights, slice(0, rows), ids, positions, length)
        for slot, token in zip(slots, tokens, strict=True):
            slot.tokens.append(token)
        return logits[[slot.row for slot in slots]]

    def _forward(self, weights: Weights, rows: slice, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        self._cache.target = (rows, positions, length)
        output = weights.module(
            input_ids=ids.to(self._device.name),
            position_ids=positions,
            attention_mask=self._masks(positions, length),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        return output.logits[:, -1].float()  # type: ignore[no-any-return]

    def _masks(self, positions: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Masks to add to the attention scores: 0 for visible tokens, the lowest number for hidden ones."""
        own, others = positions.unsqueeze(-1), torch.arange(length, device=positions.device)
        full = self._mask(others > own)
        if self._window is None:
            return full
        narrow = self._mask((others > own) | (others <= own - self._window))
        if not self._layer_types:
            return narrow
        masks = {"full_attention": full, "sliding_attention": narrow}
        return masks if "sliding_attention" in self._layer_types else full

    def _mask(self, hidden: Tensor) -> Tensor:
        mask = torch.zeros(hidden.shape, dtype=self._device.dtype, device=hidden.device)
        return mask.masked_fill_(hidden, torch.finfo(self._device.dtype).min).unsqueeze(1)


class RowCache(Cache):
    """The rows, as a cache for transformers' models."""

    def __init__(self, rows: int) -> None:
        super().__init__(layers=[])
        self.rows, self.capacity = rows, 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self.target: tuple[slice, Tensor, int] = (slice(0, 0), torch.empty(0), 0)
        """For the next forward pass: the rows of its batch, the positions of its tokens (rows × tokens), and the number
        of tokens that it reads of each row."""

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
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[target, :, :length] = tensor[source, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each attention layer: store its new keys and values, and return all of them."""
        rows, positions, length = self.target
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
        return int(self.target[1].min())

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.rows, like.shape[1], self.capacity, like.shape[3])


def check_params(params: tinker.SamplingParams) -> None:
    """Raise `UsageError` for invalid values."""
    if params.max_tokens is not None and params.max_tokens < 1:
        raise UsageError(f"max_tokens must be at least 1, got {params.max_tokens}")
    if not 0 <= params.temperature < math.inf:
        raise UsageError(f"temperature must be a finite number of at least 0, got {params.temperature}")
    if not 0 < params.top_p <= 1:
        raise UsageError(f"top_p must be above 0 and at most 1, got {params.top_p}")
    if params.top_k == 0 or params.top_k < -1:
        raise UsageError(f"top_k must be at least 1, or -1 for no limit; got {params.top_k}")


def draw(
    logits: Tensor, params: Sequence[tinker.SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token for each row.

    Each token is chosen by inverse transform sampling with the row's own uniform number. So it is independent of other
    rows, and rounding differences in the logits hardly ever change it.

    Args:
        logits: Rows × vocabulary.
        params: Temperature, top_k and top_p of each row.
        uniforms: A number from [0, 1) for each row.

    Returns:
        The tokens, and the log-probability of each in the distribution that it was drawn from (after temperature,
        `top_k` and `top_p`), as needed for importance weights. At temperature 0, where nothing is drawn, it is the
        model's log-probability at temperature 1.

    Raises:
        NotFinite: A row of the logits has no distribution, because it contains NaN or infinity.
    """
    if logits.device.type == "mps":  # it has no float64
        logits = logits.cpu()
    scaled = logits.double()
    temperatures = torch.tensor([param.temperature for param in params], dtype=torch.float64, device=logits.device)
    if any(param.temperature != 1 for param in params):
        scaled = scaled / temperatures.clamp(min=1e-9).unsqueeze(1)
    probabilities = torch.softmax(scaled, dim=-1)
    for row, param in enumerate(params):
        if param.top_k > 0 or param.top_p < 1:
            probabilities[row] = _truncate(probabilities[row], param.top_k, param.top_p)
    cumulative = probabilities.cumsum(-1)
    if not cumulative[:, -1].isfinite().all():
        raise NotFinite("the model's output is NaN or infinite; its weights are damaged, or its data type overflows")
    points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device).unsqueeze(1) * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, points, right=True).clamp(max=logits.shape[1] - 1).squeeze(1)
    ids = torch.where(temperatures == 0, logits.argmax(-1), ids)
    chosen = probabilities.gather(1, ids.unsqueeze(1)).squeeze(1)
    logprobs = chosen.log() - cumulative[:, -1].log()
    for row in ((temperatures == 0) | (chosen == 0)).nonzero().flatten().tolist():
        logprobs[row] = logits[row].double().log_softmax(-1)[ids[row]]
    return ids.tolist(), logprobs.tolist()


def _truncate(probabilities: Tensor, top_k: int, top_p: float) -> Tensor:
    """Keep the `top_k` most likely tokens, and of those the most likely ones that together reach `top_p`."""
    ordered, order = probabilities.sort(descending=True, stable=True)
    if top_k > 0:
        ordered[top_k:] = 0
    before = ordered.cumsum(-1) - ordered
    ordered[before >= top_p * ordered.sum()] = 0
    return torch.zeros_like(probabilities).scatter_(0, order, ordered)


class Stops:
    """The stop condition of a request: ``SamplingParams.stop``, or if that is None, the model's own end tokens.

    `tokenizer` returns the tokenizer, and is called only if `stop` has texts.
    """

    def __init__(self, stop: Any, end_ids: Sequence[int], tokenizer: Any) -> None:
        listed = [stop] if isinstance(stop, str) else list(end_ids if stop is None else stop)
        self._ids = {stop for stop in listed if isinstance(stop, int)}
        self._texts = [stop for stop in listed if isinstance(stop, str) and stop]
        self._tokenizer = tokenizer() if self._texts else None
        # A text of n bytes has at most n tokens; the first may begin before the text, so one more token is decoded.
        self._tail = max((len(text.encode()) for text in self._texts), default=0) + 1

    def reached(self, tokens: list[int]) -> bool:
        """Whether the last of these sampled tokens ends the sequence."""
        if tokens[-1] in self._ids:
            return True
        if self._tokenizer is None:
            return False
        tail = self._tokenizer.decode(tokens[-self._tail :], skip_special_tokens=False)
        return any(text in tail for text in self._texts)
