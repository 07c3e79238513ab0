"""The cookbook's own trainers, unchanged, on these builders; only Tinker's service is a script."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

tinker = pytest.importorskip("tinker")
from tinker_cookbook.distillation import train_on_policy  # noqa: E402
from tinker_cookbook.distillation.datasets import DistillationDatasetConfig, TeacherConfig  # noqa: E402
from tinker_cookbook.rl import train  # noqa: E402
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator  # noqa: E402
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure  # noqa: E402
from tinker_cookbook.rl.rollouts import (  # noqa: E402
    do_group_rollout_and_filter_constant_reward,
    set_rollout_executor,
)

from rtl_agent_gym.envs.tinker_data import CVDPDatasetBuilder  # noqa: E402
from rtl_agent_gym.problems import Problem  # noqa: E402
from rtl_agent_gym.scoring import RewardWeights  # noqa: E402
from tests.arbiter import ARBITER  # noqa: E402
from tests.envs.scripted_tinker import END, Sampling, Service, call, encode, solution  # noqa: E402

pytestmark = [
    pytest.mark.docker,
    pytest.mark.usefixtures("shared_gradings"),
    # The cookbook's own ways, on which these tests have no say.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"),
]
MODEL = "Qwen/Qwen3-8B"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, arbiter: Problem) -> Service:
    """The trainers meet this in the place of Tinker's service."""
    made = Service([call("ls rtl"), solution(arbiter), f"Done.{END}"])
    monkeypatch.setattr(tinker, "ServiceClient", lambda **_: made)
    return made


def builder(**changes: Any) -> CVDPDatasetBuilder:
    options: dict[str, Any] = {"ids": [ARBITER], "model_name": MODEL, "renderer_name": "qwen3", "group_size": 2}
    return CVDPDatasetBuilder(**(options | changes))


def last_metrics(log_path: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]
    return {key: value for row in rows for key, value in row.items()}


def check_data(data: list[Any], texts: list[str]) -> None:
    """One datum an episode, its mask on the sampled ids alone."""
    for datum in data:
        inputs = datum.loss_fn_inputs
        targets = list(inputs["target_tokens"].data)
        advantages = list(inputs["advantages"].data)
        logprobs = list(inputs["logprobs"].data)
        sampled = [id_ for id_, value in zip(targets, logprobs, strict=True) if value]
        assert sampled == [id_ for text in texts for id_ in encode(text)]
        assert len(targets) == len(advantages)


async def test_rl_train(service: Service, tmp_path: Path) -> None:
    config = train.Config(
        learning_rate=1e-4,
        dataset_builder=builder(epochs=2, transcript_dir=str(tmp_path / "transcripts")),
        model_name=MODEL,
        recipe_name="cvdp",
        max_tokens=2_000,
        log_path=str(tmp_path / "run"),
        eval_every=0,
        save_every=0,
        rollout_error_tolerance=RetryOnFailure(max_retries=1),
    )
    await train.main(config)
    metrics = last_metrics(tmp_path / "run")
    assert metrics["env/all/reward/total"] == pytest.approx(1.4)
    for name in ("format_valid", "syntax_valid", "tests_passed", "stop/completed"):
        assert metrics[f"env/all/{name}"] == 1.0
    assert metrics["env/all/ac_tokens_per_turn"] > 1
    assert service.training.steps == 2
    assert len(service.training.data) == 4
    check_data(service.training.data, service.texts)
    assert len(list((tmp_path / "transcripts").iterdir())) == 4


async def test_train_on_policy(service: Service, tmp_path: Path) -> None:
    data = DistillationDatasetConfig(
        dataset_builder=builder(group_size=1), teacher_config=TeacherConfig(base_model=MODEL), groups_per_batch=1
    )
    config = train_on_policy.Config(
        learning_rate=1e-4,
        dataset_configs=[data],
        model_name=MODEL,
        recipe_name="cvdp",
        max_tokens=2_000,
        log_path=str(tmp_path / "run"),
        eval_every=0,
        save_every=0,
    )
    await train_on_policy.main(config)
    metrics = last_metrics(tmp_path / "run")
    assert metrics["teacher_kl"] == pytest.approx(0.25)  # the script's log-probability less the teacher's
    assert metrics["env/all/tests_passed"] == 1.0
    (datum,) = service.training.data
    check_data([datum], service.texts)
    advantages = [value for value in datum.loss_fn_inputs["advantages"].data if value]
    assert advantages == [pytest.approx(-0.25)] * sum(len(encode(text)) for text in service.texts)


def test_the_example_of_the_documentation(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tinker.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    # The scripted service has Qwen3's vocabulary.
    example = example.replace("group_size=8", "group_size=2").replace("Qwen3.5-9B", "Qwen3-8B")
    exec(compile(example, "docs/tinker.md", "exec"), {})
    assert last_metrics(tmp_path / "runs" / "arbiter")["env/all/tests_passed"] == 1.0
    assert len(list((tmp_path / "runs" / "arbiter" / "transcripts").iterdir())) == 2


async def test_the_test_set_evaluator(arbiter: Problem) -> None:
    train_set, _ = await builder(group_size=1)()
    evaluator = RLTestSetEvaluator(train_set, max_tokens=2_000)
    metrics = await evaluator(Sampling([solution(arbiter), f"Done.{END}"]))  # type: ignore[arg-type]
    assert metrics["test/env/all/tests_passed"] == 1.0


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.slow)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """Workers, each with an event loop of its own, and in one case a process of its own."""
    pool: Executor
    if request.param == "threads":
        pool = ThreadPoolExecutor(2)
    else:
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    set_rollout_executor(pool)
    yield pool
    set_rollout_executor(None)
    pool.shutdown()


async def test_rollouts_in_an_executor(executor: Executor, arbiter: Problem) -> None:
    set_rollout_executor(executor)  # in this task's own context
    train_set, _ = await builder(reward_weights=RewardWeights(simulate=False), epochs=2)()
    groups = []
    for i in range(2):
        (group,) = train_set.get_batch(i)
        done = await do_group_rollout_and_filter_constant_reward(
            Sampling([solution(arbiter), f"Done.{END}"]),
            group,
            max_tokens=2_000,
            temperature=1.0,
            do_remove_constant_reward_groups=False,
        )
        assert done is not None
        groups.append(done)
    assert [group.get_total_rewards() for group in groups] == [[pytest.approx(0.4)] * 2] * 2
