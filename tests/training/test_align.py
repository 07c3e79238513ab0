"""Aligning two tokenizations of the same bytes, with both real vocabularies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtl_agent_gym.renderers import Renderer
from rtl_agent_gym.renderers.vocabularies import harmony_encoding
from rtl_agent_gym.training.teachers import Sampled
from rtl_agent_gym.training.teachers.cross import CrossTokens, Group, Passage, TokenOffsets, align_passage, spread_kl

from .test_structure import encode

TEXT = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(list(" \n\t{}[]:;<=module")))).filter(bool)
RTL = "module top (\n    input  wire [7:0] req,\n    output reg  valid  // größer → 字\n);\nendmodule\n"


def align(student_lengths: list[int], teacher_lengths: list[int], passage: Passage) -> list[Group]:
    return align_passage(TokenOffsets(student_lengths), TokenOffsets(teacher_lengths), passage)


def _ids(dialect: Renderer, text: str) -> list[int]:
    if dialect.name == "gpt_oss":
        return list(harmony_encoding().encode(text, disallowed_special=()))
    return dialect.codec.encode([text])


def _lengths(dialect: Renderer, ids: list[int]) -> list[int]:
    return [len(dialect.codec.token_bytes(id_)) for id_ in ids]


@settings(max_examples=60, deadline=None)
@given(text=TEXT, data=st.data())
def test_groups_spell_the_same_bytes_and_conserve_the_total(
    qwen: Renderer, harmony: Renderer, text: str, data: st.DataObject
) -> None:
    student, teacher = _ids(harmony, text), _ids(qwen, text)
    size = len(text.encode())
    groups = align(_lengths(harmony, student), _lengths(qwen, teacher), Passage(0, 0, size))
    for group in groups:
        assert b"".join(map(harmony.codec.token_bytes, student[slice(*group.student)])) == b"".join(
            map(qwen.codec.token_bytes, teacher[slice(*group.teacher)])
        )
    assert [g.student[0] for g in groups] == [0, *(g.student[1] for g in groups)][: len(groups)]  # no gap, no overlap
    assert groups[-1].student[1] == len(student)
    assert groups[-1].teacher[1] == len(teacher)
    value = st.floats(-20, 0)
    own = data.draw(st.lists(value, min_size=len(student), max_size=len(student)))
    other = data.draw(st.lists(value, min_size=len(teacher), max_size=len(teacher)))
    kl, covered = spread_kl(groups, own, other, len(student))
    assert sum(kl) == pytest.approx(sum(own) - sum(other), abs=1e-6)
    assert covered == [1.0] * len(student)


@settings(max_examples=30, deadline=None)
@given(text=TEXT)
def test_exact_for_identical_tokenizers(qwen: Renderer, text: str) -> None:
    ids = _ids(qwen, text)
    lengths = _lengths(qwen, ids)
    groups = align(lengths, lengths, Passage(0, 0, sum(lengths)))
    assert [(g.student, g.teacher) for g in groups] == [((n, n + 1), (n, n + 1)) for n in range(len(ids))]
    own, other = [-float(n) for n in range(len(ids))], [-0.5 * n for n in range(len(ids))]
    assert spread_kl(groups, own, other, len(ids))[0] == [a - b for a, b in zip(own, other, strict=True)]


def test_a_token_across_the_edge_of_a_passage_is_left_out() -> None:
    # The student's tokens end at 2, 5, 9; the passage is 3..9; the teacher's at 1, 3, 6 within it.
    groups = align([2, 3, 4], [1, 2, 3], Passage(3, 0, 6))
    assert [(g.student, g.teacher) for g in groups] == []  # 5 is the teacher's 2, where it has no boundary
    groups = align([2, 3, 4], [2, 4], Passage(3, 0, 6))
    assert [(g.student, g.teacher) for g in groups] == [((2, 3), (1, 2))]


def test_kl_of_a_group_is_shared_evenly() -> None:
    groups = align([1, 1], [2], Passage(0, 0, 2))
    assert spread_kl(groups, [-1.0, -2.0], [-1.0], 2) == ([-1.0, -1.0], [1.0, 1.0])


def _episode(dialect: Renderer, turns: list[str], outputs: list[str]) -> Sampled:
    tokens, mask = dialect.initial_ids("Be careful.", "Write it."), []
    mask = [0.0] * len(tokens)
    for number, turn in enumerate(turns):
        action = encode(dialect, turn)
        answer = dialect.observation_ids([outputs[number]], action) if number < len(outputs) else []
        tokens = [*tokens, *action, *answer]
        mask = [*mask, *[1.0] * len(action), *[0.0] * len(answer)]
    logprobs = [-(n % 7) * 0.3 * m for n, m in enumerate(mask)]
    return Sampled("p", tokens, mask, logprobs)


COMMAND = '{"command": "cat > rtl/top.sv <<\'EOF\'\\n' + RTL.replace("\n", "\\n") + 'EOF"}'
HARMONY_TURNS = [
    "<|channel|>analysis<|message|>Let me write größer.<|end|><|start|>assistant<|channel|>commentary"
    f" to=functions.execute_bash <|constrain|>json<|message|>{COMMAND}<|call|>",
    "<|channel|>final<|message|>It is written and compiles.<|return|>",
]
QWEN_TURNS = [
    "<think>\nLet me write größer.\n</think>\n\n<tool_call>\n"
    f'{{"name": "execute_bash", "arguments": {COMMAND}}}\n</tool_call><|im_end|>',
    "It is written and compiles.<|im_end|>",
]


class Recorder:
    """Replaces a teacher's weights: gives each token a log-probability by its id, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def compute_logprobs(self, prompt: Any) -> list[float | None]:
        tokens = prompt.to_ints()
        self.asked.append(tokens)
        return [None, *(-0.01 * (id_ % 50) for id_ in tokens[1:])]


@pytest.mark.parametrize("way", ["harmony to qwen", "qwen to harmony"])
async def test_an_episode_in_the_other_dialect(way: str, qwen: Renderer, harmony: Renderer) -> None:
    if way == "harmony to qwen":
        student, teacher, turns = harmony, qwen, HARMONY_TURNS
    else:
        student, teacher, turns = qwen, harmony, QWEN_TURNS
    sampled = _episode(student, turns, ["[no output, exit code 0]"])
    recorder: Any = Recorder()
    opening = teacher.initial_ids("Be careful.", "Write it.")
    judge = CrossTokens(recorder, student, teacher, {"p": lambda _: opening})
    found = await judge.judge(sampled)
    [asked] = recorder.asked  # one call an episode
    assert asked[: len(opening)] == opening
    text = b"".join(map(teacher.codec.token_bytes, asked)).decode()
    for part in ("Let me write größer.", COMMAND, "[no output, exit code 0]", "It is written and compiles."):
        assert part in text
    assert teacher.parse_ids(asked[len(opening) :]).commands  # the teacher reads a turn of its own kind

    translated = judge.translate(sampled)
    logprobs = [-0.01 * (id_ % 50) for id_ in asked]
    own = sum(sum(sampled.logprobs[slice(*g.student)]) for g in translated.groups)
    other = sum(sum(logprobs[slice(*g.teacher)]) for g in translated.groups)
    assert sum(found.kl) == pytest.approx(own - other, abs=1e-9)
    assert all(mask for mask, covered in zip(sampled.mask, found.covered, strict=True) if covered)
    spoken = sum(sampled.mask)
    assert sum(found.covered) > 0.6 * spoken  # the rest is framing
