"""Weights of the KL by kind of token, in both dialects, from the options to the advantage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook")


from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_tokenizer
from rtl_agent_gym.training.dataset import env_config
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.training.teachers import SameTokens, Sampled, WeightedKinds
from rtl_agent_gym.training.teachers.setup import make_teacher
from tests.training.scripted_run import make_plan

QWEN = '<think>\nHm.\n</think>\n\nSo: <tool_call>\n{"name": "execute_bash"}\n</tool_call><|im_end|>'
HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.execute_bash "
    "<|constrain|>json<|message|>{}<|call|>"
)


def qwen() -> Renderer:
    return get_renderer("qwen3", qwen3_tokenizer())


def by_kind(dialect: Renderer, ids: list[int]) -> dict[str | None, str]:
    found: dict[str | None, str] = {}
    for id_, kind in zip(ids, dialect.kinds(ids), strict=True):
        found[kind] = found.get(kind, "") + dialect.codec.token_bytes(id_).decode()
    return found


def test_the_kind_of_each_token() -> None:
    ids = list(qwen3_tokenizer().encode(QWEN, add_special_tokens=False).ids)
    assert by_kind(qwen(), ids) == {
        None: "<think></think><tool_call></tool_call><|im_end|>",
        "thinking": "\nHm.\n",
        "text": "\n\nSo: ",
        "call": '\n{"name": "execute_bash"}\n',
    }
    harmony = get_renderer("gpt_oss")
    ids = list(harmony_encoding().encode(HARMONY, allowed_special="all"))
    found = by_kind(harmony, ids)
    assert (found["thinking"], found["call"], set(found)) == ("Hm.", "{}", {"thinking", "call", None})


class Certain:
    async def compute_logprobs(self, prompt: Any) -> list[float | None]:
        return [None, *[-1.0] * (prompt.length - 1)]


async def test_weights_are_told_beside_the_judgement_which_stays_as_it_is() -> None:
    ids = list(qwen3_tokenizer().encode(QWEN, add_special_tokens=False).ids)
    sampled = Sampled("p", [1, 2, *ids], [0.0] * 2 + [1.0] * len(ids), [0.0] * 2 + [-0.5] * len(ids))
    teacher: Any = SameTokens(Certain())  # type: ignore[arg-type]
    found = await WeightedKinds(teacher, qwen(), {"thinking": 0.1, "text": 0.5, "call": 2.0}).judge(sampled)
    assert found.kl == (await teacher.judge(sampled)).kl
    assert found.weights is not None
    named = dict(zip((None, None, *qwen().kinds(ids)), found.weights, strict=True))
    assert named == {None: 1.0, "thinking": 0.1, "text": 0.5, "call": 2.0}


class Published:
    async def published(self, option: str, model: str) -> Certain:
        return Certain()


@pytest.mark.parametrize("teacher", ["Qwen/Qwen3-32B", "openai/gpt-oss-20b"])
async def test_the_options_weigh_any_teacher_and_by_default_none(tmp_path: Path, teacher: str) -> None:
    problems = load_problems("bundled")[:1]
    engine: Any = Published()

    async def made(*arguments: str) -> Any:
        plan = make_plan(tmp_path, problems, f"teacher_model={teacher}", *arguments)
        config = env_config(plan, RunFolder(tmp_path), plan.models)
        return await make_teacher(plan, teacher, engine, config)

    assert not isinstance(await made(), WeightedKinds)
    weighted = await made("kl_weight_thinking=0.1")
    assert isinstance(weighted, WeightedKinds)
    assert weighted._weights == {"thinking": 0.1, "text": 1.0, "call": 1.0}


def test_a_run_that_began_before_an_option_was_there_goes_on_with_its_default(tmp_path: Path) -> None:
    config = TrainOptions().model_dump(mode="json")
    before = {name: value for name, value in config.items() if not name.startswith("kl_weight_")}
    (tmp_path / "config.json").write_text(json.dumps(before))
    folder = RunFolder(tmp_path)
    folder.open(config, "resume")
    folder.close()
    (tmp_path / "config.json").write_text(json.dumps(before))
    with pytest.raises(UsageError, match="kl_weight_text"):
        folder.open(config | {"kl_weight_text": 0.5}, "resume")
