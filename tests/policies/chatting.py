"""Conversations of a real chat policy with the stub server."""

from __future__ import annotations

from collections.abc import Callable

from rtl_agent_gym.policies import Completion
from rtl_agent_gym.policies.chat import ChatPlayer, ChatPolicy
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import Action, get_renderer
from rtl_agent_gym.renderers.actions import native_action

MakePolicy = Callable[..., ChatPolicy]
"""The fixture `policies`: a policy for a server, with options of `ModelOptions`, closed at the end of the test."""


def opened(policy: ChatPolicy, renderer: str = "qwen3", seed: int | None = 7) -> ChatPlayer:
    """A player after the opening of its episode."""
    player = policy.player(load_problems("bundled")[0], get_renderer(renderer), seed)
    player.opened("be an engineer", "design it")
    return player


def native(completion: Completion) -> Action:
    """The action of a native turn."""
    assert completion.native is not None
    return native_action(completion.native, truncated=completion.cut_off)


async def next_turn(player: ChatPlayer) -> Completion:
    """The player's next turn."""
    completion = await player.act([])
    assert completion is not None
    return completion


async def replied(player: ChatPlayer, *outputs: str) -> None:
    """Play a turn of commands and give these outputs back."""
    action = native(await next_turn(player))
    assert action.kind == "command"
    player.answered(action, outputs)
