"""A teacher with another tokenizer and another dialect.

The conversation is put into the teacher's dialect, the teacher scores the whole of it in one call, and what it says is
brought back to the student's tokens: over the bytes that both have, tokens are grouped between common boundaries, a
group's KL is the difference of the sums of its log-probabilities, and its tokens share it. Framing is compared where it
takes a decision that both dialects take, see `structure`; the rest of it is left out.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tinker

from ...engines.protocol import Sampler
from ...errors import UsageError
from ...renderers import Renderer
from ...renderers.turns import Part
from .align import Group, Tokens, spread_kl
from .base import Judgement, Sampled
from .structure import Doubt, Pair, match_turn

SURE = math.log(0.5)
"""A teacher that finds an answer's first token at least so likely would answer: nothing more is asked."""


@dataclass(frozen=True)
class Translated:
    """An episode in the teacher's tokens, and which tokens of both say the same."""

    tokens: list[int]
    groups: list[Group]
    doubts: list[Doubt] = field(default_factory=list)


class CrossTokens:
    """Judges episodes of a student with another vocabulary.

    Args:
        sampler: The teacher's weights.
        student: The student's renderer.
        teacher: The teacher's.
        prompts: For each problem the ids of the teacher's opening.
    """

    def __init__(
        self, sampler: Sampler, student: Renderer, teacher: Renderer, prompts: Mapping[str, Sequence[int]]
    ) -> None:
        self._sampler, self._student, self._teacher, self._prompts = sampler, student, teacher, prompts

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`. An answer that the teacher's words do not tell from a call costs a call or two more."""
        translated = self.translate(sampled)
        found = await self._score(translated.tokens)

        def scored(group: Group) -> bool:
            """A translation longer than the teacher's context is scored as far as it goes."""
            return None not in found[slice(*group.teacher)]

        doubts = [doubt for doubt in translated.doubts if scored(doubt.first)]
        unknown = {doubt.decision for doubt in translated.doubts} - {doubt.decision for doubt in doubts}
        groups = [group for group in translated.groups if scored(group) and group not in unknown]
        logprobs = [0.0 if value is None else value for value in found]
        kl, covered = spread_kl(groups, sampled.logprobs, logprobs, len(sampled.tokens))
        for doubt in doubts:
            value = await self._settle(doubt, translated.tokens, logprobs)
            # What the teacher says of the answer's first word goes to the decision as far as it is of the decision.
            for group, moved in ((doubt.decision, -value), (doubt.first, value)):
                for token in range(*group.student):
                    kl[token] += moved / (group.student[1] - group.student[0])
        return Judgement(kl, covered)

    async def _settle(self, doubt: Doubt, tokens: Sequence[int], logprobs: Sequence[float]) -> float:
        """The teacher's log-probability of a decision that none of its tokens takes alone."""
        first = logprobs[doubt.place]
        if first >= SURE:
            return doubt.logprob(first, [])
        asked = [self._score([*tokens[: doubt.place], id_]) for id_ in doubt.instead]
        last = [found[-1] for found in await asyncio.gather(*asked)]
        return doubt.logprob(first, [value for value in last if value is not None])

    async def _score(self, tokens: Sequence[int]) -> list[float | None]:
        return list(await self._sampler.compute_logprobs(tinker.ModelInput.from_ints(list(tokens))))

    def translate(self, sampled: Sampled) -> Translated:
        """The episode in the teacher's dialect. Raises `UsageError` for a problem without an opening."""
        if sampled.problem not in self._prompts:
            raise UsageError(f"the teacher has no opening for {sampled.problem}")
        student, teacher = self._student, self._teacher
        tokens = list(self._prompts[sampled.problem])
        size = _size(teacher, tokens)
        place = 0
        turns: list[list[Pair | None]] = []
        action: list[int] = []
        for number, (ids, by_student) in enumerate(sampled.runs()):
            if by_student:
                contents = student.contents(ids)
                action, framed = teacher.framed(contents)
                turns.append(self._pairs(contents, action, framed, place, size))
                new = action
            elif number:
                outputs = student.outputs(ids)
                new = teacher.observation_ids(outputs or [""], action)
            else:
                new = []  # the opening, which the teacher has in its own words
            tokens += new
            size += _size(teacher, new)
            place += _size(student, ids)
        own = Tokens([len(student.codec.token_bytes(id_)) for id_ in sampled.tokens])
        other = Tokens([len(teacher.codec.token_bytes(id_)) for id_ in tokens])
        matched = [match_turn(own, other, pairs) for pairs in turns]
        groups = [group for turn in matched for group in turn.groups]
        return Translated(tokens, groups, [doubt for turn in matched for doubt in turn.doubts])

    def _pairs(
        self, contents: Sequence[Part], ids: Sequence[int], framed: Sequence[Part | None], place: int, size: int
    ) -> list[Pair | None]:
        """The contents of a turn on both sides, by their offsets in the whole sequences."""
        student, teacher = self._student, self._teacher
        spelled = b"".join(map(teacher.codec.token_bytes, ids))
        found: list[Pair | None] = []
        for number, (own, other) in enumerate(zip(contents, framed, strict=True)):
            if other is None or not spelled.startswith(other.data, other.place):
                found.append(None)
                continue
            instead = tuple(map(teacher.codec.control, teacher.instead_of_text(first=number == 0)))
            chosen = number > 0 or student.thinks or not teacher.thinks
            found.append(Pair(own.at(place.__add__), other.at(size.__add__), instead, chosen))
        return found


def _size(renderer: Renderer, ids: Sequence[int]) -> int:
    return sum(len(renderer.codec.token_bytes(id_)) for id_ in ids)
