"""Weights of the KL by kind of token, in both dialects, from the options to the advantage."""

from __future__ import annotations

import contextlib
import errno
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

pytest.importorskip("torch")
pytest.importorskip("tinker_cookbook")
from rtl_agent_gym.envs.tinker_config import load_renderer
from rtl_agent_gym.episodes.prompt import open_prompt
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_tokenizer
from rtl_agent_gym.training import run_folder
from rtl_agent_gym.training.advantages import RunningMeans, weights_of_rewards
from rtl_agent_gym.training.datums import judge, kl_weights, make_examples
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.rollouts import PlayedGroup, Rollout
from rtl_agent_gym.training.run_folder import ENGINE, RunFolder
from rtl_agent_gym.training.teachers import SameTokens, Sampled
from rtl_agent_gym.training.teachers.setup import make_teachers
from tests.training.common import DEFAULTS, Certain, Published, begun
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


async def test_a_tokens_weight_is_that_of_its_kind_and_one_for_all_others() -> None:
    ids = list(qwen3_tokenizer().encode(QWEN, add_special_tokens=False).ids)
    sampled = Sampled("p", [1, 2, *ids], [0.0] * 2 + [1.0] * len(ids), [0.0] * 2 + [-0.5] * len(ids))
    options = TrainOptions(kl_weight_thinking=0.1, kl_weight_text=0.5, kl_weight_call=2.0)
    found = kl_weights(sampled, options, qwen())
    named = dict(zip((None, None, *qwen().kinds(ids)), found, strict=True))
    assert named == {None: 1.0, "thinking": 0.1, "text": 0.5, "call": 2.0}
    assert found[:2] == [1.0, 1.0]  # the prompt
    assert kl_weights(sampled, TrainOptions(), qwen()) == [1.0] * len(sampled.tokens)  # by default none counts more


def played(problem: Problem, prompt: list[int], turn: list[int], *rewards: float) -> PlayedGroup:
    """A group of episodes of one turn."""
    tokens = TokenTranscript(prompt)
    tokens.add_action(turn, [-0.5] * len(turn))
    return PlayedGroup(problem, [Rollout(EpisodeResult.of(problem, 0), (tokens,), reward) for reward in rewards])


@pytest.mark.parametrize("teacher", [pytest.param("Qwen/Qwen3-32B", marks=pytest.mark.slow), "openai/gpt-oss-20b"])
async def test_the_options_weigh_any_teacher_and_by_default_none(tmp_path: Path, teacher: str) -> None:
    [problem] = load_problems("bundled")[:1]
    engine: Any = Published()
    turn = list(qwen3_tokenizer().encode(QWEN, add_special_tokens=False).ids)

    async def advantages(*arguments: str) -> list[float]:
        plan = make_plan(tmp_path, [problem], f"teacher_model={teacher}", "kl_penalty_coef=1", *arguments)
        config = plan.env_config(tmp_path)
        renderer = load_renderer(config)
        teachers = await make_teachers(plan, engine, config)
        opening = open_prompt(problem, config.episode, renderer)
        prompt = renderer.initial_ids(opening.system, opening.user)
        groups = [played(problem, prompt, turn, 0.0)]
        [example] = make_examples(groups, plan.options, RunningMeans())
        await judge([example], teachers)
        example.set_advantages(plan.options, renderer)
        assert example.judgement is not None
        assert sum(example.judgement.covered) > 0
        return list(example.datum.loss_fn_inputs["advantages"].data)[-len(turn) :]

    plain, weighted = await advantages(), await advantages("kl_weight_thinking=0.1")
    factors = [0.1 if kind == "thinking" else 1.0 for kind in qwen().kinds(turn)]
    assert any(value and factor == 0.1 for value, factor in zip(plain, factors, strict=True))
    assert weighted == pytest.approx([value * factor for value, factor in zip(plain, factors, strict=True)])


async def test_the_reward_counts_less_in_rows_with_weak_tests_and_the_kl_as_much(cvdp_data: Path) -> None:
    """One row of each kind, with an episode of reward 1 and one of 0. Each token's KL is -0.5 + 1."""
    weak, unfair, partial = "cont_adder_0001", "cic_decimator_0001", "door_lock_0001"  # the second has both faults
    rows = {name: f"cvdp_agentic_{name}" for name in (weak, unfair, partial)}
    source = cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
    problems = load_problems(source, ids=rows.values())
    groups = [played(problem, [1, 2], [3], 1.0, 0.0) for problem in problems]
    options = TrainOptions(kl_penalty_coef=1.0, weak_coef=0.25)
    certain: Any = Certain(-1.0)
    teacher = SameTokens(certain)
    examples = make_examples(groups, options, RunningMeans(), weights_of_rewards(problems, options))
    await judge(examples, dict.fromkeys(rows.values(), teacher))
    found: dict[str, list[float]] = {}
    for example in examples:
        example.set_advantages(options, None)
        found.setdefault(example.sampled.problem, []).append(example.datum.loss_fn_inputs["advantages"].data[-1])
    assert found[rows[partial]] == [0.5 - 0.5, -0.5 - 0.5]
    assert found[rows[weak]] == found[rows[unfair]] == [0.125 - 0.5, -0.125 - 0.5]
    assert weights_of_rewards(problems, TrainOptions()) == {}


def test_a_run_that_began_before_an_option_was_there_goes_on_with_its_default(tmp_path: Path) -> None:
    before = {name: value for name, value in DEFAULTS.items() if not name.startswith("kl_weight_")}
    (tmp_path / "config.json").write_text(json.dumps(before))
    begun(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(before))
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UsageError, match="kl_weight_text"):
        begun(tmp_path, DEFAULTS | {"kl_weight_text": 0.5})


@pytest.mark.parametrize("part", ["problems", "held_out", "extra_held_out"])
def test_a_run_is_not_resumed_with_problems_that_have_changed(tmp_path: Path, part: str) -> None:
    problem = load_problems("bundled")[0]
    changed = [problem.model_copy(update={"prompt": "Count."})]
    parts: dict[str, Any] = {part: {"other": changed} if part == "extra_held_out" else changed}
    plan = make_plan(tmp_path, [problem], held_out=[problem], extra_held_out={"other": [problem]})
    begun(tmp_path, plan.record())
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UsageError, match=r"^problems_digest: the run in .* began with other contents"):
        begun(tmp_path, replace(plan, **parts).record())


def test_a_run_is_resumed_with_the_same_problems_from_another_place(tmp_path: Path) -> None:
    record = make_plan(tmp_path, load_problems("bundled")[:1]).record()
    supervised = record | {"episodes_digest": "0"}  # whose training problems have no digest
    for first, refused in ((record, False), (supervised, True)):
        begun(tmp_path / str(refused), first, steps=1)
        begun(tmp_path / str(refused), first | {"held_out": "moved.jsonl", "extra_held_out": {"x": "moved.jsonl"}})
        with pytest.raises(UsageError, match=r"^cvdp_jsonl_path: ") if refused else contextlib.nullcontext():
            begun(tmp_path / str(refused), first | {"cvdp_jsonl_path": "moved.jsonl"})


@pytest.mark.parametrize("config", ['{"architectures": ["X"]}', '{"policy": "golden"}', "[]", "null", "{ // c"])
@pytest.mark.parametrize("behavior", ["delete", "resume"])
def test_a_folder_that_holds_something_else_is_left_alone(
    tmp_path: Path, config: str, behavior: Literal["delete", "resume"]
) -> None:
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_text("weights")
    with pytest.raises(UsageError, match="has no run"):
        RunFolder(tmp_path).open(DEFAULTS, behavior)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "config.json": config,
        "model.safetensors": "weights",
    }


@pytest.mark.parametrize(
    ("first", "now", "needed"),
    [("tinker", "local", "engine=tinker and its TINKER_API_KEY"), ("local", "tinker", "engine=local")],
)
def test_a_run_that_began_with_a_key_is_not_resumed_without_one(
    tmp_path: Path, first: Literal["tinker", "local"], now: Literal["tinker", "local"], needed: str
) -> None:
    """The options are equal, or other defaults of the other engine: neither may hide the reason."""
    plan = make_plan(tmp_path, load_problems("bundled")[:1])
    same, other = (replace(plan, engine=engine).record() for engine in (first, now))
    begun(tmp_path, same)
    (tmp_path / "metrics.jsonl").touch()
    told = rf"^engine: the run .* uses the engine {first}, not {now}; resume it with {needed},"
    for record in (other, other | {"batch_size": 9}):
        with pytest.raises(UsageError, match=told):
            begun(tmp_path, record)
    for record in (same, same | {"engine": first}):  # named, where it was auto
        begun(tmp_path, record)
    older = {name: value for name, value in same.items() if name != ENGINE}
    (tmp_path / "config.json").write_text(json.dumps(older))
    begun(tmp_path, other)  # it is not known with which engine it began


@pytest.mark.parametrize(
    ("failing", "error", "told"),
    [
        ("fcntl.flock", OSError(errno.ENOLCK, "No locks available"), "locked: No locks available"),
        ("os.open", PermissionError(errno.EACCES, "Permission denied"), "written: Permission denied"),
        (f"{run_folder.__name__}.replace_file", OSError(errno.EROFS, "Read-only file system"), "written: Read-only .*"),
    ],
)
def test_a_folder_that_cannot_be_used_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: OSError, told: str
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    folder = RunFolder(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(failing, fails)
        with pytest.raises(UsageError, match=rf"^log_path: {re.escape(str(tmp_path))} cannot be {told}$"):
            folder.open(DEFAULTS, "resume")
    folder.open(DEFAULTS, "resume")
    with pytest.raises(UsageError, match="another run is using"):
        begun(tmp_path)
    folder.close()


def test_no_answer_to_the_question_is_an_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_: str) -> str:
        raise EOFError

    folder = begun(tmp_path)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", ends)
    with pytest.raises(UsageError, match=r"exists$"):
        folder.open(DEFAULTS, "ask")
