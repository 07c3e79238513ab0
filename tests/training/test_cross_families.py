"""Today's families teach gpt-oss and the other way round: the same decisions and commands are compared.

Qwen3.5 and gpt-oss also take steps of training, with models of their own vocabularies.
"""

from __future__ import annotations

import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")

from rtl_agent_gym.demo.shipped import shipped  # noqa: E402
from rtl_agent_gym.engines.local import LocalServiceClient  # noqa: E402
from rtl_agent_gym.renderers import ModelTurn, Renderer, ToolCall, get_renderer  # noqa: E402
from rtl_agent_gym.renderers.families import FAMILIES, VARIANTS  # noqa: E402
from rtl_agent_gym.renderers.vocabularies import Control, qwen3_5_tokenizer  # noqa: E402
from rtl_agent_gym.training.advantages import token_advantages  # noqa: E402
from rtl_agent_gym.training.checkpointer import optimize  # noqa: E402
from rtl_agent_gym.training.datums import with_inputs  # noqa: E402
from rtl_agent_gym.training.options import TrainOptions  # noqa: E402
from rtl_agent_gym.training.teachers import Sampled  # noqa: E402
from rtl_agent_gym.training.teachers.cross import CrossTokens  # noqa: E402
from tests.renderers.families import renderer_of  # noqa: E402

from .test_families import imitate, weighted  # noqa: E402
from .test_structure import SAID, judge  # noqa: E402

ANSWERS = ModelTurn("It is done.", "Everything works.")
CALLS = ModelTurn("It is done.", "", (ToolCall.of("ls rtl"),))

RANDOM = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": True,
    "bos_token_id": None,
}  # fmt: skip
"""The size of models with random weights."""


def random_model(folder: Path, size: int, seed: int) -> Path:
    """A model with random weights for a vocabulary of this size; the tokenizer beside it is not used."""
    import transformers

    library: Any = transformers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = library.Qwen3ForCausalLM(library.Qwen3Config(vocab_size=size, eos_token_id=0, **RANDOM))
    model.save_pretrained(folder)
    for file in shipped("student").glob("tokenizer*.json"):
        shutil.copy(file, folder)
    return folder


def opened(dialect: Renderer) -> list[int]:
    """The end of an opening: these models need no more, and each token costs more than 200,000 logits."""
    return dialect.initial_ids("Be careful.", "Write it.")[-8:]


def decided(dialect: Renderer, ids: list[int], at: tuple[int, int]) -> str:
    """The text of a range of tokens."""
    return b"".join(map(dialect.codec.token_bytes, ids[slice(*at)])).decode(errors="replace")


def one_turn(dialect: Renderer, turn: ModelTurn) -> Sampled:
    """An episode of one turn, in which each token has the probability 0.9."""
    opening, action = dialect.initial_ids("Be careful.", "Write it."), dialect.turn_ids(turn)
    mask = [0.0] * len(opening) + [1.0] * len(action)
    return Sampled("p", [*opening, *action], mask, [math.log(0.9) * sampled for sampled in mask])


def compared(student: Renderer, teacher: Renderer, turn: ModelTurn) -> dict[str, str]:
    """What the teacher has for each group of the student's tokens; no token may be in two groups."""
    prompts = {"p": lambda _: teacher.initial_ids("Be careful.", "Write it.")}
    sampled = one_turn(student, turn)
    found = CrossTokens(None, student, teacher, prompts).translate(sampled)  # type: ignore[arg-type]
    for name in ("student", "teacher"):
        ranges = sorted(getattr(group, name) for group in found.groups if group.teacher[0] < group.teacher[1])
        assert all(before[1] <= after[0] for before, after in pairwise(ranges)), ranges
    tokens = list(sampled.tokens)
    return {
        decided(student, tokens, group.student): decided(teacher, found.tokens, group.teacher) for group in found.groups
    }


NO_DECISION = {"llama3", "deepseekv4", "deepseekv4_1"}
"""Families in which a call begins with text, so that the decision to answer is not compared where they teach."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_familys_decisions_are_those_of_gpt_oss(family: str) -> None:
    """Ending the thinking, answering, calling and stopping, both ways; and the command between a call's marks."""
    name = next(name for name, variant in VARIANTS.items() if variant.family == family)
    dialect, harmony = renderer_of(name), get_renderer("gpt_oss")
    thought = "It is done" if dialect.thinks else ""
    stops = FAMILIES[family].stops
    marks = [mark for mark in dialect.codec.pieces(dialect.turn_ids(CALLS)) if isinstance(mark, Control)]
    opener = next((mark for mark in marks if mark not in ("</think>", "<|content_thinking|>", "<|end_message|>")), "")

    found = compared(harmony, dialect, ModelTurn(thought, "Everything works."))
    assert found["Everything"] == "Everything"
    assert found["<|return|>"].endswith(stops[1])
    assert ("final" in found) == (family not in NO_DECISION)
    if thought:
        assert found["<|end|>"].strip() == FAMILIES[family].think[1]
    found = compared(harmony, dialect, ModelTurn(thought, "", CALLS.calls))
    assert found[" rtl"] == " rtl"
    assert (found['"}<|call|>'] if '"}<|call|>' in found else found["<|call|>"]).endswith(stops[0])
    if family != "llama3":
        assert opener in found["commentary to"]
        assert not found["commentary to"].startswith(("\n</think>", "</think>", "<|end_message|>"))

    found = compared(dialect, harmony, ModelTurn(thought, "Everything works."))
    if family == "inkling":
        assert found["<|message_model|><|content_text|>"] == "final"
    elif thought:
        assert found["Everything"] == "final<|message|>Everything"
    assert any(own.endswith(stops[1]) and other == "<|return|>" for own, other in found.items())
    found = compared(dialect, harmony, ModelTurn(thought, "", CALLS.calls))
    assert found[" rtl"] == " rtl"
    assert any(own.endswith(stops[0]) and other.endswith("<|call|>") for own, other in found.items())
    if thought:
        assert any(opener in own and other == "commentary to" for own, other in found.items())


@settings(max_examples=25, deadline=None)
@given(command=SAID, way=st.booleans())
def test_a_command_in_json_and_the_same_as_it_is_have_the_same_bytes_between_escapes(command: str, way: bool) -> None:
    dialects = get_renderer("gpt_oss"), get_renderer("qwen3_5", qwen3_5_tokenizer())
    student, teacher = dialects if way else dialects[::-1]
    command = command.replace("<", "(").replace("\0", "0")
    found = compared(student, teacher, ModelTurn("It is done.", "", (ToolCall.of(command),)))
    for own, other in found.items():
        assert (
            own == other
            or own in ("analysis", "<|end|>", "\n</think>", "<tool_call>", "commentary to")
            or (own.endswith(("<|call|>", "<|im_end|>")))
        ), (own, other)


async def test_a_teacher_of_qwen3_5_charges_gpt_oss_for_the_decision() -> None:
    harmony, qwen = get_renderer("gpt_oss"), get_renderer("qwen3_5", qwen3_5_tokenizer())
    sampled = one_turn(harmony, ANSWERS)
    calls = await judge(harmony, qwen, sampled, {"</think>\n\n": {"<tool_call>": 0.95}})
    assert calls.kl("final") == pytest.approx(math.log(0.9 / 0.05), abs=1e-6)
    answers = await judge(harmony, qwen, sampled, {"</think>\n\n": {"<tool_call>": 0.02, "Everything": 0.01}})
    assert answers.kl("final") == pytest.approx(math.log(0.9 / 0.98), abs=1e-6)


@pytest.mark.slow  # a minute each: imitations and steps with two real vocabularies of more than 200,000 tokens
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["qwen3_5 teaches gpt_oss", "gpt_oss teaches qwen3_5"])
async def test_steps_move_the_students_decision_towards_a_teacher_of_the_other_family(
    way: str, tmp_path: Path, service: LocalServiceClient
) -> None:
    """The teacher calls. A student that does both alike learns from its answer not to, and from its call to call."""
    sizes = {"qwen3_5": 248_320, "gpt_oss": 201_088}
    names = way.split(" teaches ")
    dialects = {"qwen3_5": get_renderer("qwen3_5", qwen3_5_tokenizer()), "gpt_oss": get_renderer("gpt_oss")}
    teacher, own = (dialects[name] for name in names)

    def episode(dialect: Renderer, turn: ModelTurn) -> tuple[list[int], list[float]]:
        opening, action = opened(dialect), dialect.turn_ids(turn)
        return [*opening, *action], [0.0] * len(opening) + [1.0] * len(action)

    models = {name: random_model(tmp_path / name, sizes[name], seed) for seed, name in enumerate(names)}
    judging = await service.create_lora_training_client(str(models[names[0]]), 0)
    calling = await imitate(judging, [weighted(*episode(teacher, CALLS))], 0.01, 1e-2, 100)
    trainer = await service.create_lora_training_client(str(models[names[1]]), 0)
    both = await imitate(trainer, [weighted(*episode(own, turn)) for turn in (ANSWERS, CALLS)], 0.12, 1e-2, 200)
    cross = CrossTokens(calling, own, teacher, {"p": lambda _: opened(teacher)})
    options = TrainOptions(reward_coef=0.0, kl_penalty_coef=1.0)
    for turn in (ANSWERS, CALLS):
        tokens, mask = episode(own, turn)
        found = await both.compute_logprobs(tinker.ModelInput.from_ints(tokens))
        logprobs = [value * sampled for value, sampled in zip([0.0, *found[1:]], mask, strict=True)]
        judged = await cross.judge(Sampled("p", tokens, mask, logprobs))
        other, _ = episode(own, CALLS if turn is ANSWERS else ANSWERS)
        decision = next(place for place, pair in enumerate(zip(tokens, other, strict=False)) if pair[0] != pair[1])
        assert judged.covered[decision] == 1.0
        assert (judged.kl[decision] > 0.5) if turn is ANSWERS else (judged.kl[decision] < -0.05)

        values = {"target_tokens": tokens, "logprobs": logprobs, "mask": mask}
        inputs: Any = {key: tinker.TensorData.from_torch(torch.tensor(value[1:])) for key, value in values.items()}
        datum = tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
        advantages = token_advantages([0.0] * len(mask[1:]), judged.kl[1:], mask[1:], options)
        await optimize(trainer, [with_inputs(datum, advantages=torch.tensor(advantages))], 1e-3, options)
        both = await trainer.save_weights_and_get_sampling_client()
        moved = (await both.compute_logprobs(tinker.ModelInput.from_ints(tokens)))[decision] - found[decision]
        assert (moved < -0.01) if turn is ANSWERS else (moved > 0.01), (found[decision], moved)
