"""Who acts in an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..problems import Problem
from ..renderers import Action, Message, ModelTurn, Renderer
from .usage import Charge


@dataclass(frozen=True)
class Completion:
    """A policy's output in one turn."""

    text: str
    """The text, with control tokens written out."""
    token_ids: Sequence[int] | None = None
    """The sampled ids, if the policy samples tokens. They are then parsed instead of `text`."""
    logprobs: Sequence[float] | None = None
    """Log-probability of each sampled token, in nats; as long as `token_ids`."""
    cut_off: bool = False
    """Whether the token limit ended it."""
    prompt_tokens: int | None = None
    """Tokens of the prompt, if known."""
    output_tokens: int | None = None
    """Tokens of the completion, if known; with `token_ids`, their number is used instead."""
    cached_tokens: int | None = None
    """The part of `prompt_tokens` that a service read from its prompt cache, if known."""
    cost: float | None = None
    """What the turn cost, in US dollars, if known."""
    refused: bool = False
    """Whether the model refused, or a content filter of its service withheld the turn."""
    native: ModelTurn | None = None
    """The turn as reported by a service with native tool calls. It is then used instead of `text`, which holds only
    the service's text."""


class Player(Protocol):
    """A policy's part in one episode."""

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """The next turn, given the conversation so far: system, user, then assistant and user in turns.

        None if the model's context has no space for another turn; the episode then ends and is graded.

        Raises:
            ModelError: The service behind the policy does not answer, which says nothing about the agent.
            UsageError: The service will never answer: wrong key, unknown model.
        """
        ...


@runtime_checkable
class Listener(Protocol):
    """A player that also receives the opening and each reply in parts, not only as chat messages."""

    def opened(self, system: str, user: str) -> None:
        """The episode begins."""
        ...

    def answered(self, action: Action, outputs: Sequence[str]) -> None:
        """The action parsed from the last completion, and its outputs: one per command, none for other actions."""
        ...


@runtime_checkable
class Billed(Protocol):
    """A player whose service also charges for requests that bring no answer."""

    def take_failed(self) -> Sequence[Charge]:
        """What the service reported for such requests since the last call; `Player.act` may have raised, too."""
        ...


class Policy(Protocol):
    """Creates a player for each episode. One policy serves any number of episodes at once."""

    @property
    def name(self) -> str:
        """The policy's name in results."""
        ...

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> Player:
        """A player for one episode, whose random choices depend on `seed`.

        Raises `UsageError` if the policy cannot play this problem.
        """
        ...


@runtime_checkable
class Closable(Protocol):
    """A policy that holds connections."""

    async def close(self) -> None:
        """Close them. Idempotent."""
        ...
