"""A teacher with another tokenizer and another dialect.

The conversation is translated to the teacher's dialect and scored in one call. Tokens with the same bytes on both sides
are aligned in groups, and so are format tokens that express the same decision. A group's KL is the difference between
the two sums of log-probabilities, spread evenly over the student's tokens. Other tokens have no KL.

**Contents.** Two tokenizations of the same bytes are cut at token boundaries that both have. Between two cuts, both
have a group of tokens with the same bytes, so their log-probabilities, summed over the group, can be compared. Tokens
before the first common boundary of a passage, or after the last, are left out. If one dialect writes a command in JSON
and the other verbatim, their bytes are equal between the escapes.

**Decisions.** A turn consists of contents with format tokens around them. Some of these tokens express a decision: to
think, to answer or to call the tool, to end a content, to stop. The tokens differ between dialects, but the
probabilities of the same decision can be compared. A decision's KL is assigned to the student's tokens for it:

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

If only the student has a token for the decision to answer, the teacher's probability of the answer's first token is
that of two things: to answer, and to begin with this token. `ImplicitAnswer` separates them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import tinker

from ...engines.protocol import Sampler
from ...errors import UsageError
from ...renderers import Renderer
from ...renderers.protocol import Part
from . import Judgement, Prompt, Sampled

SURE = math.log(0.5)
"""From this log-probability of an answer's first token on, the teacher would surely answer: no more calls are made."""


@dataclass(frozen=True)
class Passage:
    """Bytes that both sides have in common: the offset on each side, and the length, in bytes."""

    student: int
    teacher: int
    length: int


@dataclass(frozen=True)
class Group:
    """Tokens ``student[0]:student[1]`` and ``teacher[0]:teacher[1]`` that can be compared.

    They have the same bytes, or express the same decision. The teacher's range is empty if it has no token for it.
    """

    student: tuple[int, int]
    teacher: tuple[int, int]


class TokenOffsets:
    """The byte offsets of the tokens in a sequence, from the tokens' lengths in bytes."""

    def __init__(self, lengths_T: Sequence[int]) -> None:
        self._boundaries = [0, *accumulate(lengths_T)]

    def at(self, offset: int) -> int | None:
        """The first token that begins at this byte (the number of tokens, at the end); None if none begins there."""
        place = bisect_left(self._boundaries, offset)
        return place if place < len(self._boundaries) and self._boundaries[place] == offset else None

    def start(self, token: int) -> int:
        """The byte at which a token begins; for the number of tokens, the end."""
        return self._boundaries[token]

    def covering(self, begin: int, end: int) -> tuple[int, int]:
        """The range of tokens that overlap with these bytes."""
        return bisect_right(self._boundaries, begin) - 1, bisect_left(self._boundaries, end)

    def boundaries(self, begin: int, length: int) -> list[int]:
        """The distinct token boundaries in a passage, including its ends, as offsets from `begin`."""
        first, last = bisect_left(self._boundaries, begin), bisect_right(self._boundaries, begin + length)
        return sorted({boundary - begin for boundary in self._boundaries[first:last]})


def align_passage(student: TokenOffsets, teacher: TokenOffsets, passage: Passage) -> list[Group]:
    """The smallest groups of tokens with the same bytes in a passage."""
    found: list[tuple[int, int]] = []
    for offset in student.boundaries(passage.student, passage.length):
        own, other = student.at(passage.student + offset), teacher.at(passage.teacher + offset)
        if own is not None and other is not None:
            found.append((own, other))
    return [Group((s0, s1), (t0, t1)) for (s0, t0), (s1, t1) in pairwise(found)]


def common_passages(student: bytes, teacher: bytes, student_place: int, teacher_place: int) -> list[Passage]:
    """The identical bytes of a content on both sides; the content begins at the given byte offsets of their sequences.

    All bytes are identical unless the teacher's tokenizer normalises: composing characters (NFC) turns an ``e`` with a
    combining accent into a single letter, and U+2126 into U+03A9. Such characters are left out.
    """
    if student == teacher:
        return [Passage(student_place, teacher_place, len(student))]
    passages: list[Passage] = []
    at, begun, place = 0, 0, 0  # offset in the teacher's bytes; in the student's: of the passage, of the next character
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
            return passages  # changed in another way: it is unknown where the next identical bytes begin
        at += len(other)
    if place > begun:
        passages.append(Passage(student_place + begun, teacher_place + at - (place - begun), place - begun))
    return passages


_COMMAND = re.compile(r'"command"\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPES = re.compile(r"((?:\\u[0-9a-fA-F]{4})+|\\[^u])", re.DOTALL)


def command_of(call: Part) -> Part:
    """A call whose body is only the command: verbatim, or the contents of its JSON string."""
    found = None if call.raw else _COMMAND.search(call.body)
    if found is None:
        return call
    before = call.body[: found.start(1)].encode("utf-8", "surrogateescape")
    return replace(call, body=found[1], place=call.place + len(before))


def escaped_passages(escaped: str, plain: bytes, escaped_place: int, plain_place: int) -> list[Passage]:
    """The bytes that the contents of a JSON string (as the student's) and its decoded text have in common.

    The passages end at the first difference.
    """
    found = []
    own = other = 0
    for number, run in enumerate(_ESCAPES.split(escaped)):
        data = run.encode("utf-8", "surrogateescape")
        try:
            meant = json.loads(f'"{run}"').encode("utf-8") if number % 2 else data
        except ValueError:  # not a JSON escape, or half of a surrogate pair
            break
        if not plain.startswith(meant, other):
            break
        if meant and not number % 2:
            found.append(Passage(escaped_place + own, plain_place + other, len(data)))
        own, other = own + len(data), other + len(meant)
    return found


def _characters(text: str) -> Iterator[str]:
    """The text in pieces that are normalised independently: a character with the characters that combine with it."""
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
    """Spread each group's KL evenly over the student's tokens in the group. `size` is the number of student tokens.

    Returns:
        ``log p_student − log p_teacher`` of each student token, 0 outside the groups; and for each token 1 if it is in
        a group, else 0. Spreading preserves each group's sum.
    """
    kl_T, covered_T = [0.0] * size, [0.0] * size
    for group in groups:
        (s0, s1), (t0, t1) = group.student, group.teacher
        difference = sum(student_logprobs[s0:s1]) - sum(teacher_logprobs[t0:t1])
        for token in range(s0, s1):
            kl_T[token] = difference / (s1 - s0)
            covered_T[token] = 1.0
    return kl_T, covered_T


@dataclass(frozen=True)
class ImplicitAnswer:
    """A decision to answer for which the teacher has no token.

    Its probability is 1 minus the probabilities of the alternatives, which are only computed if the answer's first
    token is not likely enough by itself.
    """

    decision: Group
    """The student's tokens for the decision; the teacher's range is empty."""
    first: Group
    """The first group of the answer. The teacher's log-probability of it includes the decision's."""
    alternatives: tuple[int, ...]
    """The tokens that would begin something else, such as a call."""

    def logprob(self, first_token: float, alternatives: Sequence[float]) -> float:
        """The log-probability that the teacher answers; at least that of the answer's first token.

        `alternatives` are the alternatives' log-probabilities; empty if they were not computed.
        """
        if not alternatives:
            return first_token
        rest = 1.0 - sum(math.exp(min(logprob, 0.0)) for logprob in alternatives)
        if math.isnan(rest):
            return rest  # unknown
        return max(first_token, math.log(rest) if rest > 0 else -math.inf)


@dataclass(frozen=True)
class Pair:
    """A content on both sides; offsets are bytes of the complete sequences."""

    student: Part
    teacher: Part
    alternatives: tuple[int, ...] = ()
    """The teacher's tokens that would begin something else, if it has no token that begins a text."""
    comparable: bool = True
    """Whether beginning the content is the same decision on both sides. At the start of a turn it is not if the teacher
    may think there and the student cannot: whatever the student begins with would look unlikely to the teacher."""


def match_turns(
    student: TokenOffsets, teacher: TokenOffsets, turns: Sequence[Sequence[Pair | None]]
) -> tuple[list[Group], list[ImplicitAnswer]]:
    """Align turns: contents where their bytes are equal, and the decisions around contents.

    `turns` has the contents of each turn in order, with None for contents that the teacher's dialect cannot express.
    """
    groups: list[Group] = []
    implicit: list[ImplicitAnswer] = []
    for pairs in turns:
        same = True  # whether both sides are at the same point of the turn; uncertain after a call
        for pair in pairs:
            if pair is not None:
                content = opened = _content(student, teacher, pair)
                if pair.comparable and same:
                    opened, answers = _opened(student, teacher, pair, content)
                    implicit += answers
                groups += opened + _closed(student, teacher, pair, content)
            same = pair is not None and pair.student.kind != "call"
    return groups, implicit


def _content(student: TokenOffsets, teacher: TokenOffsets, pair: Pair) -> list[Group]:
    own, other = pair.student, pair.teacher
    if own.raw == other.raw or own.kind != "call":
        passages = common_passages(own.data, other.data, own.place, other.place)
    elif other.raw:
        passages = escaped_passages(own.body, other.data, own.place, other.place)
    else:
        found = escaped_passages(other.body, own.data, other.place, own.place)
        passages = [Passage(turned.teacher, turned.student, turned.length) for turned in found]
    return [group for passage in passages for group in align_passage(student, teacher, passage)]


def _opened(
    student: TokenOffsets, teacher: TokenOffsets, pair: Pair, content: list[Group]
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


def _closed(student: TokenOffsets, teacher: TokenOffsets, pair: Pair, content: list[Group]) -> list[Group]:
    """The group of the decision to end the content, including the rest of the content after its last group."""
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
    student: Renderer
    teacher: Renderer
    prompts: Mapping[str, Prompt]
    """By problem."""

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
        place = answer.first.teacher[0]  # index of the token before which the teacher decides
        first = logprobs[place]
        if first >= SURE:
            return answer.logprob(first, [])
        calls = [self._score([*tokens[:place], id_]) for id_ in answer.alternatives]
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
