"""A new reward: weights of the stages, or a function of the score. A violation already earns nothing for tests."""

from __future__ import annotations

import gymnasium as gym
import pytest

from rtl_agent_gym.scoring import RewardWeights, Score

ANSWER = """\
```systemverilog rtl/fixed_priority_arbiter.sv
module fixed_priority_arbiter(input clk); endmodule
```"""


def ports(score: Score) -> float:
    return 10.0 if score.interface == 1.0 else score.interface


@pytest.mark.docker
@pytest.mark.parametrize("reward", [RewardWeights(format=0.0, syntax=0.25, tests=2.0), {"syntax": 0.75}, ports])
def test_a_new_reward(reward: object) -> None:
    env = gym.make("CVDPSingleTurn-v0", reward=reward)
    env.reset(options={"problem_id": "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"})
    _, earned, *_, info = env.step(ANSWER)  # syntax is right, ports and tests are not
    score = Score.model_validate(info["score"])
    assert (score.syntax, score.passed, score.interface < 1.0) == (1.0, False, True)
    expected = {"RewardWeights": 0.25, "dict": 0.1 + 0.75, "function": score.interface}
    assert earned == pytest.approx(expected[type(reward).__name__])
    env.close()
