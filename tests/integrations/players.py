"""The three players that need no other framework, and the comparison of any player with the session of all adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import gymnasium as gym

import rtl_agent_gym  # noqa: F401 - registers the environments
from rtl_agent_gym.envs import CVDPAgenticEnv
from rtl_agent_gym.episodes.runtime import acquire
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.integrations.session import ToolSession
from rtl_agent_gym.renderers import get_renderer
from tests.integrations.conformance import EXPECTED, Played, Player, Script, gray, in_short, scripts, text_of
from tests.integrations.ecosystem import play_all
from tests.integrations.table import recorded
from tests.sandboxes.providers import kill

QWEN = get_renderer("qwen3")
USER, ASSISTANT = "\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
"""What stands before and after an observation among the tokens: how its message begins and ends."""


ABSENT = {"submissions": 0.0, "progress_reward": 0.0}
"""Numbers that the cookbook's face leaves out where there are no submissions."""


class SessionPlayer:
    name = "ToolSession"

    async def play(self, script: Script, folder: Path) -> Played:
        session = ToolSession(gray(), script.config.with_options(transcript_dir=folder))
        observations = []
        try:
            await session.start()
            for number, given in enumerate(script.turns, 1):
                if number == script.fault_in:
                    kill(session.episode.sandbox)
                turn = await session.act(given)
                if not isinstance(given, str):
                    observations.append(in_short(turn.replies()[0]))
            result = await session.finish("max_turns")
        except SandboxError:
            return Played(None, None, tuple(observations))
        finally:
            await session.close()
        return Played(result.reward, result.score.passed, tuple(observations), result.numbers)


BY_NAME = {script.name: script for script in scripts()}


async def compare(framework: str, player: Player, name: str, folder: Path) -> None:
    """Play a script in a session and in a framework: both must find the same. Note that for the table of the docs."""
    for place in ("here", "there"):
        (folder / place).mkdir()
    with recorded(framework, [name]) as notes:
        here = await SessionPlayer().play(BY_NAME[name], folder / "here")
        there = await player.play(BY_NAME[name], folder / "there")
        check_equal(name, there, here)
        notes.add(name, there, observations=there.observations is not None)


async def compared(name: str, folder: Path, **variables: str) -> AsyncIterator[tuple[Script, Played, Played]]:
    """Each script as the environment `name` has played it, below ``folder/there``, and as a session plays it.

    Both must have found the same. The environment plays all of them in one process.
    """
    played = await play_all(name, scripts(), folder / "there", **variables)
    for script, there in zip(scripts(), played, strict=True):
        (folder / script.name).mkdir()
        here = await SessionPlayer().play(script, folder / script.name)
        check_equal(script.name, there, here)
        yield script, there, here


def check_equal(name: str, there: Played, here: Played) -> None:
    """What a framework shows of a script must be the session's."""
    assert here.passed is EXPECTED[name]
    assert (name, there.reward, there.passed) == (name, here.reward, here.passed)
    if there.numbers is not None:
        assert (name, there.other_numbers(here)) == (name, {})
    if there.observations is not None:
        assert (name, there.observations) == (name, here.observations)


class GymnasiumPlayer:
    name = "Gymnasium"

    async def play(self, script: Script, folder: Path) -> Played:
        return await asyncio.to_thread(self._play, script, folder)

    def _play(self, script: Script, folder: Path) -> Played:
        env = gym.make("CVDPAgentic-v0", problems=[gray()], config=script.config, transcript_dir=folder)
        face = cast("CVDPAgenticEnv", env.unwrapped)
        observations, total = [], 0.0
        info: dict[str, Any] = {}
        try:
            env.reset(seed=0)
            for number, given in enumerate(script.turns, 1):
                if number == script.fault_in:
                    assert face.episode is not None
                    kill(face.episode.sandbox)
                observation, reward, terminated, truncated, info = env.step(text_of(given, QWEN))
                total += float(reward)
                if not isinstance(given, str):
                    observations.append(in_short("\n".join(QWEN.read_observation(observation, len(given)))))
            assert terminated or truncated
        except SandboxError:
            return Played(None, None, tuple(observations))
        finally:
            env.close()
        assert info["numbers"]["reward"] == total
        return Played(total, info["score"]["passed"], tuple(observations), info["numbers"])


class CookbookPlayer:
    """With tokens: each prompt must be the one before, the sampled ids, and what was appended to them."""

    name = "tinker-cookbook"

    async def play(self, script: Script, folder: Path) -> Played:
        from tinker_cookbook.rl.rollouts import do_single_rollout

        from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig, load_renderer
        from rtl_agent_gym.envs.tinker_env import CVDPEnv
        from tests.envs.scripted_tinker import END, LOGPROB, encode

        config = TinkerEnvConfig(model_name="Qwen/Qwen3-8B", episode=script.config.with_options(transcript_dir=folder))
        lease = acquire()
        runtime, renderer = lease.runtime, load_renderer(config)
        env = CVDPEnv(gray(), config, renderer=renderer, provider=runtime.agents, grader=runtime.scorer(None))
        turns, sampled, prompts = iter(enumerate(script.turns, 1)), list[list[int]](), list[list[int]]()

        async def policy(prompt: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
            from tinker_cookbook.completers import TokensWithLogprobs

            number, given = next(turns)
            if number == script.fault_in:
                kill(env.episode.sandbox)
            prompts.append(prompt.to_ints())
            sampled.append(encode(text_of(given, QWEN) + END))
            return TokensWithLogprobs(sampled[-1], [LOGPROB] * len(sampled[-1]), stop_reason="stop")

        def observations() -> tuple[str, ...]:
            """What was appended to each turn of calls, read from the tokens; nothing is appended to the last one."""
            found = []
            for given, before, ids, after in zip(script.turns, prompts, sampled, prompts[1:], strict=False):
                assert after[: len(before) + len(ids)] == before + ids
                if not isinstance(given, str):
                    appended = renderer.decode(after[len(before) + len(ids) :])
                    text = appended.removeprefix(USER).removesuffix(ASSISTANT)
                    found.append(in_short("\n".join(QWEN.read_observation(text, len(given)))))
            return tuple(found)

        try:
            trajectory = await do_single_rollout(policy, env)  # type: ignore[arg-type]
        except SandboxError:
            return Played(None, None, observations())
        finally:
            await env.close()
            await lease.release()
        last = trajectory.transitions[-1].metrics
        reward = sum(transition.reward for transition in trajectory.transitions)
        assert last["reward"] == reward
        return Played(reward, bool(last["tests_passed"]), observations(), ABSENT | last)
