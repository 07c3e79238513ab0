"""What a token's KL counts for by its kind: where a teacher's style differs, thinking would outweigh all else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .cross import runs
from .dialects import Dialect, Kind
from .teachers import Judgement, Sampled, Teacher


class WeightedKinds:
    """A teacher whose judgement says what each token counts for.

    Args:
        teacher: Who judges.
        student: The student's dialect, which tells the kinds.
        weights: By kind; a token of no kind, such as a control token, counts fully.
    """

    def __init__(self, teacher: Teacher, student: Dialect, weights: Mapping[Kind, float]) -> None:
        self._teacher, self._student, self._weights = teacher, student, weights

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`."""
        judgement = await self._teacher.judge(sampled)
        counts: list[float] = []
        for ids, by_student in runs(sampled):
            kinds = self._student.kinds(ids) if by_student else [None] * len(ids)
            counts += [1.0 if kind is None else self._weights[kind] for kind in kinds]
        return replace(judgement, weights=counts)
