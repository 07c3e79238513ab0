"""Aligns the decisions of a turn that two dialects write differently.

A turn consists of contents with format tokens around them. Some of these tokens express a decision: to think, to answer
or to call the tool, to end a content, to stop. The tokens differ between dialects, but the probabilities of the same
decision can be compared. The KL of a decision goes to the student's tokens for it:

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

Other format tokens, such as a tool's name, follow from the decision and are left out.

If the student has a token for the decision to answer and the teacher does not, the teacher's probability of the
answer's first token is that of two things: to answer, and to begin with this word. `ImplicitAnswer` separates them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...renderers.protocol import Part
from .align import Group, Tokens, align_passage, common_passages


@dataclass(frozen=True)
class ImplicitAnswer:
    """A decision to answer for which the teacher has no token.

    Its probability is 1 minus the probabilities of the alternatives. They are only computed if the answer's first token
    is not likely enough by itself.
    """

    decision: Group
    """The student's tokens for it; none of the teacher's."""
    first: Group
    """The first group of the answer. Its teacher's log-probability includes the decision's."""
    alternatives: tuple[int, ...]
    """The tokens that would begin something else, such as a call."""

    @property
    def place(self) -> int:
        """The index of the teacher's token before which it decides."""
        return self.first.teacher[0]

    def logprob(self, first_token: float, alternatives: Sequence[float]) -> float:
        """The log-probability that the teacher answers; at least that of the answer's first token.

        Args:
            first_token: The teacher's log-probability of the answer's first token.
            alternatives: The log-probabilities of `alternatives`; empty if they were not computed.
        """
        if not alternatives:
            return first_token
        rest = 1.0 - sum(math.exp(min(one, 0.0)) for one in alternatives)
        if math.isnan(rest):
            return rest  # unknown
        return max(first_token, math.log(rest) if rest > 0 else -math.inf)


@dataclass(frozen=True)
class Pair:
    """A content on both sides; offsets are bytes of the complete sequences."""

    student: Part
    teacher: Part
    alternatives: tuple[int, ...] = ()
    """If the teacher has no token that begins a text: the tokens that would begin something else."""
    comparable: bool = True
    """Whether beginning it is the same decision on both sides. It is not at a turn's beginning if the teacher may think
    there and the student cannot: whatever the student does would look unlikely to the teacher."""


def match_turns(
    student: Tokens, teacher: Tokens, turns: Sequence[Sequence[Pair | None]]
) -> tuple[list[Group], list[ImplicitAnswer]]:
    """Align turns: contents where their bytes are equal, and the decisions around them.

    `turns` has the contents of each turn in order; None for one that the teacher's dialect cannot express.
    """
    groups: list[Group] = []
    implicit: list[ImplicitAnswer] = []
    for pairs in turns:
        same = True  # whether both are at the same point of the turn, which is uncertain after a call
        for pair in pairs:
            if pair is not None:
                content = opened = _content(student, teacher, pair)
                if pair.comparable and same:
                    opened, answers = _opened(student, teacher, pair, content)
                    implicit += answers
                groups += opened + _closed(student, teacher, pair, content)
            same = pair is not None and pair.student.kind != "call"
    return groups, implicit


def _content(student: Tokens, teacher: Tokens, pair: Pair) -> list[Group]:
    own, other = pair.student, pair.teacher
    passages = common_passages(own.data, other.data, own.place, other.place)
    return [group for passage in passages for group in align_passage(student, teacher, passage)]


def _opened(
    student: Tokens, teacher: Tokens, pair: Pair, content: list[Group]
) -> tuple[list[Group], list[ImplicitAnswer]]:
    """The content's groups with the decision to begin it."""
    own, other = pair.student, pair.teacher
    if own.kind != other.kind or (own.opens is None and other.opens is None):
        return content, []
    if own.opens is not None and other.opens is not None:
        return [Group(student.covering(*own.opens), teacher.covering(*other.opens)), *content], []
    first = content[0] if content else None
    starts = (student.at(own.place), teacher.at(other.place))
    if own.kind != "text" or first is None or (first.student[0], first.teacher[0]) != starts:
        return content, []
    if other.opens is not None:
        begin, _ = teacher.covering(*other.opens)
        return [Group(first.student, (begin, first.teacher[1])), *content[1:]], []
    if own.opens is None or not own.stops or not pair.alternatives:
        return content, []
    decision = Group(student.covering(*own.opens), (first.teacher[0], first.teacher[0]))
    return [decision, *content], [ImplicitAnswer(decision, first, pair.alternatives)]


def _closed(student: Tokens, teacher: Tokens, pair: Pair, content: list[Group]) -> list[Group]:
    """The decision to end the content, together with the rest of the content after its last group."""
    own, other = pair.student, pair.teacher
    if own.ends is None or other.ends is None or own.kind != other.kind or own.stops != other.stops:
        return []
    if content:
        mine, theirs = content[-1].student[1], content[-1].teacher[1]
        left = own.data[student.start(mine) - own.place :], other.data[teacher.start(theirs) - other.place :]
    else:
        mine, theirs = student.covering(own.place, own.ends)[0], teacher.covering(other.place, other.ends)[0]
        left = own.data, other.data
    end = (student.at(own.ends), teacher.at(other.ends))
    if left[0] != left[1] or end[0] is None or end[1] is None:
        return []
    return [Group((mine, end[0]), (theirs, end[1]))]
