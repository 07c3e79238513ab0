"""Two tokenizations of the same bytes, brought together.

Where both have a token boundary at the same byte, a group of tokens ends on either side, and what the groups say can be
compared: each side's log-probability of a group is the sum over its tokens, for both are the probability of the same
bytes. What lies before the first common boundary of a passage, or behind the last, has no counterpart and is left out.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
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
    """Tokens ``student[0]:student[1]`` and ``teacher[0]:teacher[1]`` that say the same.

    They spell the same bytes, or take the same decision; see `structure`. A decision that the teacher takes without a
    token of its own has none: both numbers are the same.
    """

    student: tuple[int, int]
    teacher: tuple[int, int]


def boundaries(lengths_T: Iterable[int]) -> list[int]:
    """The byte offsets between tokens, from 0 to the end; one more than there are tokens."""
    return [0, *accumulate(lengths_T)]


class Tokens:
    """Where the tokens of a sequence lie in its bytes."""

    def __init__(self, lengths_T: Sequence[int]) -> None:
        self._edges = boundaries(lengths_T)

    def at(self, offset: int) -> int | None:
        """The first token that begins at a byte; the end counts as one. None where no token begins."""
        place = bisect_left(self._edges, offset)
        return place if place < len(self._edges) and self._edges[place] == offset else None

    def edge(self, token: int) -> int:
        """The byte at which a token begins; the number of tokens stands for the end."""
        return self._edges[token]

    def over(self, begin: int, end: int) -> tuple[int, int]:
        """The tokens that hold some of these bytes, of which there is at least one."""
        return bisect_right(self._edges, begin) - 1, bisect_left(self._edges, end)

    def within(self, begin: int, length: int) -> list[int]:
        """The offsets, counted from `begin`, of the boundaries in a passage, its ends included; none twice."""
        first, last = bisect_left(self._edges, begin), bisect_right(self._edges, begin + length)
        return sorted({edge - begin for edge in self._edges[first:last]})


def align(student_lengths: Sequence[int], teacher_lengths: Sequence[int], passages: Sequence[Passage]) -> list[Group]:
    """The groups of tokens that spell the same bytes, as small as they can be, in the student's order.

    Args:
        student_lengths: Bytes of each of the student's tokens; the sequence may hold more than the passages.
        teacher_lengths: The same for the teacher.
        passages: What both have in common, in the student's order and without overlap.
    """
    student, teacher = Tokens(student_lengths), Tokens(teacher_lengths)
    return [group for passage in passages for group in align_passage(student, teacher, passage)]


def align_passage(student: Tokens, teacher: Tokens, passage: Passage) -> list[Group]:
    """The groups of one passage."""
    found: list[tuple[int, int]] = []
    for offset in student.within(passage.student, passage.length):
        mine, other = student.at(passage.student + offset), teacher.at(passage.teacher + offset)
        if mine is not None and other is not None:
            found.append((mine, other))
    return [Group((s0, s1), (t0, t1)) for (s0, t0), (s1, t1) in pairwise(found)]


def common_passages(student: bytes, teacher: bytes, student_place: int, teacher_place: int) -> list[Passage]:
    """What is byte for byte the same in a content and in what the teacher's vocabulary made of it.

    All of it, unless the vocabulary normalises: one that composes characters (NFC) turns an ``e`` with a combining
    accent into one letter, and U+2126 into U+03A9. Those characters are left out, and what lies between them is kept.

    Args:
        student: The content as the student said it.
        teacher: The same as the teacher's tokens spell it.
        student_place: Where it begins on the student's side.
        teacher_place: Where it begins on the teacher's.
    """
    if student == teacher:
        return [Passage(student_place, teacher_place, len(student))]
    passages: list[Passage] = []
    at, begun, place = 0, 0, 0  # in the teacher's bytes; in the student's: of the passage, and of the next character
    for piece in _characters(student.decode("utf-8", "surrogateescape")):
        own = piece.encode("utf-8", "surrogateescape")
        if teacher.startswith(own, at):
            at, place = at + len(own), place + len(own)
            continue
        if place > begun:
            passages.append(Passage(student_place + begun, teacher_place + at - (place - begun), place - begun))
        place += len(own)
        begun = place
        other = unicodedata.normalize("NFC", piece).encode("utf-8", "surrogateescape")
        if not teacher.startswith(other, at):
            return passages  # changed in another way: nothing tells where the two meet again
        at += len(other)
    if place > begun:
        passages.append(Passage(student_place + begun, teacher_place + at - (place - begun), place - begun))
    return passages


def _characters(text: str) -> Iterator[str]:
    """The text in pieces which a normalisation changes each on its own: a character and what combines with it."""
    begun = 0
    for place, char in enumerate(text):
        if place > begun and (char.isascii() or not _combines(char)):
            yield text[begun:place]
            begun = place
    if begun < len(text):
        yield text[begun:]


def _combines(char: str) -> bool:
    """Whether a character may become one with what stands before it: marks do, and the later letters of Hangul."""
    return unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7ff"


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
