"""Teachers compute log-probabilities of the tokens that the student sampled.

A teacher reads the student's exact tokens (this module), or the same turns in another dialect (`cross`). It may be the
student itself, with earlier weights. `setup` builds a run's teachers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol, TypedDict

import tinker

from ...engines.protocol import Sampler
from ...engines.requests import context_length
from ...errors import UsageError

__all__ = ["Judgement", "SameTokens", "Sampled", "SelfTeacher", "Teacher"]


@dataclass(frozen=True)
class Sampled:
    """An episode as the student sampled it."""

    problem: str
    tokens: Sequence[int]
    """All ids, including the prompt and the commands' outputs."""
    mask: Sequence[float]
    """1 for sampled tokens, 0 for the others."""
    logprobs: Sequence[float]
    """The student's log-probabilities of sampled tokens, in nats; 0 for the others."""
    feedback: str = ""
    """What the teacher reads about this episode, after the user message."""

    def runs(self) -> list[tuple[list[int], bool]]:
        """The tokens in runs of sampled and of other tokens; the bool says which."""
        pairs = groupby(zip(self.tokens, self.mask, strict=True), key=lambda pair: bool(pair[1]))
        return [([id_ for id_, _ in run], by_student) for by_student, run in pairs]


Prompt = Callable[[Sampled], Sequence[int]]
"""Returns the ids of the teacher's prompt for an episode."""


@dataclass
class Judgement:
    """The KL of each token of an episode. Where a log-probability is not finite, the KL is unknown."""

    kl: list[float]
    """``log p_student − log p_teacher``; 0 where it is unknown or the token was not sampled."""
    covered: list[float]
    """1 where the KL is known, else 0."""
    top: list[list[tuple[int, float]]] | None = None
    """The teacher's most likely tokens at each position, with their log-probabilities; empty if the token was not
    sampled, or if its KL or one of these values is unknown. None if not requested."""
    not_finite: int = field(default=0, init=False)
    """Number of tokens whose KL is unknown because a log-probability was NaN or infinite."""

    def __post_init__(self) -> None:
        finite = [math.isfinite(kl) for kl in self.kl]
        self.not_finite = finite.count(False)
        self.kl = [kl if known else 0.0 for kl, known in zip(self.kl, finite, strict=True)]
        self.covered = [covered if known else 0.0 for covered, known in zip(self.covered, finite, strict=True)]
        if self.top is not None:
            self.top = [
                place if covered and all(math.isfinite(logprob) for _, logprob in place) else []
                for place, covered in zip(self.top, self.covered, strict=True)
            ]


class Teacher(Protocol):
    """Judges episodes."""

    async def judge(self, sampled: Sampled) -> Judgement:
        """Judge an episode, with one call to the model; a teacher with another dialect may need a few more calls."""
        ...


@dataclass
class SameTokens:
    """A teacher with the student's vocabulary and dialect: it reads the student's exact ids."""

    sampler: Sampler
    prompts: Mapping[str, tuple[list[int], Prompt]] = field(default_factory=dict)
    """For each problem where the teacher's prompt differs: the student's prompt ids, and the teacher's prompt."""
    top: int = 0
    """How many of its most likely tokens it returns at each position; 0 for none."""

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`. Raises `UsageError` if the service does not return the most likely tokens."""
        tokens = list(sampled.tokens)
        cut = 0
        if sampled.problem in self.prompts:
            own, prompt = self.prompts[sampled.problem]
            if tokens[: len(own)] != own:
                raise UsageError(
                    f"the teacher cannot replace the prompt of {sampled.problem}, which is not the expected prompt"
                )
            read = prompt(sampled)
            cut = len(own) - len(read)
            tokens = [*read, *tokens[len(own) :]]
        logprobs, top = await self._scores(tokens)
        best: list[list[tuple[int, float]]] = [[] for _ in sampled.tokens]
        kl, covered = [0.0] * len(sampled.tokens), [0.0] * len(sampled.tokens)
        for place, (sampled_here, own_logprob) in enumerate(zip(sampled.mask, sampled.logprobs, strict=True)):
            if not sampled_here:
                continue
            found = logprobs[place - cut]
            if found is not None:
                kl[place] = own_logprob - found
                covered[place] = 1.0
                best[place] = top[place - cut] or []
        return Judgement(kl, covered, best if self.top else None)

    async def _scores(self, tokens: list[int]) -> tuple[list[float | None], list[list[tuple[int, float]] | None]]:
        """Each token's log-probability, and the most likely tokens at its position; None beyond the context length."""
        if not self.top:
            return list(await self.sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens))), [None] * len(tokens)
        limit = min(len(tokens), max(1, (context_length(self.sampler) or len(tokens) + 1) - 1))
        one = tinker.SamplingParams(max_tokens=1)  # a service returns a prompt's scores only with a sample
        found = await self.sampler.sample(tinker.ModelInput.from_ints(tokens[:limit]), 1, one, True, self.top)
        logprobs, top = found.prompt_logprobs, found.topk_prompt_logprobs
        if logprobs is None or top is None:
            raise UsageError(
                "kl_top_k: the service of the teacher does not name the most likely tokens; use kl_top_k=0"
            )
        beyond = [None] * (len(tokens) - limit)
        return [*logprobs, *beyond], [*top, *beyond]


class SavedWeights(TypedDict):
    """Weights that a resumed run needs, as recorded in a checkpoint."""

    version: int
    """Number of steps that the weights were trained for."""
    weights: str
    """Path of the weights."""


@dataclass
class SelfTeacher(SameTokens):
    """A teacher with the student's earlier weights, at first the initial ones. It keeps those that later steps need."""

    lag: int | None = None
    """How many steps the teacher is behind (fewer in the first steps); None for the initial weights."""

    def __post_init__(self) -> None:
        self._start = self.sampler
        self._kept: dict[int, tuple[Sampler, str | None]] = {}

    def steps_needed(self, step: int, num_steps: int) -> int:
        """For how many steps, from `step` on, a checkpoint must include the weights before `step`."""
        return self.lag if self.lag is not None and 0 < step < num_steps - self.lag else 0

    def keep(self, step: int, sampler: Sampler, path: str | None) -> None:
        """Keep the weights before `step`; `path` is where they are saved, for checkpoints."""
        if self.lag is not None and step > 0:
            self._kept[step] = sampler, path

    def begin(self, step: int) -> None:
        """From now on, judge with the weights for `step`. Raises `KeyError` if they were not kept."""
        if self.lag is None:
            return
        oldest = max(0, step - self.lag)
        self._kept = {version: kept for version, kept in self._kept.items() if version >= oldest}
        self.sampler = self._kept[oldest][0] if oldest else self._start

    def saved(self, step: int) -> list[SavedWeights]:
        """The saved weights that a run resumed before `step` needs."""
        needed = {version: path for version, (_, path) in self._kept.items() if version >= step - (self.lag or 0)}
        return [{"version": version, "weights": path} for version, path in needed.items() if path is not None]
