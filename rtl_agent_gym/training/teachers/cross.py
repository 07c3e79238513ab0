"""A teacher with another tokenizer and another dialect.

The conversation is translated to the teacher's dialect and scored in one call. Tokens with the same bytes on both sides
are aligned in groups (`align`), and so are tokens of the format that express the same decision. A group's KL is the
difference of its sums of log-probabilities, spread evenly over its tokens. Other tokens are left out.
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
from ...renderers.protocol import Part
from . import Judgement, Prompt, Sampled
from .align import Group, ImplicitAnswer, Pair, TokenOffsets, command_of, match_turns, spread_kl

SURE = math.log(0.5)
"""If an answer's first token has at least this log-probability, the teacher would answer; no more calls are made."""


@dataclass(frozen=True)
class Translated:
    """An episode in the teacher's tokens, aligned with the student's."""

    tokens: list[int]
    groups: list[Group]
    implicit: list[ImplicitAnswer] = field(default_factory=list)


@dataclass(frozen=True)
class CrossTokens:
    """Judges episodes of a student with another vocabulary."""

    sampler: Sampler
    """The teacher's weights."""
    student: Renderer
    teacher: Renderer
    prompts: Mapping[str, Prompt]
    """The teacher's prompt of each problem."""

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`. An `ImplicitAnswer` may need one or two more calls."""
        translated = self.translate(sampled)
        found = await self._score(translated.tokens)

        def scored(group: Group) -> bool:
            """Whether the group is within the teacher's context length."""
            return None not in found[slice(*group.teacher)]

        answers = [answer for answer in translated.implicit if scored(answer.first)]
        unknown = {answer.decision for answer in translated.implicit} - {answer.decision for answer in answers}
        groups = [group for group in translated.groups if scored(group) and group not in unknown]
        logprobs = [0.0 if value is None else value for value in found]
        kl, covered = spread_kl(groups, sampled.logprobs, logprobs, len(sampled.tokens))
        for answer in answers:
            value = await self._decision_logprob(answer, translated.tokens, logprobs)
            # The log-probability of the answer's first token includes the decision's: move that part to the decision.
            for group, moved in ((answer.decision, -value), (answer.first, value)):
                for token in range(*group.student):
                    kl[token] += moved / (group.student[1] - group.student[0])
        return Judgement(kl, covered)

    async def _decision_logprob(
        self, answer: ImplicitAnswer, tokens: Sequence[int], logprobs: Sequence[float]
    ) -> float:
        first = logprobs[answer.place]
        if first >= SURE:
            return answer.logprob(first, [])
        calls = [self._score([*tokens[: answer.place], id_]) for id_ in answer.alternatives]
        last = [found[-1] for found in await asyncio.gather(*calls)]
        return answer.logprob(first, [value for value in last if value is not None])

    async def _score(self, tokens: Sequence[int]) -> list[float | None]:
        return list(await self.sampler.compute_logprobs(tinker.ModelInput.from_ints(list(tokens))))

    def translate(self, sampled: Sampled) -> Translated:
        """Translate an episode to the teacher's dialect. Raises `UsageError` for a problem without a prompt."""
        if sampled.problem not in self.prompts:
            raise UsageError(f"the teacher has no prompt for {sampled.problem}")
        student, teacher = self.student, self.teacher
        tokens = list(self.prompts[sampled.problem](sampled))
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
                new = []  # the prompt, of which the teacher has its own version
            tokens += new
            size += _size(teacher, new)
            place += _size(student, ids)
        own = TokenOffsets([len(student.codec.token_bytes(id_)) for id_ in sampled.tokens])
        other = TokenOffsets([len(teacher.codec.token_bytes(id_)) for id_ in tokens])
        return Translated(tokens, *match_turns(own, other, turns))

    def _pairs(
        self, contents: Sequence[Part], ids: Sequence[int], framed: Sequence[Part | None], place: int, size: int
    ) -> list[Pair | None]:
        """The contents of a turn on both sides, with offsets in the complete sequences."""
        student, teacher = self.student, self.teacher
        data = b"".join(map(teacher.codec.token_bytes, ids))
        found: list[Pair | None] = []
        for number, (own, other) in enumerate(zip(contents, framed, strict=True)):
            if other is None or not data.startswith(other.data, other.place):
                found.append(None)
                continue
            alternatives = tuple(map(teacher.codec.control, teacher.instead_of_text(first=number == 0)))
            comparable = number > 0 or student.thinks or not teacher.thinks
            if own.kind == "call" and own.data != other.data:
                own, other = command_of(own), command_of(other)
            found.append(Pair(own.at(place.__add__), other.at(size.__add__), alternatives, comparable))
        return found


def _size(renderer: Renderer, ids: Sequence[int]) -> int:
    return sum(len(renderer.codec.token_bytes(id_)) for id_ in ids)
