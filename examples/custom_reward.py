#!/usr/bin/env python
"""A reward of your own: other weights, a function of the score, and one that compares the episodes of a group.

    .venv/bin/python examples/custom_reward.py

1. `RewardWeights` sets the weights of the stages that are measured anyway.
2. In Gymnasium, a wrapper computes the reward from the `Score` and the number of turns.
3. In tinker-cookbook, a group builder does the same, and may also compare the episodes of a group. A script replaces
   the model, so no key is needed.

The third needs the extra ``train``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Env, Metrics, Trajectory

import rtl_agent_gym  # noqa: F401 - registers the environments
from data.bundled import wrong_designs
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
from rtl_agent_gym.envs.tinker_env import CVDPEnvGroupBuilder
from rtl_agent_gym.policies import heredoc, write_turn
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer
from rtl_agent_gym.scoring import RewardWeights, Score

ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
WEIGHTS = RewardWeights(format=0.0, syntax=0.2, interface=0.3, tests=1.0, partial_tests=True)
NOTHING = RewardWeights(format=0.0, syntax=0.0, tests=0.0)
"""The hidden tests run, but earn nothing: for rewards that are computed elsewhere."""


def thrifty(tests_share: float, violations: float, turns: int) -> float:
    """The share of hidden tests that pass, squared, minus 0.05 per turn; -1 for an attempt against the grader."""
    return -1.0 if violations else tests_share**2 - 0.05 * turns


def share(score: Score) -> float:
    """The share of hidden tests that pass."""
    return score.tests_passed / score.tests_total if score.tests_total else 0.0


class ThriftyReward(gym.Wrapper[str, str, str, str]):
    """Gives `thrifty` at the episode's end instead of the environment's reward."""

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """As in Gymnasium."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "score" in info:  # the last turn
            score = Score.model_validate(info["score"])
            reward = thrifty(share(score), len(score.violations), info["turn"])
        return observation, reward, terminated, truncated, info


class ThriftyGroup(CVDPEnvGroupBuilder):
    """`thrifty`, plus 0.5 for the shortest passing episode of the group. Works with any cookbook trainer."""

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """One reward per episode, which the cookbook adds to the rewards of its steps."""
        ends = [trajectory.transitions[-1].metrics for trajectory in trajectory_group]
        turns = [len(trajectory.transitions) for trajectory in trajectory_group]
        passing = [n for n, end in zip(turns, ends, strict=True) if end["tests_passed"]]
        rewards: list[tuple[float, Metrics]] = []
        for n, end in zip(turns, ends, strict=True):
            bonus = 0.5 if end["tests_passed"] and n == min(passing) else 0.0
            rewards.append((thrifty(end["tests_share"], end["violations"], n) + bonus, {"bonus": bonus}))
        return rewards


class Script(TokenCompleter):
    """Replaces the model. The first episode writes the design at once, the second lists the files first."""

    def __init__(self, design: str) -> None:
        self._tokenizer, self._design, self._openings = qwen3_tokenizer(), design, 0

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The next turn's tokens."""
        text = self._say(self._tokenizer.decode(model_input.to_ints(), skip_special_tokens=False))
        ids = self._tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False).ids
        return TokensWithLogprobs(ids, [0.0] * len(ids), stop_reason="stop")

    def _say(self, prompt: str) -> str:
        if self._design in prompt:
            return "Done."
        if "<tool_response>" in prompt:
            return self._design
        self._openings += 1
        return self._design if self._openings == 1 else write_turn(get_renderer("qwen3"), "", ["ls docs rtl verif"])


def turn(files: dict[str, str]) -> str:
    """A completion in Qwen3's dialect that writes files."""
    commands = "\n".join(heredoc(path, text) for path, text in files.items())
    return write_turn(get_renderer("qwen3"), "", [commands])


def weighed(score: Score, weights: RewardWeights) -> float:
    """The reward of a score under other weights, without grading again."""
    return weights.reward(
        passed=score.passed,
        format=score.format,
        syntax=score.syntax,
        interface=score.interface,
        compile=score.compile,
        tests=share(score),
    )


def in_gymnasium(problem: Problem, golden: dict[str, str]) -> None:
    """Three designs, each rewarded in three ways."""
    wrong = wrong_designs(problem.id)
    designs = {"right": golden} | {name: wrong[name] for name in ("highest_bit_wins", "rst_n_for_reset")}
    env = ThriftyReward(gym.make("CVDPAgentic-v0", problems=[problem], reward=WEIGHTS))
    print(f"{'design':<18} {'default':>8} {'weights':>8} {'thrifty':>8}")
    try:
        for name, files in designs.items():
            env.reset(seed=0)
            env.step(turn(files))
            _, own, _, _, info = env.step("Done.")
            score = Score.model_validate(info["score"])
            default = weighed(score, RewardWeights())
            print(f"{name:<18} {default:>8.2f} {score.reward:>8.2f} {float(own):>8.2f}", flush=True)
    finally:
        env.close()


async def in_tinker(problem: Problem, golden: dict[str, str]) -> None:
    """A group of two correct episodes, one of which takes an extra turn."""
    group = ThriftyGroup(problem, TinkerEnvConfig(model_name="Qwen/Qwen3-8B", reward=NOTHING), group_size=2)
    played = await do_group_rollout(group, Script(turn(golden)))
    print("a group of two:")
    for trajectory, reward, metrics in zip(
        played.trajectories_G, played.get_total_rewards(), played.metrics_G, strict=True
    ):
        print(f"  {len(trajectory.transitions)} turns: reward {reward:.2f}, of which bonus {metrics['bonus']:.1f}")


def main() -> None:
    """Show all three."""
    problem = load_problems("bundled", ids=[ARBITER])[0]
    assert problem.golden is not None
    in_gymnasium(problem, problem.golden)
    asyncio.run(in_tinker(problem, problem.golden))


if __name__ == "__main__":
    main()
