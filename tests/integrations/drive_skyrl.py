"""Plays scripts with SkyRL-gym, as text in Qwen's dialect; `play` runs where SkyRL-gym is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.renderers import get_renderer
from tests.integrations.conformance import Played, Script, gray, in_short, text_of
from tests.sandboxes.providers import kill

QWEN = get_renderer("qwen3")


class SkyrlPlayer:
    """With one attempt, since a fault that is retried gives a verdict.

    Args:
        attempts: ``env_config.attempts``.
    """

    name = "SkyRL-gym 0.4"

    def __init__(self, attempts: int = 1) -> None:
        self._attempts = attempts

    async def play(self, script: Script, folder: Path) -> Played:
        from tests.integrations.ecosystem import call, read_played  # not in SkyRL's Python, which has no pytest

        return read_played(await call("skyrl", "play", script, folder, self._attempts))


def play(script: Script, folder: Path, attempts: int) -> Played:
    """Play it in this process."""
    import skyrl_gym

    from rtl_agent_gym.integrations.skyrl import RTLTextEnv, register

    register()
    rules = {name: getattr(script.config, name) for name in type(script.config).model_fields}
    config = rules | {"transcript_dir": folder, "renderer": "qwen3", "attempts": attempts}
    env: Any = skyrl_gym.make("rtl", env_config=config, extras={"problem_id": gray().id})
    assert isinstance(env, RTLTextEnv)
    observations: list[str] = []
    total, step = 0.0, None
    try:
        messages, _ = env.init([])
        assert [message["role"] for message in messages] == ["system", "user"]
        for number, given in enumerate(script.turns, 1):
            if number == script.fault_in:
                assert env._env.episode is not None
                kill(env._env.episode.sandbox)
            step = env.step(text_of(given, QWEN))
            total += step["reward"]
            if not isinstance(given, str) and not step["done"]:
                (message,) = step["observations"]
                observations.append(in_short("\n".join(QWEN.read_observation(message["content"], len(given)))))
        assert step is not None
        assert step["done"]
        metrics = env.get_metrics()
    except SandboxError:
        return Played(None, None, tuple(observations))
    finally:
        env.close()
    assert metrics["reward"] == total
    read_all = isinstance(script.turns[-1], str)  # the model does not read the output of the last turn
    return Played(total, bool(metrics["tests_passed"]), tuple(observations) if read_all else None, metrics)


def step_wrongly() -> tuple[str, bool]:
    """The error of an action that is no text, and whether the episode has ended."""
    from rtl_agent_gym.integrations.skyrl import RTLTextEnv

    env, action = RTLTextEnv(extras={"problem_id": gray().id}), object()
    env.init([])
    try:
        env.step(action)  # type: ignore[arg-type]
    except UsageError as error:
        return str(error), env._env.episode is None
    raise AssertionError("the action was accepted")
