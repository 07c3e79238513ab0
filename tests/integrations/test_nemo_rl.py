"""NeMo RL: the configurations of its two runs, and a real episode of its own rollout."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
import yaml

from rtl_agent_gym.demo.shipped import shipped
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.integrations import session
from rtl_agent_gym.integrations.replay import ReplayedEnv
from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.renderers import ModelTurn, get_renderer
from rtl_agent_gym.sandboxes.admission import RESERVED
from tests.integrations.conformance import gray, solution
from tests.integrations.ecosystem import ROOT, call_in, clean, importable
from tests.integrations.players import BY_NAME
from tests.waiting import until

READ_RUN = """
import json, sys
from omegaconf import OmegaConf
from nemo_rl.algorithms.grpo import MasterConfig
from nemo_rl.environments.nemo_gym import should_use_nemo_gym
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

register_omegaconf_resolvers()
read = OmegaConf.to_container(load_config(sys.argv[1]), resolve=True)
config = MasterConfig(**read)
found = {"gym": should_use_nemo_gym(config), "model": config.policy["model_name"], "data": config.data["train"]}
found |= {"servers": config.env["nemo_gym"]["config_paths"], "cluster": config.cluster["gpus_per_node"]}
found |= {"validated": read["grpo"]["max_val_samples"]}
print(json.dumps(found))
"""


@pytest.mark.ecosystem
def test_nemo_rl_accepts_the_run_with_nemo_gym(tmp_path: Path) -> None:
    checkout = Path(os.environ.get("RTL_GYM_NEMO_RL", ""))
    if not (checkout / "nemo_rl").is_dir():
        pytest.skip("NeMo RL is on no package index: RTL_GYM_NEMO_RL must be the folder of a checkout")
    shutil.copytree(checkout / "examples/configs", tmp_path / "configs")
    (tmp_path / "nemo_gym").mkdir()
    place = shutil.copy(ROOT / "examples/nemo_rl/grpo.yaml", tmp_path / "nemo_gym")
    command = [os.environ.get("RTL_GYM_NEMO_RL_PYTHON", sys.executable), "-c", READ_RUN, str(place)]
    variables = clean() | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["gym"], found["model"], found["cluster"]) == (True, "Qwen/Qwen3.5-9B", 8)
    assert found["data"] == {"data_path": "results/rtl/train.jsonl"}
    assert found["servers"][-1] == "resources_servers/rtl/configs/rtl.yaml"
    assert found["validated"] is None


def test_the_run_with_nemo_gym_does_not_limit_validation() -> None:
    """NeMo RL refuses a limit there, and the configuration that the run inherits has one."""
    run = yaml.safe_load((ROOT / "examples/nemo_rl/grpo.yaml").read_text())
    assert run["grpo"].get("max_val_samples", "inherited") is None


async def nemo_rl(function: str, *arguments: Any) -> Any:
    """Call a function with NeMo RL's source, which is on no package index as it is used."""
    checkout, python = os.environ.get("RTL_GYM_NEMO_RL", ""), os.environ.get("RTL_GYM_NEMO_RL_PYTHON", "")
    if not (checkout and python):
        pytest.skip(
            "NeMo RL: RTL_GYM_NEMO_RL must be its checkout, RTL_GYM_NEMO_RL_PYTHON a Python with what it imports"
        )
    paths = {"PYTHONPATH": f"{ROOT}:{checkout}", "NEMO_RL": checkout, "NO_VCS_VERSION": "1"}
    return await call_in(python, "nemo_rl", function, *arguments, **paths)


def test_the_run_has_options_that_there_are() -> None:
    run = yaml.safe_load((ROOT / "examples/nemo_rl/environment.yaml").read_text())
    options = run["env"]["rtl"]
    get_renderer(options.pop("renderer"))
    assert {name: options.pop(name) for name in ("attempts", "workers", "idle_seconds")}
    assert options.pop("max_turns") == "${grpo.max_rollout_turns}"
    EpisodeConfig(**options, max_turns=run["grpo"]["max_rollout_turns"])


@pytest.mark.ecosystem
@pytest.mark.timeout(3600)
async def test_nemo_rls_own_loader_reads_the_run() -> None:
    found = await nemo_rl("parsed")
    assert found["env"]["max_turns"] == 50
    assert found["model"] == ["Qwen/Qwen3.5-9B", 32768, 32768]
    assert found["train_global_batch_size"] == found["batch"][0] * found["batch"][1]
    assert found["gpus"] == 8


@pytest.mark.ecosystem
@pytest.mark.docker
@pytest.mark.timeout(3600)
async def test_its_rollout_plays_a_real_episode_and_trains_what_was_sampled() -> None:
    found = await nemo_rl("play", BY_NAME["solved"], str(shipped("student")))
    assert (found["reward"], found["terminated"]) == (pytest.approx(1.4), 1.0)
    assert found["roles"] == ["user", *["assistant", "environment"] * 3]
    assert found["trained"] == found["sampled"]
    assert "rtl" in found["told"][0]
    for before, sampled, after in zip(found["prompts"], found["sampled"], found["prompts"][1:], strict=False):
        assert after[: len(before) + len(sampled)] == before + sampled


T = TypeVar("T")


class Interface(Generic[T]):
    """In the place of NeMo RL's `EnvironmentInterface`, which has no code of its own."""


class Return(NamedTuple):
    """In the place of its `EnvironmentReturn`."""

    observations: list[dict[str, str]]
    metadata: list[Any]
    next_stop_strings: list[None]
    rewards: Any
    terminateds: Any
    answers: None


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our adapter, without NeMo RL."""
    importable("torch")
    interfaces: Any = ModuleType("nemo_rl.environments.interfaces")
    interfaces.EnvironmentInterface, interfaces.EnvironmentReturn = Interface, Return
    for name in ("nemo_rl", "nemo_rl.environments"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interfaces.__name__, interfaces)
    try:
        yield importlib.import_module("rtl_agent_gym.integrations.nemo_rl")
    finally:
        sys.modules.pop("rtl_agent_gym.integrations.nemo_rl", None)


def turn(environment: Any, command: str, *rows: dict[str, Any]) -> Any:
    """What a step returns in which all these episodes run the same command."""
    text = write_turn(get_renderer("qwen3"), "", [command])
    return environment.step([[{"role": "assistant", "content": text}]] * len(rows), list(rows))


@pytest.fixture
def row() -> dict[str, Any]:
    """The metadata of a rollout that has not begun."""
    return {"problem_id": gray().id, "problems": "bundled"}


@pytest.mark.docker
def test_an_idle_episode_ends_and_does_not_go_on_in_an_empty_sandbox(module: Any, row: dict[str, Any]) -> None:
    environment = module.RTLEnvironment({"idle_seconds": 3600.0, "workers": 1})
    try:
        first = turn(environment, "touch docs/mine", row)
        second = turn(environment, "ls docs", first.metadata[0])
        assert "mine" in second.observations[0]["content"]
        environment._idle = 0.05
        assert until(lambda: not environment._episodes)
        with pytest.raises(SandboxError, match=f"an episode of {gray().id} is lost: idle for 0.05 s"):
            turn(environment, "ls docs", second.metadata[0])
    finally:
        environment.shutdown()


@pytest.mark.docker
def test_a_turn_that_was_cut_off_ends_its_episode_with_the_grading(module: Any, row: dict[str, Any]) -> None:
    environment = module.RTLEnvironment({"workers": 1})
    try:
        written = get_renderer("qwen3").turn_text(ModelTurn(calls=solution()))
        first = environment.step([[{"role": "assistant", "content": written}]], [row])
        assert (first.terminateds.tolist(), first.rewards.tolist()) == ([False], [0.0])
        last = environment.step([[{"role": "assistant", "content": '<tool_call>{"name"'}]], first.metadata)
        assert (last.terminateds.tolist(), last.rewards.tolist()) == ([True], [pytest.approx(1.4)])
        assert not environment._episodes
    finally:
        environment.shutdown()


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("<think>abc", True),
        ("<think>a</think>", False),
        ("<think>a</think>\n<tool_call>", True),
        ('<tool_call>\n{"name": "execute_bash", "arguments": {"comm', True),
        ('<tool_call>\n{"name": "execute_bash"\n</tool_call>', False),
        ("</tool_call>", False),
        ("", False),
    ],
)
def test_a_turn_is_cut_off_within_its_thinking_or_a_call(module: Any, text: str, cut: bool) -> None:
    dialect = get_renderer("qwen3")
    assert dialect.parse_text(text).kind == "malformed"
    assert module.is_cut_off(text, dialect) is cut


def test_rewards_of_turns_are_refused(module: Any) -> None:
    with pytest.raises(UsageError, match=r"turn_rewards must be 'none', not 'files': .* NeMo RL"):
        module.RTLEnvironment({"turn_rewards": "files"})


def test_a_step_without_memory_for_its_sandboxes_is_refused(
    module: Any, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "usage", lambda: {"agent/capacity": 1.0 * RESERVED["agent"]})
    environment = module.RTLEnvironment()
    try:
        with pytest.raises(UsageError, match="each of its 2 episodes, and there is memory for 1: lower"):
            turn(environment, "ls", row, row)
    finally:
        environment.shutdown()


def test_a_dialect_whose_calls_nemo_rl_takes_apart_is_refused(module: Any) -> None:
    importable("transformers")
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(shipped("student")))
    assert len(module.RTLDataset(tokenizer, renderer="qwen3")) > 10
    tokenizer.add_tokens(["<|start|>", "<|channel|>", "<|message|>", "<|call|>"], special_tokens=True)
    with pytest.raises(UsageError, match="this tokenizer has special tokens in a call"):
        module.RTLDataset(tokenizer, renderer="gpt_oss")


@pytest.mark.docker
def test_after_any_exception_the_sandbox_has_ended() -> None:
    env, action = ReplayedEnv(gray().id, {}), object()
    env.begin()
    with pytest.raises(UsageError, match="an action is the completion's text"):
        env.step(action)  # type: ignore[arg-type]
    assert env.episode is None
