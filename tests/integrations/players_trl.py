"""TRL as a player: the environment and its reward function as `GRPOTrainer` calls them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtl_agent_gym.integrations.trl import FAULT, RTLEnvironment, hidden_tests
from rtl_agent_gym.renderers import ToolCall
from tests.integrations.conformance import Played, Script, gray, in_short, kill


def call_tool(environment: RTLEnvironment, call: ToolCall) -> str:
    """What TRL's loop makes of a parsed call: an exception of the tool becomes a text."""
    try:
        return str(getattr(environment, call.name)(**json.loads(call.arguments)))
    except Exception as error:
        return str({"error": str(error)})


def sandbox_of(environment: RTLEnvironment) -> str:
    """The container of an environment whose sandbox has started."""
    assert environment._session is not None
    return environment._session.episode.sandbox.id


async def grade(environments: Sequence[RTLEnvironment], completions: Sequence[Any], **more: Any) -> list[float | None]:
    """What the reward function returns in a loop of its own, as TRL has one."""
    rewards = hidden_tests(completions=completions, environments=environments, problem_id=[], **more)
    return await asyncio.to_thread(asyncio.run, rewards)


class TrlPlayer:
    name = "TRL 1.16"

    async def play(self, script: Script, folder: Path) -> Played:
        environment = RTLEnvironment([gray()], config=script.config.with_options(transcript_dir=folder))
        completion, observations = await asyncio.to_thread(roll_out, environment, script)
        numbers: dict[str, float] = {}
        (reward,) = await grade([environment], [completion], log_metric=numbers.__setitem__)
        if reward is None:
            assert numbers == {"rtl/faults": 1.0}
            return Played(None, None, observations)
        assert numbers["rtl/reward"] == reward
        return Played(reward, bool(numbers["rtl/tests_passed"]), observations)


def roll_out(environment: RTLEnvironment, script: Script) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Play a script without its grading. Returns the completion in TRL's form, and what the model read."""
    completion: list[dict[str, Any]] = []
    observations: list[str] = []
    environment.reset(prompt=[], problem_id=gray().id)
    for number, said in enumerate(script.turns, start=1):
        if isinstance(said, str):
            completion.append({"role": "assistant", "content": said})
            break
        if number == script.fault_in:
            kill(sandbox_of(environment))
        replies = [call_tool(environment, call) for call in said]
        completion.append({"role": "assistant", "content": "", "tool_calls": list(said)})
        completion += [{"role": "tool", "content": reply} for reply in replies]
        if FAULT in replies:
            break
        observations.append(in_short("\n".join(replies)))
    return completion, tuple(observations)
