"""Teachers that are given another problem's specification or reference solution."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from transformers import AutoTokenizer

from research.episodes import READ, call
from rtl_agent_gym import load_problems
from rtl_agent_gym.demo.shipped import RENDERER
from rtl_agent_gym.prompts import with_reference
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sources.families import SPECIFICATION, draw_members
from rtl_agent_gym.training.teachers import Judgement, Sampled, Teacher
from rtl_agent_gym.training.teachers import setup as teachers_setup

Value = TypeVar("Value")


@dataclass(frozen=True)
class OtherSpecification:
    """A teacher that reads another problem's specification where the student has read its own."""

    teacher: Teacher
    outputs: Mapping[str, tuple[list[int], list[int]]]
    """For each problem, its own specification and another one; see `as_output`."""

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`. The student's tokens stay the same."""
        own, other = self.outputs[sampled.problem]
        places, nothing = occurrences(own, sampled.tokens), [0.0] * len(other)
        read = replace(
            sampled,
            tokens=replaced(sampled.tokens, places, len(own), other),
            mask=replaced(sampled.mask, places, len(own), nothing),
            logprobs=replaced(sampled.logprobs, places, len(own), nothing),
        )
        judged = await self.teacher.judge(read)
        moved = [place + number * (len(other) - len(own)) for number, place in enumerate(places)]
        unknown = [0.0] * len(own)
        return Judgement(
            replaced(judged.kl, moved, len(other), unknown),
            replaced(judged.covered, moved, len(other), unknown),
            None if judged.top is None else replaced(judged.top, moved, len(other), [[] for _ in own]),
        )


def as_output(text: str, tokenizer: Any) -> list[int]:
    """The token ids of a command's output as the student reads it, up to the model's next turn."""
    read = [*tokenizer.encode(call(READ), add_special_tokens=False), tokenizer.eos_token_id]
    return get_renderer(RENDERER, tokenizer).observation_ids([text], read)


def occurrences(part: Sequence[int], ids: Sequence[int]) -> list[int]:
    """The positions of a sequence in another one, without those that overlap an earlier one."""
    found, wanted = list[int](), list(part)
    for place in range(len(ids) - len(wanted) + 1):
        if (not found or place >= found[-1] + len(wanted)) and list(ids[place : place + len(wanted)]) == wanted:
            found.append(place)
    return found


def replaced(values: Sequence[Value], places: Sequence[int], length: int, others: Sequence[Value]) -> list[Value]:
    """The values, with `others` in place of `length` values at each position of `places`."""
    found, end = list[Value](), 0
    for place in places:
        found += [*values[end:place], *others]
        end = place + length
    return [*found, *values[end:]]


def another_specification(source: str) -> dict[str, tuple[str, str]]:
    """For each problem, its specification and that of the source's next problem."""
    problems = load_problems(source)
    texts = [problem.context[SPECIFICATION] for problem in problems]
    pairs = zip(texts, [*texts[1:], texts[0]], strict=True)
    return {problem.id: pair for problem, pair in zip(problems, pairs, strict=True)}


def lying_document(source: str) -> dict[str, tuple[str, str]]:
    """For each problem, the document that its prompt names, and the same document with values of another problem."""
    every = zip(load_problems(source), load_problems(f"{source}&lie=documents"), draw_members(source), strict=True)
    found = {}
    for problem, lying, member in every:
        path = f"docs/{member.names['document']}.md"
        found[problem.id] = problem.context[path], lying.context[path]
    return found


@contextlib.contextmanager
def reading_something_else(texts: Mapping[str, tuple[str, str]], teacher: str) -> Iterator[None]:
    """Every teacher made in this context reads the second text of a problem where the student has read the first.

    Args:
        texts: Both texts, by problem.
        teacher: The folder of the teacher, for its tokenizer.
    """
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    outputs = {
        problem: (as_output(own, tokenizer), as_output(other, tokenizer)) for problem, (own, other) in texts.items()
    }
    make = teachers_setup.make_teachers

    async def made(*arguments: Any) -> dict[str, Teacher]:
        return {name: OtherSpecification(teacher, outputs) for name, teacher in (await make(*arguments)).items()}

    with mock.patch.object(teachers_setup, "make_teachers", made):
        yield


def another_reference(source: str, folder: Path) -> Path:
    """Write a file of hints: for each problem, the reference solution of the next problem."""
    problems = load_problems(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{folder.name}-hints.json"
    following = [*problems[1:], problems[0]]
    hints = {
        problem.id: with_reference("", other.golden or {}) for problem, other in zip(problems, following, strict=True)
    }
    path.write_text(json.dumps(hints), encoding="utf-8")
    return path
