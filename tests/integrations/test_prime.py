"""prime-rl: its run's configuration, and real episodes through its environment server with an engine of token ids."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.demo.shipped import shipped
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.options import ProblemOptions
from tests.integrations.ecosystem import ROOT, call
from tests.integrations.players import BY_NAME

RUN = ROOT / "examples/prime_rl/rl.toml"


def sources() -> list[dict[str, Any]]:
    """The environments of the run."""
    orchestrator = tomllib.loads(RUN.read_text())["orchestrator"]
    return [source["env"] for part in ("train", "eval") for source in orchestrator[part]["source"]]


def test_the_run_has_options_that_there_are() -> None:
    assert len(sources()) == 2
    for taskset in (env["taskset"] for env in sources()):
        assert taskset.pop("id") == "rtl_agent_gym_verifiers"
        EpisodeConfig(**taskset.pop("task", {}))
        ProblemOptions.model_validate(taskset)


@pytest.mark.ecosystem
@pytest.mark.docker
@pytest.mark.timeout(3600)
async def test_an_environment_server_plays_a_real_episode_and_trains_what_was_sampled() -> None:
    rules = {"turn_rewards": "files", "turn_grading_time": None}
    found = await call("prime", "play", BY_NAME["solved"], str(shipped("student")), rules)
    trace = found["trace"]
    assert (trace["ok"], trace["errors"]) == (True, [])
    assert trace["rewards"]["hidden_tests"] == {"score": 1.4, "weight": 1.0}
    assert trace["info"]["turn_rewards"] == [0.0, 1.4, 0.0]
    nodes = [node for node in trace["nodes"] if any(node["mask"])]
    marks = [zip(node["token_ids"], node["mask"], strict=True) for node in nodes]
    assert [[id_ for id_, sampled in pairs if sampled] for pairs in marks] == found["sampled"]
    assert len(nodes) == len(trace["info"]["turn_rewards"])
    assert [len(node["logprobs"]) for node in nodes] == [sum(node["mask"]) for node in nodes]


@pytest.mark.ecosystem
async def test_prime_rls_own_parser_reads_the_run() -> None:
    checkout = Path(os.environ.get("RTL_GYM_PRIME_RL", ""))
    configs = checkout / "packages/prime-rl-configs/src"
    if not (configs / "prime_rl").is_dir():
        pytest.skip("prime-rl is on no package index: RTL_GYM_PRIME_RL must be the folder of a checkout")
    found = await call("prime", "parsed", PYTHONPATH=f"{ROOT}:{configs}")
    assert found["problems"] == ["cvdp", "bundled"]
    assert found["rows"] == ["fair", "all"]
    assert found["addresses"] == 2
    assert found["gpus"] == [4, 4]
