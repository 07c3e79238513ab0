"""Which problems a trainer gets, in which order, and what a builder holds."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook")
import chz
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder

from rtl_agent_gym.envs.problem_order import EpochSampler, Schedule
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
from rtl_agent_gym.envs.tinker_data import CVDPDataset, CVDPDatasetBuilder
from rtl_agent_gym.envs.tinker_env import CVDPEnvGroupBuilder
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import DIFFICULTIES, Problem, load_problems
from rtl_agent_gym.scoring import RewardWeights

PROBLEMS = load_problems("bundled")


def ids(dataset: Any) -> list[list[str]]:
    return [[builder.problem.id for builder in dataset.get_batch(i)] for i in range(len(dataset))]


def made(**changes: Any) -> CVDPDataset:
    return CVDPDataset(PROBLEMS, TinkerEnvConfig(), Schedule(**changes))


async def test_the_defaults_train_on_every_problem_once() -> None:
    train, test = await CVDPDatasetBuilder()()
    assert test is None
    assert isinstance(train, RLDataset)
    batches = ids(train)
    assert [len(batch) for batch in batches] == [1] * len(PROBLEMS)
    assert Counter(name for batch in batches for name in batch) == Counter(problem.id for problem in PROBLEMS)


def test_epochs_follow_each_other_and_only_the_last_batch_is_short() -> None:
    dataset = made(batch_size=4, epochs=3)
    batches = ids(dataset)
    flat = [name for batch in batches for name in batch]
    size = len(PROBLEMS)
    assert {len(batch) for batch in batches[:-1]} == {4}
    assert len(flat) == 3 * size
    orders = [flat[i * size : (i + 1) * size] for i in range(3)]
    assert all(sorted(order) == sorted(problem.id for problem in PROBLEMS) for order in orders)
    assert orders[0] != orders[1] != orders[2]


def test_the_seed_decides_the_order() -> None:
    assert ids(made(batch_size=3, seed=5)) == ids(made(batch_size=3, seed=5))
    assert ids(made(batch_size=3, seed=5)) != ids(made(batch_size=3, seed=6))
    dataset = made(batch_size=3)
    assert ids(dataset)[2] == [
        builder.problem.id for builder in made(batch_size=3).get_batch(2)
    ]  # whatever came before


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_a_seed_that_cannot_be_one_is_refused_at_once(seed: Any) -> None:
    with pytest.raises(UsageError, match=r"^seed must be a whole number of at least 0, got "):
        Schedule(seed=seed)


def test_the_curriculum_goes_from_easy_to_hard_in_each_epoch() -> None:
    sampler = made(order="curriculum", epochs=2).problem_sampler
    assert isinstance(sampler, EpochSampler)
    for number in range(2):
        ranks = [DIFFICULTIES.index(problem.difficulty) for problem in sampler.epoch(number)]
        assert ranks == sorted(ranks)
        assert len(set(ranks)) > 1
    assert sampler.epoch(0) != sampler.epoch(1)


def test_the_given_order_is_kept() -> None:
    assert [name for batch in ids(made(order="given")) for name in batch] == [problem.id for problem in PROBLEMS]


async def test_held_out_problems_are_never_trained_on() -> None:
    builder = CVDPDatasetBuilder(held_out=0.4, seed=1, batch_size=2, group_size=4, epochs=2)
    train, test = await builder()
    assert test is not None
    trained = {name for batch in ids(train) for name in batch}
    tested = [name for batch in ids(test) for name in batch]
    assert trained.isdisjoint(tested)
    assert len(trained) + len(tested) == len(PROBLEMS)
    assert len(tested) == len(set(tested)) > 0
    assert {b.group_size for b in train.get_batch(0)} == {4}  # type: ignore[attr-defined]
    assert {b.group_size for b in test.get_batch(0)} == {1}  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="leave no problem to train on"):
        await CVDPDatasetBuilder(held_out=1.0)()


async def test_filters() -> None:
    train, _ = await CVDPDatasetBuilder(categories=["cid016"], difficulties=["easy", "medium", "hard"])()
    chosen = [b.problem for i in range(len(train)) for b in train.get_batch(i)]  # type: ignore[attr-defined]
    assert {problem.category for problem in chosen} == {16}
    train, _ = await CVDPDatasetBuilder(ids=[PROBLEMS[3].id])()
    assert ids(train) == [[PROBLEMS[3].id]]


async def test_what_cannot_be_scored_is_left_out_and_said(cvdp_data: Path) -> None:
    source = cvdp_data / "cvdp_v1.1.0_example_nonagentic_code_comprehension.jsonl"
    with pytest.raises(UsageError, match=r"no selected problem of .* can be scored here: .+"):
        await CVDPDatasetBuilder(problems=str(source))()


async def test_a_judge_keeps_the_problems_that_need_one(tmp_path: Path) -> None:
    row = {
        "id": "cvdp_copilot_counter_0001", "categories": ["cid009", "easy"], "harness": {},
        "input": {"prompt": "Why?", "context": {}}, "output": {"response": "Because it is so.", "context": {}},
    }  # fmt: skip
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"no selected problem of .* can be scored here: .+"):
        await CVDPDatasetBuilder(problems=str(source))()
    train, _ = await CVDPDatasetBuilder(problems=str(source), judge="chat:judge", held_out=0.0)()
    (builder,) = train.get_batch(0)
    assert builder.config.episode.judge == "chat:judge"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["batch_size", "group_size", "epochs"])
async def test_counts_must_be_positive(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least 1"):
        await CVDPDatasetBuilder(**{name: 0})()  # type: ignore[arg-type]


async def test_bad_options_are_said() -> None:
    with pytest.raises(UsageError, match="max_prompt_tokens"):
        await CVDPDatasetBuilder(max_prompt_tokens=0)()
    with pytest.raises(UsageError, match="harness_feedback must be 0 or more"):
        await CVDPDatasetBuilder(harness_feedback=-1)()
    with pytest.raises(UsageError, match="order is 'random'"):
        await CVDPDatasetBuilder(order="random")()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no reward preset 'much'"):
        await CVDPDatasetBuilder(reward="much")()
    with pytest.raises(UsageError, match="no reward preset 'much'"):
        TinkerEnvConfig(reward="much")
    with pytest.raises(UsageError, match=r"reward must be .* not a function"):
        TinkerEnvConfig(reward=lambda score: score.credit)
    with pytest.raises(IndexError):
        made().get_batch(len(PROBLEMS))
    with pytest.raises(UsageError, match="needs at least one problem"):
        CVDPDataset([], TinkerEnvConfig(), Schedule())


async def test_options_reach_the_environments() -> None:
    builder = CVDPDatasetBuilder(
        max_turns=7, command_timeout=3.0, max_tokens=99, max_trajectory_tokens=9_000, max_prompt_tokens=4_000,
        reward="dense", transcript_dir="/tmp/t", score_cache="/tmp/c", single_turn=True, renderer_name="qwen3_instruct",
    )  # fmt: skip
    train, _ = await builder()
    (group,) = train.get_batch(0)
    assert isinstance(group, CVDPEnvGroupBuilder)
    config = group.config
    assert (config.episode.max_turns, config.episode.command_timeout) == (7, 3.0)
    assert (config.episode.max_tokens, config.episode.max_trajectory_tokens, config.episode.max_prompt_tokens) == (
        99,
        9_000,
        4_000,
    )
    assert config.reward == TinkerEnvConfig(reward="dense").reward == RewardWeights.preset("dense")
    assert (config.episode.transcript_dir, config.score_cache) == (Path("/tmp/t"), Path("/tmp/c"))
    assert (config.single_turn, config.renderer_name) == (True, "qwen3_instruct")
    rules = CVDPDatasetBuilder(harness_feedback=3, progress_coef=0.2).env_config().episode
    assert (rules.harness_feedback, rules.progress_coef) == (3, 0.2)


def test_the_command_line_of_the_cookbook_sets_options() -> None:
    line = [
        "problems=bundled",
        "group_size=4",
        "categories=cid003,cid005",
        "order=curriculum",
        "max_tokens=512",
        "held_out=0.3",
    ]
    builder = chz.Blueprint(CVDPDatasetBuilder).make_from_argv(line)
    assert isinstance(builder, RLDatasetBuilder)
    assert (builder.group_size, builder.categories, builder.order) == (4, ["cid003", "cid005"], "curriculum")
    assert (builder.max_tokens, builder.held_out) == (512, 0.3)


def test_builders_are_the_cookbooks_and_pickle() -> None:
    (group,) = made().get_batch(0)
    assert isinstance(group, EnvGroupBuilder)
    copy = pickle.loads(pickle.dumps(group))
    assert (copy.problem, copy.config) == (group.problem, group.config)
    harness = {"docker-compose.yml": "services: {}\n"}
    small = Problem(id="x", category=3, difficulty="easy", prompt="p", harness=harness)
    assert len(pickle.dumps(CVDPEnvGroupBuilder(small))) < 2_500  # configuration, no vocabulary and no connection


def test_the_environments_import_neither_face() -> None:
    script = "import sys, rtl_agent_gym.envs; print([m for m in ('tinker', 'torch', 'chz') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_option_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tinker.md").read_text()
    missing = [name for name in chz.chz_fields(CVDPDatasetBuilder) if f"`{name}`" not in text]
    assert missing == []
