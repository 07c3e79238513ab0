"""Two tokenizations of the same bytes, brought together.

Where both have a token boundary at the same byte, a group of tokens ends on either side, and what the groups say can be
compared: each side's log-probability of a group is the sum over its tokens, for both are the probability of the same
bytes. What lies before the first common boundary of a passage, or behind the last, has no counterpart and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Passage:
    """A run of bytes that both sides have: where it begins on each, and how long it is."""

    student: int
    """Byte offset in the student's sequence."""
    teacher: int
    """Byte offset in the teacher's."""
    length: int
    """Bytes."""


@dataclass(frozen=True)
class Group:
    """Tokens ``student[0]:student[1]`` and ``teacher[0]:teacher[1]`` spell the same bytes."""

    student: tuple[int, int]
    teacher: tuple[int, int]


def boundaries(lengths_T: Iterable[int]) -> list[int]:
    """The byte offsets between tokens, from 0 to the end; one more than there are tokens."""
    return [0, *accumulate(lengths_T)]


def align(student_lengths: Sequence[int], teacher_lengths: Sequence[int], passages: Sequence[Passage]) -> list[Group]:
    """The groups of tokens that spell the same bytes, as small as they can be, in the student's order.

    Args:
        student_lengths: Bytes of each of the student's tokens; the sequence may hold more than the passages.
        teacher_lengths: The same for the teacher.
        passages: What both have in common, in the student's order and without overlap.
    """
    at_student = _first_token_at(student_lengths)
    at_teacher = _first_token_at(teacher_lengths)
    groups: list[Group] = []
    for passage in passages:
        common = sorted(
            offset
            for offset in (place - passage.student for place in _within(at_student, passage.student, passage.length))
            if offset + passage.teacher in at_teacher
        )
        for begin, end in pairwise(common):
            groups.append(
                Group(
                    (at_student[passage.student + begin], at_student[passage.student + end]),
                    (at_teacher[passage.teacher + begin], at_teacher[passage.teacher + end]),
                )
            )
    return groups


def _first_token_at(lengths_T: Sequence[int]) -> dict[int, int]:
    """For each boundary, the token that begins there. Of tokens without bytes, the first; the end counts as a token."""
    starts: dict[int, int] = {}
    for token, place in enumerate(boundaries(lengths_T)):
        starts.setdefault(place, token)
    return starts


def _within(starts: dict[int, int], begin: int, length: int) -> list[int]:
    if length > len(starts):
        return [place for place in starts if begin <= place <= begin + length]
    return [place for place in range(begin, begin + length + 1) if place in starts]


def spread_kl(
    groups: Sequence[Group], student_logprobs: Sequence[float], teacher_logprobs: Sequence[float], size: int
) -> tuple[list[float], list[float]]:
    """Each group's KL, shared out evenly among the student's tokens in it.

    Args:
        groups: From `align`.
        student_logprobs: Of each of the student's tokens, in nats.
        teacher_logprobs: Of each of the teacher's.
        size: Tokens of the student's sequence.

    Returns:
        ``log p_student − log p_teacher`` of each of the student's tokens, 0 outside the groups; and for each 1 if it is
        in a group, else 0. The sum of the first is exactly what the groups' sums differ by, up to rounding.
    """
    kl_T, covered_T = [0.0] * size, [0.0] * size
    for group in groups:
        (s0, s1), (t0, t1) = group.student, group.teacher
        difference = sum(student_logprobs[s0:s1]) - sum(teacher_logprobs[t0:t1])
        for token in range(s0, s1):
            kl_T[token] = difference / (s1 - s0)
            covered_T[token] = 1.0
    return kl_T, covered_T
