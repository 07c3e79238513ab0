"""NeMo RL: its run's configuration, and a real episode of its own rollout."""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml

from rtl_agent_gym.demo.shipped import shipped
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.renderers import ToolCall, get_renderer
from tests.integrations.conformance import Script, solution
from tests.integrations.ecosystem import ROOT, call_in

SOLVED = Script("solved", ((ToolCall.of("ls"),), solution(), "Done."))


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
    found = await nemo_rl("play", SOLVED, str(shipped("student")))
    assert (found["reward"], found["terminated"]) == (pytest.approx(1.4), 1.0)
    assert found["roles"] == ["user", *["assistant", "environment"] * 3]
    assert found["trained"] == found["sampled"]
    assert "rtl" in found["told"][0]
    for before, sampled, after in zip(found["prompts"], found["sampled"], found["prompts"][1:], strict=False):
        assert after[: len(before) + len(sampled)] == before + sampled
