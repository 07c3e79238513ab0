#!/usr/bin/env python
"""A training loop of your own: REINFORCE over vectorised environments, with a policy of four numbers.

    .venv/bin/python examples/custom_loop.py [--updates 3] [--envs 4] [--learning-rate 5] [--seed 0]

The policy writes the bundled 8-bit arbiter. It knows neither the name of the reset port nor which of two requests goes
first: it tries, and the hidden tests decide. Replace `Policy` with your model; the loop stays the same.
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np

import rtl_agent_gym  # noqa: F401 - registers the environments
from rtl_agent_gym.policies import heredoc, write_turn
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.scoring import RewardWeights

PROBLEM = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
REWARD = RewardWeights(format=0.0, syntax=0.0, interface=0.5, tests=1.0, partial_tests=True)
"""Each correct port and each passing hidden test counts, so a partly correct design earns more than a wrong one."""

RESETS = ("rst", "reset")
LOOPS = ("int i = 0; i < 8; i++", "int i = 7; i >= 0; i--")
"""The last grant in the loop wins: the highest request in the first, the lowest in the second."""

DESIGN = """\
module fixed_priority_arbiter (
    input  logic       clk,
    input  logic       RESET,
    input  logic [7:0] req,
    input  logic [7:0] priority_override,
    output logic [7:0] grant,
    output logic       valid,
    output logic [2:0] grant_index
);
    logic [7:0] active;
    assign active = priority_override != 0 ? priority_override : req;
    always_ff @(posedge clk) begin
        grant <= 0; valid <= 0; grant_index <= 0;
        if (!RESET)
            for (LOOP)
                if (active[i]) begin
                    grant <= 8'd1 << i; valid <= 1; grant_index <= i[2:0];
                end
    end
endmodule
"""


class Policy:
    """Two independent choices, each a softmax over two logits.

    Args:
        seed: Random seed of its samples.
    """

    def __init__(self, seed: int) -> None:
        self.logits = np.zeros((2, 2))
        self._draw = np.random.default_rng(seed)

    @property
    def probabilities(self) -> np.ndarray:
        """The probability of each option, of shape (choices, options); rows sum to 1."""
        odds = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def sample(self, episodes: int) -> np.ndarray:
        """The options taken, of shape (episodes, choices)."""
        right = self.probabilities[:, 1]
        return (self._draw.random((episodes, len(right))) < right).astype(int)

    def learn(self, taken: np.ndarray, rewards: np.ndarray, rate: float) -> None:
        """One REINFORCE step; the baseline is the batch's mean."""
        advantages = rewards - rewards.mean()
        for options, advantage in zip(taken, advantages, strict=True):
            self.logits += rate * advantage * (np.eye(2)[options] - self.probabilities) / len(taken)


def write(options: np.ndarray) -> str:
    """The completion for some options: one command that writes the design and compiles it."""
    design = DESIGN.replace("RESET", RESETS[options[0]]).replace("LOOP", LOOPS[options[1]])
    command = (
        heredoc("rtl/fixed_priority_arbiter.sv", design) + "\niverilog -g2012 -o rundir/sim rtl/*.sv && echo compiled"
    )
    return write_turn(get_renderer("qwen3"), "", [command])


def play(envs: gym.vector.VectorEnv, completions: list[str], seed: int) -> np.ndarray:
    """One episode in each environment: the command, then "Done.", after which the files are scored."""
    envs.reset(seed=seed, options={"problem_id": PROBLEM})
    observations, rewards, terminated, truncated, _ = envs.step(completions)
    assert all("compiled" in text for text in observations), observations
    observations, rewards, terminated, truncated, _ = envs.step(["Done."] * len(completions))
    assert np.all(terminated | truncated)
    return np.asarray(rewards)


def main() -> None:
    """Train the policy and print its progress."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=3, help="learning steps")
    parser.add_argument(
        "--envs", type=int, default=4, help="episodes per step, each with its own container and process"
    )
    parser.add_argument("--learning-rate", type=float, default=5.0, help="learning rate of REINFORCE")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the policy")
    options = parser.parse_args()

    policy = Policy(options.seed)
    envs = gym.make_vec("CVDPAgentic-v0", num_envs=options.envs, vectorization_mode="async", reward=REWARD, max_turns=4)
    print(f"{'update':>6}  {'mean reward':>11}  {'best':>4}  P(reset)  P(lowest first)")
    try:
        for update in range(1, options.updates + 1):
            taken = policy.sample(options.envs)
            rewards = play(envs, [write(row) for row in taken], seed=update)
            policy.learn(taken, rewards, options.learning_rate)
            named, lowest = policy.probabilities[:, 1]
            print(
                f"{update:>6}  {rewards.mean():>11.2f}  {rewards.max():>4.2f}  {named:>8.2f}  {lowest:>15.2f}",
                flush=True,
            )
    finally:
        envs.close()
    print(f"the most there is: {REWARD.most:g}")


if __name__ == "__main__":
    main()
