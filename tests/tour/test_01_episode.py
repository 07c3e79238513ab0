"""An episode: text in, text out, through Gymnasium. Commands run in a container; a turn without one ends it."""

from __future__ import annotations

import gymnasium as gym
import pytest

import rtl_agent_gym  # noqa: F401 - registers the environments
from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.renderers import get_renderer

ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"


@pytest.mark.docker
def test_an_episode() -> None:
    env = gym.make("CVDPAgentic-v0", renderer="qwen3", max_turns=10)
    prompt, info = env.reset(seed=0, options={"problem_id": ARBITER})
    assert "docs/specification.md" in prompt
    assert info["category"] == 3  # from specification to RTL

    qwen = get_renderer("qwen3")  # writes what a model of this family would
    observation, reward, terminated, truncated, info = env.step(write_turn(qwen, "Look.", ["cd rtl; pwd; ls nowhere"]))
    assert observation.startswith("<tool_response>\n/code/rtl\n")
    assert (info["exit_code"], reward, terminated, truncated) == (2, 0.0, False, False)

    observation, *_ = env.step(write_turn(qwen, "", ["pwd"]))  # one shell for the whole episode
    assert "/code/rtl" in observation

    *_, reward, terminated, truncated, info = env.step("Done.")
    assert (terminated, truncated, info["stop_reason"]) == (True, False, "completed")
    assert info["score"]["passed"] is False  # nothing was written
    env.close()  # the container is gone
