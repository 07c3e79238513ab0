"""The decisions of a turn that both dialects take, however each of them frames it.

A turn is contents with framing around them, and the framing decides: to think, to speak or to call the tool, to end
what was begun, to stop. The words differ, but the probability of the same decision can be compared. It is that of the
tokens that take it, and its KL goes to those of the student:

====================  =====================================  ============================
decision              gpt-oss                                Qwen
====================  =====================================  ============================
think                 ``analysis``                           ``<think>``
call                  ``commentary to``                      ``<tool_call>``
answer                ``final``                              the answer's first token
speak before a call   ``commentary<|message|>``              the text's first token
end the thinking      ``<|end|>``                            a line feed, ``</think>``
end the call, stop    ``<|call|>``                           ``}``, ``</tool_call><|im_end|>``
end the answer, stop  ``<|return|>``                         ``<|im_end|>``
====================  =====================================  ============================

Other framing, such as a tool's name, follows from the decision and is left out: whichever of several spellings a
dialect prefers says nothing about what it wants.

Where the student decides by a token and the teacher by an answer's first token alone, that one says two things at once:
that the teacher would answer, and in which word. `Doubt` tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...renderers.turns import Part
from .align import Group, Tokens, align_passage, common_passages


@dataclass(frozen=True)
class Doubt:
    """A decision to answer for which the teacher has no token.

    Its probability is what the things that it could have done instead leave over. That is asked for where the answer's
    first token does not tell by itself.
    """

    decision: Group
    """The student's tokens that take it; none of the teacher's."""
    first: Group
    """The first group of the answer: its teacher's log-probability holds the decision's."""
    instead: tuple[int, ...]
    """The tokens that the teacher could have begun with instead, to call the tool for one."""

    @property
    def place(self) -> int:
        """The teacher's token before which it decides."""
        return self.first.teacher[0]

    def logprob(self, first_token: float, instead: Sequence[float]) -> float:
        """The log-probability that the teacher answers; at least that of the answer's first token.

        Args:
            first_token: The teacher's log-probability of that.
            instead: Those of `instead`; empty where they were not asked for.
        """
        if not instead:
            return first_token
        rest = 1.0 - sum(math.exp(min(0.0, one)) for one in instead)
        return max(first_token, math.log(rest) if rest > 0 else -math.inf)


@dataclass(frozen=True)
class Pair:
    """A content on both sides; offsets are bytes of the whole sequences."""

    student: Part
    teacher: Part
    instead: tuple[int, ...] = ()
    """What the teacher could have begun with instead of a text, where no token says that it is one."""
    chosen: bool = True
    """Whether to begin it is a decision that both take. What a turn begins with is not where the teacher could have
    thought first and the student cannot: whatever it did would look unlikely."""


@dataclass(frozen=True)
class Matched:
    """What two turns have in common."""

    groups: list[Group]
    doubts: list[Doubt]


def match_turn(student: Tokens, teacher: Tokens, pairs: Sequence[Pair | None]) -> Matched:
    """The groups of one turn: contents where their bytes are equal, and the decisions around them.

    Args:
        student: The student's whole sequence.
        teacher: The teacher's.
        pairs: The turn's contents in order; None for one that the teacher cannot say.
    """
    groups: list[Group] = []
    doubts: list[Doubt] = []
    same = True  # whether both stand at the same point of the same turn: not for certain behind a call
    for pair in pairs:
        if pair is not None:
            spelled = opened = _spelled(student, teacher, pair)
            if pair.chosen and same:
                opened, doubt = _opened(student, teacher, pair, spelled)
                doubts += doubt
            groups += opened + _closed(student, teacher, pair, spelled)
        same = pair is not None and pair.student.kind != "call"
    return Matched(groups, doubts)


def _spelled(student: Tokens, teacher: Tokens, pair: Pair) -> list[Group]:
    own, other = pair.student, pair.teacher
    passages = common_passages(own.data, other.data, own.place, other.place)
    return [group for passage in passages for group in align_passage(student, teacher, passage)]


def _opened(student: Tokens, teacher: Tokens, pair: Pair, spelled: list[Group]) -> tuple[list[Group], list[Doubt]]:
    """The content's groups with the decision to begin it."""
    own, other = pair.student, pair.teacher
    if own.kind != other.kind or (own.opens is None and other.opens is None):
        return spelled, []
    if own.opens is not None and other.opens is not None:
        return [Group(student.over(*own.opens), teacher.over(*other.opens)), *spelled], []
    first = spelled[0] if spelled else None
    starts = (student.at(own.place), teacher.at(other.place))
    if own.kind != "text" or first is None or (first.student[0], first.teacher[0]) != starts:
        return spelled, []
    if other.opens is not None:
        begin, _ = teacher.over(*other.opens)
        return [Group(first.student, (begin, first.teacher[1])), *spelled[1:]], []
    if own.opens is None or not own.stops or not pair.instead:
        return spelled, []
    decision = Group(student.over(*own.opens), (first.teacher[0], first.teacher[0]))
    return [decision, *spelled], [Doubt(decision, first, pair.instead)]


def _closed(student: Tokens, teacher: Tokens, pair: Pair, spelled: list[Group]) -> list[Group]:
    """The decision to end the content, together with what is left of the content behind its last group."""
    own, other = pair.student, pair.teacher
    if own.ends is None or other.ends is None or own.kind != other.kind or own.stops != other.stops:
        return []
    if spelled:
        mine, theirs = spelled[-1].student[1], spelled[-1].teacher[1]
        left = own.data[student.edge(mine) - own.place :], other.data[teacher.edge(theirs) - other.place :]
    else:
        mine, theirs = student.over(own.place, own.ends)[0], teacher.over(other.place, other.ends)[0]
        left = own.data, other.data
    end = (student.at(own.ends), teacher.at(other.ends))
    if left[0] != left[1] or end[0] is None or end[1] is None:
        return []
    return [Group((mine, end[0]), (theirs, end[1]))]
