"""What a teacher thinks of the tokens that the student sampled.

One call an episode: the whole of it goes to the teacher, who says how likely it finds each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import tinker

from ...engines.protocol import Sampler
from ...errors import UsageError
from ...renderers import Renderer
from ...renderers.turns import Kind


@dataclass(frozen=True)
class Sampled:
    """An episode as the student sampled it."""

    problem: str
    tokens: Sequence[int]
    """All ids, prompt and results included."""
    mask: Sequence[float]
    """1 for the sampled ones, 0 for the others; as long as `tokens`."""
    logprobs: Sequence[float]
    """Of the sampled ones, in nats; 0 for the others."""

    def runs(self) -> list[tuple[list[int], bool]]:
        """The runs of tokens of one side, and whether the student sampled them."""
        pairs = groupby(zip(self.tokens, self.mask, strict=True), key=lambda pair: bool(pair[1]))
        return [([id_ for id_, _ in run], by_student) for by_student, run in pairs]


@dataclass(frozen=True)
class Judgement:
    """``log p_student − log p_teacher`` of each token of an episode, and for which it could be told."""

    kl: list[float]
    """0 where it could not be told, or where the student did not sample."""
    covered: list[float]
    """1 where it could, else 0."""
    weights: list[float] | None = None
    """What the KL of each token counts for; None for 1 throughout."""


class Teacher(Protocol):
    """Judges episodes."""

    async def judge(self, sampled: Sampled) -> Judgement:
        """The judgement on one episode, by one call to the teacher; by a few where its dialect leaves a doubt."""
        ...


class SameTokens:
    """A teacher with the student's vocabulary and dialect: it reads the student's exact ids.

    Args:
        sampler: The teacher's weights.
        prompts: For a teacher that reads another prompt: for each problem, the ids of the student's opening and of the
            teacher's, which takes its place.
    """

    def __init__(self, sampler: Sampler, prompts: Mapping[str, tuple[list[int], list[int]]] | None = None) -> None:
        self._sampler, self._prompts = sampler, prompts or {}

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`."""
        tokens = list(sampled.tokens)
        cut = 0
        if sampled.problem in self._prompts:
            own, read = self._prompts[sampled.problem]
            if tokens[: len(own)] != own:
                raise UsageError(f"teacher_system_prompt: the opening of {sampled.problem} is not the one expected")
            cut = len(own) - len(read)
            tokens = [*read, *tokens[len(own) :]]
        logprobs = await self._sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens))
        kl, covered = [0.0] * len(sampled.tokens), [0.0] * len(sampled.tokens)
        for place, (sampled_here, own_logprob) in enumerate(zip(sampled.mask, sampled.logprobs, strict=True)):
            if not sampled_here:
                continue
            found = logprobs[place - cut]
            if found is not None:
                kl[place] = own_logprob - found
                covered[place] = 1.0
        return Judgement(kl, covered)


class ByProblem:
    """Several teachers, each for its problems.

    Args:
        chosen: The teacher of some problems.
        otherwise: The teacher of all others; None leaves them without.
    """

    def __init__(self, chosen: Mapping[str, Teacher], otherwise: Teacher | None) -> None:
        self._chosen, self._otherwise = chosen, otherwise

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`."""
        teacher = self._chosen.get(sampled.problem, self._otherwise)
        if teacher is None:
            return Judgement([0.0] * len(sampled.tokens), [0.0] * len(sampled.tokens))
        return await teacher.judge(sampled)


class WeightedKinds:
    """A teacher whose judgement says what each token counts for.

    Args:
        teacher: Who judges.
        student: The student's renderer, which tells the kinds.
        weights: By kind; a token of no kind, such as a control token, counts fully.
    """

    def __init__(self, teacher: Teacher, student: Renderer, weights: Mapping[Kind, float]) -> None:
        self._teacher, self._student, self._weights = teacher, student, weights

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`."""
        judgement = await self._teacher.judge(sampled)
        counts: list[float] = []
        for ids, by_student in sampled.runs():
            kinds = self._student.kinds(ids) if by_student else [None] * len(ids)
            counts += [1.0 if kind is None else self._weights[kind] for kind in kinds]
        return replace(judgement, weights=counts)
