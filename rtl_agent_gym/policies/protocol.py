"""Who acts in an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..problems import Problem
from ..renderers import Action, Message, ModelTurn, Renderer


@dataclass(frozen=True)
class Completion:
    """What a policy said in one turn."""

    text: str
    """The words, control tokens that the model wrote spelled out."""
    token_ids: Sequence[int] | None = None
    """The sampled ids, where the policy samples tokens; they and not `text` are then what was said."""
    logprobs: Sequence[float] | None = None
    """Natural logarithm of each sampled token's probability; as long as `token_ids`."""
    cut_off: bool = False
    """Whether the token limit ended it."""
    prompt_tokens: int | None = None
    """Tokens the model read for it, where that is known."""
    output_tokens: int | None = None
    """Tokens it is made of, where that is known; None with `token_ids` means their number."""
    native: ModelTurn | None = None
    """The turn as a service with tool calls of its own reported it; this is then what is acted on, and `text` is only
    what the service gave as text."""


class Player(Protocol):
    """A policy's part in one episode."""

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """The next turn, given the conversation so far: system, user, then assistant and user in turns.

        None when there is no room for another turn in the model's context; the episode is then graded as it stands.

        Raises:
            ModelError: The service behind the policy does not answer; says nothing about the agent.
            UsageError: The service will never answer this: wrong key, unknown model.
        """
        ...


@runtime_checkable
class Listener(Protocol):
    """A player that wants more than chat messages: it is told of the opening and of each answer in their parts."""

    def opened(self, system: str, user: str) -> None:
        """The episode begins."""
        ...

    def answered(self, action: Action, outputs: Sequence[str]) -> None:
        """What was read in the last completion, and what goes back for it: one output a command, none for others."""
        ...


class Policy(Protocol):
    """Makes a player for each episode. One policy serves any number of episodes at once."""

    @property
    def name(self) -> str:
        """How results call it."""
        ...

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> Player:
        """A player for one episode, which draws whatever it draws from `seed`.

        Raises `UsageError` when the policy cannot play this problem.
        """
        ...


@runtime_checkable
class Closable(Protocol):
    """A policy that holds connections."""

    async def close(self) -> None:
        """Close them. Idempotent."""
        ...
