"""Decisions that two dialects write differently, with both real vocabularies and scripted models."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_tokenizer
from rtl_agent_gym.training.advantages import token_advantages
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.teachers import Judgement, Sampled
from rtl_agent_gym.training.teachers.cross import CrossTokens, Translated

KL_ALONE = TrainOptions(reward_coef=0.0, kl_penalty_coef=1.0)
CALLS = "<|start|>assistant<|channel|>commentary to=functions.execute_bash <|constrain|>json<|message|>"
ARGUMENTS = '{"command": "ls rtl"}'
HARMONY = {
    "answers": "<|channel|>analysis<|message|>It is done.<|end|><|start|>assistant<|channel|>final<|message|>"
    "Everything works.<|return|>",
    "calls": f"<|channel|>analysis<|message|>It is done.<|end|>{CALLS}{ARGUMENTS}<|call|>",
}
QWEN = {
    "answers": "<think>\nIt is done.\n</think>\n\nEverything works.<|im_end|>",
    "calls": "<think>\nIt is done.\n</think>\n\n<tool_call>\n"
    f'{{"name": "execute_bash", "arguments": {ARGUMENTS}}}\n</tool_call><|im_end|>',
}


def encode(dialect: Renderer, text: str) -> list[int]:
    if dialect.name == "gpt_oss":
        return list(harmony_encoding().encode(text, allowed_special="all"))
    return list(qwen3_tokenizer().encode(text, add_special_tokens=False).ids)


def spelled(dialect: Renderer, ids: list[int]) -> list[str]:
    return [dialect.codec.token_bytes(id_).decode(errors="replace") for id_ in ids]


@dataclass
class Model:
    """A teacher by its choices: the probabilities of some tokens after a text with this end; the others share the rest.

    Elsewhere each token has a probability of 0.9.
    """

    dialect: Renderer
    choices: dict[str, dict[str, float]]
    asked: list[list[int]] = field(default_factory=list)
    context: int | None = None
    """Its context length in tokens."""

    async def compute_logprobs(self, prompt: Any) -> list[float | None]:
        ids = prompt.to_ints()
        self.asked.append(ids)
        texts = spelled(self.dialect, ids)
        found: list[float | None] = [None]
        for place in range(1, len(ids)):
            before = "".join(texts[max(0, place - 12) : place])
            chosen = next((made for end, made in self.choices.items() if before.endswith(end)), None)
            rest = 0.1 * (1 - sum(chosen.values())) if chosen is not None else 0.9
            found.append(math.log((chosen or {}).get(texts[place], rest)))
        return [value if self.context is None or place < self.context else None for place, value in enumerate(found)]


def episode(dialect: Renderer, turn: str, likely: dict[str, float] | None = None) -> Sampled:
    """One turn; a token of that text has that probability, the others have 0.9."""
    opening, action = dialect.initial_ids("Be careful.", "Write it."), encode(dialect, turn)
    own = [math.log((likely or {}).get(text, 0.9)) for text in spelled(dialect, action)]
    return Sampled(
        "p", [*opening, *action], [0.0] * len(opening) + [1.0] * len(action), [0.0] * len(opening) + own
    )  # fmt: skip


@dataclass
class Judged:
    sampled: Sampled
    judgement: Judgement
    model: Model
    translated: Translated
    texts: list[str]

    def kl(self, token: str, number: int = -1) -> float:
        """The KL of a token of the student, the last of that text; it must have one."""
        place = [at for at, text in enumerate(self.texts) if text == token and self.sampled.mask[at]][number]
        assert self.judgement.covered[place] == 1.0, token
        return self.judgement.kl[place]

    def advantage(self, token: str) -> float:
        found = token_advantages([0.0] * len(self.texts), self.judgement.kl, self.sampled.mask, KL_ALONE)
        return found[len(self.texts) - 1 - self.texts[::-1].index(token)]


async def judge(student: Renderer, teacher: Renderer, sampled: Sampled, choices: dict[str, dict[str, float]]) -> Judged:
    model: Any = Model(teacher, choices)
    cross = CrossTokens(model, student, teacher, {"p": lambda _: teacher.initial_ids("Be careful.", "Write it.")})
    texts = spelled(student, list(sampled.tokens))
    return Judged(sampled, await cross.judge(sampled), model, cross.translate(sampled), texts)


async def test_a_student_that_answers_where_the_teacher_calls_is_charged_for_the_decision(
    qwen: Renderer, harmony: Renderer
) -> None:
    sampled = episode(harmony, HARMONY["answers"], {"final": 0.6})
    calls = await judge(harmony, qwen, sampled, {"</think>\n\n": {"<tool_call>": 0.95}})
    assert calls.kl("final") == pytest.approx(math.log(0.6 / 0.05), abs=1e-6)
    assert calls.advantage("final") < -2

    answers = await judge(harmony, qwen, sampled, {"</think>\n\n": {"<tool_call>": 0.02, "Everything": 0.01}})
    assert answers.kl("final") == pytest.approx(math.log(0.6 / 0.98), abs=1e-6)
    assert answers.advantage("final") > 0
    # Its own wording is another matter, and charged to the word.
    assert answers.kl("Everything") == pytest.approx(math.log(0.9 / (0.01 / 0.98)), abs=1e-6)


@pytest.mark.parametrize("thought", ["It is done.", ""])
@pytest.mark.parametrize("name", ["qwen3_instruct", "qwen3_disable_thinking"])
async def test_nor_is_it_let_off_by_a_teacher_that_does_not_think(name: str, thought: str, harmony: Renderer) -> None:
    teacher = get_renderer(name, qwen3_tokenizer())
    answer = HARMONY["answers"] if thought else "<|channel|>final<|message|>Everything works.<|return|>"
    before = f"{thought}\n" if thought else "assistant\n" if name == "qwen3_instruct" else "</think>\n\n"
    judged = await judge(harmony, teacher, episode(harmony, answer, {"final": 0.6}), {before: {"<tool_call>": 0.95}})
    assert judged.kl("final") == pytest.approx(math.log(0.6 / 0.05), abs=1e-6)
    assert judged.advantage("final") < -2


async def test_it_is_asked_for_the_alternative_only_where_the_answers_first_word_leaves_a_doubt(
    qwen: Renderer, harmony: Renderer
) -> None:
    sampled = episode(harmony, HARMONY["answers"])
    sure = await judge(harmony, qwen, sampled, {"</think>\n\n": {"Everything": 0.8, "<tool_call>": 0.1}})
    assert len(sure.model.asked) == 1
    unsure = await judge(harmony, qwen, sampled, {"</think>\n\n": {"Everything": 0.3, "<tool_call>": 0.1}})
    assert [spelled(qwen, one)[-1] for one in unsure.model.asked[1:]] == ["<tool_call>"]
    called = await judge(harmony, qwen, episode(harmony, HARMONY["calls"]), {})
    assert len(called.model.asked) == 1
    at_once = episode(harmony, "<|channel|>final<|message|>Everything works.<|return|>")
    thinks = await judge(harmony, qwen, at_once, {"assistant\n": {"<think>": 0.97, "<tool_call>": 0.02}})
    assert {spelled(qwen, one)[-1] for one in thinks.model.asked[1:]} == {"<think>", "<tool_call>"}
    assert thinks.kl("final") == pytest.approx(math.log(0.9 / 0.01), abs=1e-6)


async def test_a_student_that_calls_where_the_teacher_answers(qwen: Renderer, harmony: Renderer) -> None:
    sampled = episode(harmony, HARMONY["calls"])
    judged = await judge(harmony, qwen, sampled, {"</think>\n\n": {"<tool_call>": 0.01}})
    decision = sum(judged.kl(text) for text in ("comment", "ary", " to"))
    assert decision == pytest.approx(3 * math.log(0.9) - math.log(0.01), abs=1e-6)
    agreed = await judge(harmony, qwen, sampled, {"</think>\n\n": {"<tool_call>": 0.99}})
    assert agreed.kl(" to") < 0 < judged.kl(" to")


async def test_a_qwen_student_is_charged_by_a_gpt_oss_teacher(qwen: Renderer, harmony: Renderer) -> None:
    channel = {"assistant<|channel|>": {"final": 0.02, "comment": 0.95}}
    answered = await judge(qwen, harmony, episode(qwen, QWEN["answers"]), channel)
    assert answered.kl("Everything") > 3  # the first word is the decision
    assert answered.kl(" works") == pytest.approx(0.0, abs=1e-9)
    called = await judge(qwen, harmony, episode(qwen, QWEN["calls"], {"<tool_call>": 0.5}), channel)
    assert called.kl("<tool_call>") < 0
    assert [len(one.model.asked) for one in (answered, called)] == [1, 1]


@pytest.mark.parametrize("way", ["harmony to qwen", "qwen to harmony"])
async def test_stopping_and_ending_the_thinking_are_compared(way: str, qwen: Renderer, harmony: Renderer) -> None:
    if way == "harmony to qwen":
        student, teacher, turn, stop, ended = harmony, qwen, HARMONY["answers"], "<|return|>", "<|end|>"
        ends = {"Everything works.": {"<|im_end|>": 0.01}, "It is done.\n": {"</think>": 0.02}}
    else:
        student, teacher, turn, stop, ended = qwen, harmony, QWEN["answers"], "<|im_end|>", "</think>"
        ends = {"Everything works.": {"<|return|>": 0.01}, "It is done.": {"<|end|>": 0.02}}
    judged = await judge(student, teacher, episode(student, turn), ends)
    assert judged.kl(stop) == pytest.approx(math.log(0.9 / 0.01), abs=1e-6)
    assert judged.kl(ended) > 1.5
    content = await judge(student, teacher, episode(student, turn), {})
    assert content.kl(stop) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("way", ["harmony to qwen", "qwen to harmony"])
@pytest.mark.parametrize("rest", ["", ".", "]", ");", "]]"])
async def test_what_one_token_holds_of_a_content_and_its_end_is_compared_with_the_same_of_the_other(
    way: str, rest: str, qwen: Renderer, harmony: Renderer
) -> None:
    """Qwen has tokens such as ``]`` with a line feed: both sides of the decision to end must have the same content."""
    thought = f"It uses data 7{rest}"
    if way == "harmony to qwen":
        student, teacher = harmony, qwen
        turn = (
            f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>OK<|return|>"
        )
    else:
        student, teacher, turn = qwen, harmony, f"<think>\n{thought}\n</think>\n\nOK<|im_end|>"
    judged = await judge(student, teacher, episode(student, turn), {})
    groups = [
        (
            "".join(spelled(student, list(judged.sampled.tokens[slice(*group.student)]))),
            "".join(spelled(teacher, judged.translated.tokens[slice(*group.teacher)])),
        )
        for group in judged.translated.groups
    ]
    [end] = [pair for pair in groups if set(pair) & {f"{rest}<|end|>", "<|end|>"}]
    assert set(end) == {f"{rest}<|end|>", f"{rest}\n</think>"}


async def test_what_lies_behind_the_teachers_context_is_not_judged(qwen: Renderer, harmony: Renderer) -> None:
    sampled = episode(harmony, HARMONY["answers"])
    opening = qwen.initial_ids("Be careful.", "Write it.")
    model: Any = Model(qwen, {}, context=len(opening) + 3)
    found = await CrossTokens(model, harmony, qwen, {"p": lambda _: opening}).judge(sampled)
    texts = spelled(harmony, list(sampled.tokens))
    assert [text for text, covered in zip(texts, found.covered, strict=True) if covered] == ["analysis", "It"]
    assert all(covered or not kl for kl, covered in zip(found.kl, found.covered, strict=True))
    assert len(model.asked) == 1


async def test_a_turn_that_was_cut_off_ends_nothing(qwen: Renderer, harmony: Renderer) -> None:
    cut = HARMONY["answers"].removesuffix(".<|return|>")
    judged = await judge(harmony, qwen, episode(harmony, cut), {"Everything works": {"<|im_end|>": 0.001}})
    assert judged.kl(" works") == pytest.approx(0.0, abs=1e-9)
    assert not judged.translated.implicit  # whether it would have been an answer is not known


@pytest.mark.parametrize("turn", ["answers", "calls"])
async def test_a_student_that_cannot_think_is_not_charged_for_not_thinking(turn: str, harmony: Renderer) -> None:
    instruct = get_renderer("qwen3_instruct", qwen3_tokenizer())
    sampled = episode(instruct, QWEN[turn].partition("</think>\n\n")[2])
    judged = await judge(instruct, harmony, sampled, {"assistant<|channel|>": {"analysis": 0.999}})
    assert max(judged.judgement.kl) < 0.5
    assert judged.kl("<|im_end|>") is not None  # stopping is the same to both


async def test_what_follows_a_call_in_the_same_turn_is_no_common_decision(qwen: Renderer, harmony: Renderer) -> None:
    call = QWEN["calls"].partition("</think>\n\n")[2].removesuffix("<|im_end|>")
    judged = await judge(qwen, harmony, episode(qwen, f"{call}\n{call}<|im_end|>"), {})
    places = [at for at, text in enumerate(judged.texts) if text == "<tool_call>" and judged.sampled.mask[at]]
    assert [judged.judgement.covered[at] for at in places] == [1.0, 0.0]
    assert judged.kl("<|im_end|>") is not None


TOOL_CALL = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("said", "thinking", "text", "calls"),
    [
        ("<think>\nI look.\n</think>\n\n" + TOOL_CALL, ["I look."], [], 1),
        ("I look.\n</think>\n\n" + TOOL_CALL, ["I look."], [], 1),  # as where the prompt ends in <think>
        ("I say " + TOOL_CALL + " no.\n</think>\n\nSo: " + TOOL_CALL, ["I say " + TOOL_CALL + " no."], ["So:"], 1),
        ("<think>I say " + TOOL_CALL + "</think>\n\nDone.", ["I say " + TOOL_CALL], ["Done."], 0),
        ("I look. " + TOOL_CALL, [], ["I look."], 1),
    ],
)
def test_an_opening_in_the_prompt_counts(
    qwen: Renderer, said: str, thinking: list[str], text: list[str], calls: int
) -> None:
    ids = encode(qwen, said + "<|im_end|>")
    contents = qwen.contents(ids)
    assert [one.data.decode() for one in contents if one.kind == "thinking"] == thinking
    assert [one.data.decode() for one in contents if one.kind == "text"] == text
    assert sum(one.kind == "call" for one in contents) == calls
    if thinking:
        assert (contents[0].opens is None) == (not said.startswith("<think>"))
        assert qwen.kinds(ids)["<think>" in said :][:2] == ["thinking"] * 2
    data = b"".join(map(qwen.codec.token_bytes, ids))
    assert all(data[one.place :].startswith(one.data) for one in contents)
    assert qwen.parse_ids(ids).thinking == "\n".join(thinking)


@given(said=st.lists(st.sampled_from(["<think>", "</think>", TOOL_CALL, "a", " b ", "\n"]), max_size=9).map("".join))
@example(said="a</think>" + TOOL_CALL)
@example(said="<think>a" + TOOL_CALL + "</think>")
@settings(deadline=None)
def test_the_parser_of_actions_and_the_teachers_find_the_same_thinking(qwen: Renderer, said: str) -> None:
    ids = encode(qwen, said + "<|im_end|>")
    found = [one.data.decode() for one in qwen.contents(ids) if one.kind == "thinking"]
    assert "".join("".join(found).split()) == "".join(qwen.parse_ids(ids).thinking.split())


SAID = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from([*" \n\t{}[]:;.<=", *"e\u0301\u2126\u1100\u1161"])),
    min_size=1,
).filter(lambda text: bool(text.strip()))


@settings(max_examples=25, deadline=None)
@given(thought=SAID, words=SAID, command=SAID, way=st.booleans(), data=st.data())
async def test_groups_never_overlap_and_conserve_what_they_compare(
    qwen: Renderer, harmony: Renderer, thought: str, words: str, command: str, way: bool, data: st.DataObject
) -> None:
    import json

    arguments = json.dumps({"command": command}, ensure_ascii=False)
    body = data.draw(st.sampled_from(["call", "answer", "both"]))
    if way:
        student, teacher = harmony, qwen
        spoken = f"<|start|>assistant<|channel|>{'commentary' if body == 'both' else 'final'}<|message|>"
        parts = [f"<|channel|>analysis<|message|>{_plain(thought)}<|end|>"]
        parts += [f"{spoken}{_plain(words)}<|{'end' if body == 'both' else 'return'}|>"] if body != "call" else []
        parts += [f"{CALLS}{_plain(arguments)}<|call|>"] if body != "answer" else []
    else:
        student, teacher = qwen, harmony
        call = f'<tool_call>\n{{"name": "execute_bash", "arguments": {_plain(arguments)}}}\n</tool_call>'
        parts = [f"<think>\n{_plain(thought)}\n</think>\n\n", _plain(words) if body != "call" else ""]
        parts += [call if body != "answer" else "", "<|im_end|>"]
    sampled = episode(student, "".join(parts), {})
    judged = await judge(student, teacher, sampled, {"</think>\n\n": {"<tool_call>": 0.4}})
    seen: set[int] = set()
    own = other = 0.0
    logprobs = [value or 0.0 for value in await judged.model.compute_logprobs(_Ids(judged.translated.tokens))]
    for group in judged.translated.groups:
        here = set(range(*group.student))
        assert here
        assert not here & seen
        seen |= here
        own += sum(sampled.logprobs[slice(*group.student)])
        other += sum(logprobs[slice(*group.teacher)])
    assert sum(judged.judgement.kl) == pytest.approx(own - other, abs=1e-6)
    assert {at for at, covered in enumerate(judged.judgement.covered) if covered} == seen
    assert all(sampled.mask[at] for at in seen)


def _plain(text: str) -> str:
    """Text in which no control token is spelled."""
    return text.replace("<", "(").replace("\0", "0")


@dataclass
class _Ids:
    ids: list[int]

    def to_ints(self) -> list[int]:
        return self.ids


DECOMPOSED = "50 k\u2126 for cafe\u0301 and \u1112\u1161\u11ab, then plain text again."


async def test_only_equal_bytes_are_paired_where_a_vocabulary_normalises(qwen: Renderer, harmony: Renderer) -> None:
    assert not unicodedata.is_normalized("NFC", DECOMPOSED)
    turn = f"<|channel|>analysis<|message|>{DECOMPOSED}<|end|>{CALLS}{ARGUMENTS}<|call|>"
    judged = await judge(harmony, qwen, episode(harmony, turn), {})
    paired = ""
    for group in judged.translated.groups:
        own, other = (
            b"".join(map(dialect.codec.token_bytes, ids[slice(*at)])).decode()
            for dialect, ids, at in (
                (harmony, list(judged.sampled.tokens), group.student),
                (qwen, judged.translated.tokens, group.teacher),
            )
        )
        framing = ("analysis", "commentary to", ".<|end|>", '"}<|call|>')
        if own not in framing:
            assert own == other
            paired += own
    assert "\u2126" not in paired
    assert "\u0301" not in paired
    assert " plain text again" in paired  # behind them the two are together again
    assert 'command": "ls rtl' in paired
    assert judged.kl("<|end|>") is not None


@pytest.mark.parametrize(
    ("student", "teacher", "left"),
    [
        ("abc", "abc", "abc"),
        ("a\u2126b", "a\u03a9b", "ab"),
        ("cafe\u0301s", "caf\u00e9s", "cafs"),
        ("x\0y", "x\ufffdy", "x"),
        ("\u1112\u1161\u11ab!", "\ud55c!", "!"),
    ],
)
def test_passages_where_the_bytes_are_the_same(student: str, teacher: str, left: str) -> None:
    from rtl_agent_gym.training.teachers.cross import common_passages

    own, other = student.encode(), teacher.encode()
    found = common_passages(own, other, 10, 20)
    assert b"".join(own[p.student - 10 : p.student - 10 + p.length] for p in found) == left.encode()
    for passage in found:
        begin, there = passage.student - 10, passage.teacher - 20
        assert own[begin : begin + passage.length] == other[there : there + passage.length]
