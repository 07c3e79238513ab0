"""Who acts in an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..problems import Problem
from ..renderers import Renderer
from ..renderers.protocol import Message


@dataclass(frozen=True)
class Completion:
    """What a policy said in one turn."""

    text: str
    token_ids: Sequence[int] | None = None
    """The sampled ids, where the policy samples tokens; they and not `text` are then what was said."""
    logprobs: Sequence[float] | None = None
    """Natural logarithm of each sampled token's probability; as long as `token_ids`."""
    cut_off: bool = False
    """Whether the token limit ended it."""


class Player(Protocol):
    """A policy's part in one episode."""

    async def act(self, messages: Sequence[Message]) -> Completion:
        """The next turn, given the conversation so far: system, user, then assistant and user in turns."""
        ...


class Policy(Protocol):
    """Makes a player for each episode. One policy serves any number of episodes at once."""

    @property
    def name(self) -> str:
        """How results call it."""
        ...

    def player(self, problem: Problem, renderer: Renderer) -> Player:
        """A player for one episode. Raises `UsageError` when the policy cannot play this problem."""
        ...
