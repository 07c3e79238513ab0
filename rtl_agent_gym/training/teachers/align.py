"""Aligns two tokenizations of the same bytes.

Both are cut where they have a token boundary at the same byte. Between two cuts, both have a group of tokens with the
same bytes, so their log-probabilities, summed over the group, can be compared. Tokens before the first common boundary
of a passage, or after the last, are left out.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Passage:
    """A sequence of bytes that both sides have."""

    student: int
    """Byte offset in the student's sequence."""
    teacher: int
    """Byte offset in the teacher's."""
    length: int
    """Bytes."""


@dataclass(frozen=True)
class Group:
    """Tokens ``student[0]:student[1]`` and ``teacher[0]:teacher[1]`` that can be compared.

    They have the same bytes, or express the same decision; see `structure`. The teacher's range is empty if the teacher
    has no token for a decision.
    """

    student: tuple[int, int]
    teacher: tuple[int, int]


class Tokens:
    """The byte offsets of the tokens in a sequence.

    Args:
        lengths_T: Length of each token in bytes.
    """

    def __init__(self, lengths_T: Sequence[int]) -> None:
        self._boundaries = [0, *accumulate(lengths_T)]

    def at(self, offset: int) -> int | None:
        """The first token that begins at a byte, or the number of tokens at the end; None if no token begins there."""
        place = bisect_left(self._boundaries, offset)
        return place if place < len(self._boundaries) and self._boundaries[place] == offset else None

    def start(self, token: int) -> int:
        """The byte at which a token begins; the number of tokens stands for the end."""
        return self._boundaries[token]

    def covering(self, begin: int, end: int) -> tuple[int, int]:
        """The range of tokens that overlap with these bytes."""
        return bisect_right(self._boundaries, begin) - 1, bisect_left(self._boundaries, end)

    def boundaries(self, begin: int, length: int) -> list[int]:
        """The distinct token boundaries in a passage, including its ends, as offsets from `begin`."""
        first, last = bisect_left(self._boundaries, begin), bisect_right(self._boundaries, begin + length)
        return sorted({boundary - begin for boundary in self._boundaries[first:last]})


def align_passage(student: Tokens, teacher: Tokens, passage: Passage) -> list[Group]:
    """The groups of tokens with the same bytes in a passage, as small as possible."""
    found: list[tuple[int, int]] = []
    for offset in student.boundaries(passage.student, passage.length):
        own, other = student.at(passage.student + offset), teacher.at(passage.teacher + offset)
        if own is not None and other is not None:
            found.append((own, other))
    return [Group((s0, s1), (t0, t1)) for (s0, t0), (s1, t1) in pairwise(found)]


def common_passages(student: bytes, teacher: bytes, student_place: int, teacher_place: int) -> list[Passage]:
    """The identical bytes of a content on both sides, which begins at the given places of their sequences.

    They are all identical, unless the teacher's tokenizer normalises: one that composes characters (NFC) turns an ``e``
    with a combining accent into one letter, and U+2126 into U+03A9. Such characters are left out.
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
            return passages  # changed in another way, so it is unknown where the next identical bytes begin
        at += len(other)
    if place > begun:
        passages.append(Passage(student_place + begun, teacher_place + at - (place - begun), place - begun))
    return passages


def _characters(text: str) -> Iterator[str]:
    """The text in pieces that are normalised independently: a character and those that combine with it."""
    begun = 0
    for place, char in enumerate(text):
        if place > begun and (char.isascii() or not _combines(char)):
            yield text[begun:place]
            begun = place
    if begun < len(text):
        yield text[begun:]


def _combines(char: str) -> bool:
    """Whether a character may combine with the one before it: marks do, and the later letters of Hangul."""
    return unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7ff"


def spread_kl(
    groups: Sequence[Group], student_logprobs: Sequence[float], teacher_logprobs: Sequence[float], size: int
) -> tuple[list[float], list[float]]:
    """Spread each group's KL evenly over the student's tokens in it, of which there are `size`.

    Returns:
        ``log p_student − log p_teacher`` of each of the student's tokens, 0 outside the groups; and for each token 1 if
        it is in a group, else 0. Spreading preserves each group's sum.
    """
    kl_T, covered_T = [0.0] * size, [0.0] * size
    for group in groups:
        (s0, s1), (t0, t1) = group.student, group.teacher
        difference = sum(student_logprobs[s0:s1]) - sum(teacher_logprobs[t0:t1])
        for token in range(s0, s1):
            kl_T[token] = difference / (s1 - s0)
            covered_T[token] = 1.0
    return kl_T, covered_T
