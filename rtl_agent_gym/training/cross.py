"""A teacher with another tokenizer and another dialect.

The conversation is put into the teacher's dialect, the teacher scores the whole of it in one call, and what it says is
brought back to the student's tokens: over the bytes that both have, tokens are grouped between common boundaries, a
group's KL is the difference of the sums of its log-probabilities, and its tokens share it. Framing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tinker

from ..engines.protocol import Sampler
from ..errors import UsageError
from .align import Group, Passage, align, spread_kl
from .dialects import Dialect
from .teachers import Judgement, Sampled


@dataclass(frozen=True)
class Translated:
    """An episode in the teacher's tokens, and which tokens of both spell the same bytes."""

    tokens: list[int]
    groups: list[Group]


class CrossTokens:
    """Judges episodes of a student with another vocabulary.

    Args:
        sampler: The teacher's weights.
        student: The student's dialect.
        teacher: The teacher's.
        prompts: For each problem the ids of the teacher's opening.
    """

    def __init__(
        self, sampler: Sampler, student: Dialect, teacher: Dialect, prompts: Mapping[str, Sequence[int]]
    ) -> None:
        self._sampler, self._student, self._teacher, self._prompts = sampler, student, teacher, prompts

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`."""
        translated = self.translate(sampled)
        found = await self._sampler.compute_logprobs(tinker.ModelInput.from_ints(translated.tokens))
        logprobs = [0.0 if value is None else value for value in found]
        # A translation longer than the teacher's context is scored as far as it goes.
        groups = [group for group in translated.groups if None not in found[group.teacher[0] : group.teacher[1]]]
        return Judgement(*spread_kl(groups, sampled.logprobs, logprobs, len(sampled.tokens)))

    def translate(self, sampled: Sampled) -> Translated:
        """The episode in the teacher's dialect. Raises `UsageError` for a problem without an opening."""
        if sampled.problem not in self._prompts:
            raise UsageError(f"the teacher has no opening for {sampled.problem}")
        student, teacher = self._student, self._teacher
        tokens = list(self._prompts[sampled.problem])
        size = sum(len(teacher.token_bytes(id_)) for id_ in tokens)
        place, passages = 0, []
        runs = list(_runs(sampled))
        action: list[int] = []
        for number, (ids, by_student) in enumerate(runs):
            if by_student:
                contents = student.contents(ids)
                framed = teacher.frame(contents)
                for content, offset in zip(contents, framed.places, strict=True):
                    if offset is not None:
                        passages.append(Passage(place + content.place, size + offset, len(content.data)))
                action = new = framed.ids
            elif number:
                outputs = student.outputs(ids)
                new = teacher.renderer.observation_ids(outputs or [""], action)
            else:
                new = []  # the opening, which the teacher has in its own words
            tokens += new
            size += sum(len(teacher.token_bytes(id_)) for id_ in new)
            place += sum(len(student.token_bytes(id_)) for id_ in ids)
        lengths = [len(student.token_bytes(id_)) for id_ in sampled.tokens]
        groups = align(lengths, [len(teacher.token_bytes(id_)) for id_ in tokens], passages)
        return Translated(tokens, groups)


def _runs(sampled: Sampled) -> list[tuple[list[int], bool]]:
    """The episode's runs of tokens, the student's and the others' in turn."""
    runs: list[tuple[list[int], bool]] = []
    for id_, by_student in zip(sampled.tokens, sampled.mask, strict=True):
        if not runs or runs[-1][1] != bool(by_student):
            runs.append(([], bool(by_student)))
        runs[-1][0].append(id_)
    return runs
