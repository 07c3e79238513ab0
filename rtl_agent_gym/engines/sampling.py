"""Samples the sequences of all requests together, one token each per step."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import numpy as np
import tinker
import torch

from ..errors import UsageError
from .drawing import Stops, check_params, draw
from .models import Base, Weights
from .slots import Slot, SlotTable


@dataclass
class _Sequence:
    """A sequence that is being sampled."""

    request: _Request
    generator: np.random.Generator
    slot: Slot | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: tinker.StopReason | None = None

    @property
    def finished(self) -> bool:
        """Whether it needs no more tokens; also true after its request has failed or was cancelled."""
        return self.stop_reason is not None or self.request.future.done()

    def release(self) -> None:
        """Free its slot."""
        if self.slot is not None:
            self.slot.busy, self.slot = False, None


@dataclass
class _Request:
    """One call of ``sample``."""

    weights: Weights
    prompt: list[int]
    params: tinker.SamplingParams
    limit: int
    """Maximum number of tokens."""
    stops: Stops
    prompt_logprobs: list[float | None] | None
    future: Future[tinker.SampleResponse]
    number: int
    sequences: list[_Sequence] = field(default_factory=list)

    def answer_if_complete(self) -> None:
        """Set the future's result once all sequences are complete."""
        if self.future.done() or any(one.stop_reason is None for one in self.sequences):
            return
        response = tinker.SampleResponse(
            sequences=[
                tinker.SampledSequence(
                    stop_reason=one.stop_reason or "length",
                    sequence_id=f"{self.number}-{index}",
                    tokens_np=np.array(one.tokens, dtype=np.int32),
                    logprobs_np=np.array(one.logprobs, dtype=np.float32),
                )
                for index, one in enumerate(self.sequences)
            ],
            _prompt_logprobs_list=self.prompt_logprobs,
        )
        with contextlib.suppress(InvalidStateError):  # cancelled a moment ago
            self.future.set_result(response)


class Scheduler:
    """Does all sampling of one engine. Its methods run in the engine's thread.

    Each step gives free slots to waiting sequences, then adds one token to each running one. So new requests join the
    running ones at the next token.

    Args:
        rows: Maximum number of running sequences for each base model; the others wait.
        steady: Whether the sampling of a model is steady; see `SlotTable`.
        seed: For requests without a seed.
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
        prompt_logprobs: list[float | None] | None,
        future: Future[tinker.SampleResponse],
    ) -> None:
        """Enqueue a request. Raises `UsageError` if it is invalid."""
        check_params(params)
        weights.base.check_prompt(prompt, weights.base.context - 1)
        if samples < 1:
            raise UsageError(f"num_samples must be at least 1, got {samples}")
        left = weights.base.context - len(prompt)
        limit = min(left, params.max_tokens or left)
        stops = Stops(params.stop, weights.base.end_ids, lambda: weights.base.tokenizer)
        self._count += 1
        request = _Request(weights, prompt, params, limit, stops, prompt_logprobs, future, self._count)
        seed = params.seed if params.seed is not None else int(self._seeds.integers(2**62))
        request.sequences = [
            _Sequence(request, np.random.default_rng([seed & 2**63 - 1, index])) for index in range(samples)
        ]
        self._waiting += request.sequences

    def step(self) -> bool:
        """Sample one token of each running sequence. Returns whether there is more to do."""
        with torch.inference_mode():
            self._drop_finished()
            self._admit()
            groups: dict[int, list[_Sequence]] = {}
            for one in self._running:
                groups.setdefault(one.request.weights.key, []).append(one)
            for group in groups.values():
                try:
                    self._advance(group)
                except Exception as error:  # of a model's code: whoever waits must hear of it
                    self._fail(group, error)
        self._drop_finished()
        return bool(self._running or self._waiting)

    def fail_all(self) -> None:
        """Fail all unanswered requests, because the engine is closing."""
        error = UsageError("the engine was closed before this request was answered")
        self._fail([*self._running, *self._waiting], error)

    def _admit(self) -> None:
        while self._waiting:
            one = self._waiting[0]
            request = one.request
            table = self._table(request.weights)
            try:
                one.slot = table.acquire(request.weights, request.prompt)
                if one.slot is None:
                    return
                self._waiting.popleft()
                table.prefill(request.weights, one.slot, request.prompt)
            except Exception as error:
                self._fail([one], error)
                continue
            self._running.append(one)

    def _advance(self, group: list[_Sequence]) -> None:
        weights = group[0].request.weights
        slots = [one.slot for one in group if one.slot is not None]
        last = [one.tokens[-1] if one.tokens else one.request.prompt[-1] for one in group]
        logits = self._table(weights).step(weights, slots, last)
        params = [one.request.params for one in group]
        ids, logprobs = draw(logits, params, [one.generator.random() for one in group])
        for one, token, logprob in zip(group, ids, logprobs, strict=True):
            one.tokens.append(token)
            one.logprobs.append(logprob)
            if one.request.stops.reached(one.tokens):
                one.stop_reason = "stop"
            elif len(one.tokens) >= one.request.limit:
                one.stop_reason = "length"
            if one.stop_reason is not None:
                one.release()
                one.request.answer_if_complete()

    def _table(self, weights: Weights) -> SlotTable:
        path = weights.base.path
        if path not in self._tables:
            self._tables[path] = SlotTable(weights, self._rows, self._steady(weights.base))
        return self._tables[path]

    def _fail(self, group: Iterable[_Sequence], error: BaseException) -> None:
        for one in group:
            one.release()
            if not one.request.future.done():
                with contextlib.suppress(InvalidStateError):
                    one.request.future.set_exception(error)
        self._drop_finished()

    def _drop_finished(self) -> None:
        for one in self._running:
            if one.finished:
                one.release()
        self._running = [one for one in self._running if not one.finished]
        self._waiting = deque(one for one in self._waiting if not one.finished)
