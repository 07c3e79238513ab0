"""Training through mini-swe-agent, the real program: its conversations are the data, token for token."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")
pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed: pip install 'rtl-agent-gym[agents]'")

from rtl_agent_gym.demo.founding import PROBLEM_ID  # noqa: E402
from rtl_agent_gym.demo.shipped import shipped  # noqa: E402
from rtl_agent_gym.engines.local import LocalServiceClient  # noqa: E402
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig, load_renderer  # noqa: E402
from rtl_agent_gym.episodes.rules import EpisodeConfig  # noqa: E402
from rtl_agent_gym.episodes.runtime import Runtime  # noqa: E402
from rtl_agent_gym.errors import ServiceDown, UsageError  # noqa: E402
from rtl_agent_gym.policies import ModelOptions  # noqa: E402
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy  # noqa: E402
from rtl_agent_gym.problems import Problem, load_problems  # noqa: E402
from rtl_agent_gym.training.advantages import RunningMeans  # noqa: E402
from rtl_agent_gym.training.checkpointer import optimize  # noqa: E402
from rtl_agent_gym.training.datums import annotate, judge, make_examples  # noqa: E402
from rtl_agent_gym.training.launch import train  # noqa: E402
from rtl_agent_gym.training.options import TrainOptions  # noqa: E402
from rtl_agent_gym.training.plan import check_prompts, plan_run  # noqa: E402
from rtl_agent_gym.training.rollouts import Batch, EpisodePlayer, PlayedGroup, Rollout  # noqa: E402
from rtl_agent_gym.training.teachers import SameTokens  # noqa: E402
from tests.policies.test_streams import in_json  # noqa: E402

from .common import answer  # noqa: E402

CONTEXT = 6000
TASK = "Write rtl/arbiter.sv."
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def model(folder: Path, seed: int) -> Path:
    """The shipped student with room for an agent's prompts, and with weights that differ by seed."""
    import transformers

    library: Any = transformers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = library.Qwen3ForCausalLM.from_pretrained(shipped("student"), dtype=torch.float32)
        for weights in found.parameters():
            weights.data += 0.01 * torch.randn_like(weights)
    found.config.max_position_embeddings = CONTEXT
    found.save_pretrained(folder)
    library.AutoTokenizer.from_pretrained(shipped("student")).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A student and a teacher."""
    folder = tmp_path_factory.mktemp("models")
    return model(folder / "student", 1), model(folder / "teacher", 2)


@pytest.fixture
def problem() -> Problem:
    return load_problems("bundled", ids=[PROBLEM_ID])[0]


@dataclass
class Forced:
    """A sampler that says prepared texts, with the log-probabilities that the model gives their tokens."""

    sampler: Any
    texts: list[str]
    requests: list[tuple[list[int], list[int], list[float]]] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        ids = self.get_tokenizer().encode(self.texts.pop(0), add_special_tokens=False)
        whole = prompt.to_ints() + ids
        found = await self.sampler.compute_logprobs(tinker.ModelInput.from_ints(whole))
        self.requests.append((prompt.to_ints(), ids, found[-len(ids) :]))
        self.seeds.append(sampling_params.seed)
        return answer(ids, found[-len(ids) :])

    def get_tokenizer(self) -> Any:
        return self.sampler.get_tokenizer()


def config_of(student: Path, **rules: Any) -> TinkerEnvConfig:
    limits: dict[str, Any] = {
        "max_tokens": 200,
        "max_trajectory_tokens": CONTEXT,
        "max_turns": 5,
        "user_prompt": TASK,
    } | rules
    return TinkerEnvConfig(str(student), "qwen3", EpisodeConfig(), **limits)


async def play(problem: Problem, student: Path, sampler: Any, runtime: Runtime, **rules: Any) -> Rollout:
    config = config_of(student, **rules)
    options = ModelOptions(max_tokens=200, max_context=CONTEXT)
    policy = TokenSamplerPolicy(sampler, name="student", in_run=True, options=options, turn_seed=lambda turn: 40 + turn)
    return await EpisodePlayer(config, load_renderer(config), runtime, 0, "mini-swe-agent")(problem, policy)


@pytest.mark.docker
async def test_an_agents_conversations_are_the_data_and_the_teacher_reads_them(
    problem: Problem, models: tuple[Path, Path], service: LocalServiceClient, runtime: Runtime, tmp_path: Path
) -> None:
    student, other = models
    trainer = await service.create_lora_training_client(str(student), 0)
    texts = ["I have no call.<|im_end|>", in_json("ls rtl"), in_json("pwd"), in_json(SUBMIT)]
    sampler = Forced(await trainer.save_weights_and_get_sampling_client(), list(texts))
    rollout = await play(problem, student, sampler, runtime, transcript_dir=tmp_path / "transcripts")

    # mini-swe-agent leaves a malformed answer out of its history, so there are two conversations.
    assert {name: rollout.numbers[name] for name in rollout.numbers if name.startswith("tokens/")} == {
        "tokens/streams": 2.0, "tokens/breaks": 1.0, "tokens/breaks/answer": 1.0,
    }  # fmt: skip
    assert sampler.seeds == [41, 42, 43, 44]
    assert rollout.result.stop_reason == "completed"
    assert Rollout.from_json(json.loads(json.dumps(rollout.to_json()))).to_json() == rollout.to_json()
    first, *rest = sampler.requests
    ends = [first[0] + first[1], rest[-1][0] + rest[-1][1]]

    options = TrainOptions(reward_coef=1.0, kl_penalty_coef=1.0, kl_weight_call=0.5, baseline="none")
    group = PlayedGroup(problem, [rollout])
    examples = make_examples([group], options, RunningMeans())
    assert [list(example.sampled.tokens) for example in examples] == ends
    trained = [[id_ for id_, mask in zip(e.sampled.tokens, e.sampled.mask, strict=True) if mask] for e in examples]
    assert trained == [first[1], [id_ for _, ids, _ in rest for id_ in ids]]

    teacher: Any = await service.create_lora_training_client(str(other), 0)
    scores = await teacher.save_weights_and_get_sampling_client()
    await judge(examples, {problem.id: SameTokens(scores)})
    for example, requests in zip(examples, ([first], rest), strict=True):
        assert example.judgement is not None
        assert sum(example.judgement.covered) == sum(example.sampled.mask)
        for prompt, ids, own in requests:  # each turn by itself, as it was sampled
            found = (await scores.compute_logprobs(tinker.ModelInput.from_ints(prompt + ids)))[-len(ids) :]
            kl = example.judgement.kl[len(prompt) : len(prompt) + len(ids)]
            assert kl == pytest.approx([mine - teachers for mine, teachers in zip(own, found, strict=True)], abs=1e-3)
            assert max(map(abs, kl)) > 0.01
        example.set_advantages(options, load_renderer(config_of(student)))
    annotate(examples, load_renderer(config_of(student)))  # turns of a transcript are no answers of an agent's model

    metrics = await optimize(trainer, [example.datum for example in examples], 1e-3, options)
    assert math.isfinite(metrics["optim/kl_sample_train_v1"])
    assert metrics["optim/kl_sample_train_v1"] == pytest.approx(0.0, abs=1e-3)
    found = Batch([group]).metrics(tested=True)
    assert (found["tokens/streams"], found["tokens/breaks"], found["tokens/breaks/answer"]) == (2.0, 1.0, 1.0)
    assert found["env/all/total_ac_tokens"] == sum(len(ids) for _, ids, _ in sampler.requests)


class Away:
    async def sample(self, *_: Any) -> Any:
        raise ServiceDown("the account is blocked")

    def get_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(shipped("student"))


@pytest.mark.docker
async def test_a_service_that_is_down_ends_the_run(
    problem: Problem, models: tuple[Path, Path], runtime: Runtime
) -> None:
    with pytest.raises(ServiceDown, match="the account is blocked"):
        await play(problem, models[0], Away(), runtime)


def given(models: tuple[Path, Path], folder: Path, **more: Any) -> dict[str, Any]:
    student, teacher = models
    limits = {"max_tokens": 30, "max_trajectory_tokens": CONTEXT, "max_turns": 2}
    run = {"num_steps": 1, "group_size": 1, "reward_coef": 0.0, "lora_rank": 0, "log_path": str(folder)}
    found = {"student_model": str(student), "renderer_name": "qwen3", "teacher_model": str(teacher)}
    found |= {"engine": "local", "agent": "mini-swe-agent", "problem_ids": PROBLEM_ID, "user_prompt": TASK}
    return found | {"teacher_renderer_name": "qwen3"} | limits | run | more


@pytest.mark.slow  # half a minute: the student reads an agent's long prompt again in each of its conversations
@pytest.mark.docker
def test_a_run_trains_and_evaluates_through_an_agent(models: tuple[Path, Path], tmp_path: Path) -> None:
    """The student has not learnt anything: its answers are malformed, and each begins a conversation."""
    outcome = train(given(models, tmp_path / "run", eval_episodes=1))
    [row] = outcome.metrics
    assert row["tokens/streams"] >= 1
    assert row["tokens/breaks"] == row["tokens/streams"] - 1
    assert row["teacher_kl/covered"] == pytest.approx(1.0)
    assert math.isfinite(row["teacher_kl"])
    assert row["train/episodes"] == 1


def test_the_environments_system_prompt_needs_no_room(models: tuple[Path, Path], tmp_path: Path) -> None:
    """The agent has its own."""
    small = {"max_trajectory_tokens": 700, "max_tokens": 100}
    plan = plan_run(given(models, tmp_path, **small))
    check_prompts(plan, plan.env_config(tmp_path))
    alone = plan_run(given(models, tmp_path, agent="none", **small))
    with pytest.raises(UsageError, match="does not fit into the limit of 700"):
        check_prompts(alone, alone.env_config(tmp_path))


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"env": "single_turn"}, "agent: mini-swe-agent works in a shell"),
        ({"system_prompt": "x"}, "system_prompt: mini-swe-agent has its own prompts"),
        ({"teacher_context": "reference"}, "teacher_context: mini-swe-agent has its own prompts"),
        ({"agent": "clippy"}, "agent must be 'none', 'mini-swe-agent', .* got 'clippy'"),
        ({"renderer_name": "gpt_oss"}, "agent: renderer 'gpt_oss' cannot hold conversations"),
    ],
)
def test_what_an_agent_cannot_do_is_refused(
    models: tuple[Path, Path], tmp_path: Path, more: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        plan_run(given(models, tmp_path, **more))
