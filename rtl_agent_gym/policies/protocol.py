"""Who acts in an episode, what a turn contains and costs, and the options of policies that have a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from ..errors import UsageError
from ..options import PolicyOptions
from ..problems import Problem
from ..renderers import Action, Message, ModelTurn, Renderer
from ..renderers.transcript import TokenTranscript
from ..sandboxes import Sandbox


@dataclass(frozen=True)
class Outside:
    """Results of a turn whose calls an agent's own program ran in the sandbox, outside the episode's shell."""

    outputs: tuple[str, ...] = ()
    """The result of each call as the program reported it to the model; empty if it reported none."""
    last: bool = False
    """Whether the program has ended."""
    broken: bool = False
    """Whether the program's commands have broken the sandbox."""


@dataclass(frozen=True)
class InStream:
    """The token stream to which a turn of a third-party agent belongs."""

    number: int
    """Counted from 1, in the order in which the streams began."""
    reason: str = ""
    """Why the stream began; see `streams.Break`. Empty for the first stream."""


@dataclass(frozen=True)
class Completion:
    """A policy's output in one turn."""

    text: str
    """The text, with control tokens written out."""
    token_ids: Sequence[int] | None = None
    """The sampled ids, if the policy samples tokens. They are then parsed instead of `text`."""
    logprobs: Sequence[float] | None = None
    """Log-probability in nats of each token in `token_ids`. A value that is not finite is unknown."""
    cut_off: bool = False
    """Whether the token limit cut it off."""
    prompt_tokens: int | None = None
    """Tokens of the prompt, if known."""
    output_tokens: int | None = None
    """Tokens of the completion, if known; with `token_ids`, their number is used instead."""
    cached_tokens: int | None = None
    """The part of `prompt_tokens` that a service read from its prompt cache, if known."""
    cost: float | None = None
    """Cost of the turn in US dollars, if known."""
    refused: bool = False
    """Whether the model refused, or a content filter of its service withheld the turn."""
    native: ModelTurn | None = None
    """The turn as reported by a service with native tool calls. It is then used instead of `text`, which contains only
    the service's text."""
    outside: Outside | None = None
    """Set if an agent's own program has already run the calls of `native`, with any tools; the episode runs nothing."""
    stream: InStream | None = None
    """For a third-party agent: the token stream to which the turn belongs."""


@dataclass(frozen=True)
class Usage:
    """The tokens of one answer, as the service counts them."""

    prompt_tokens: int
    """All tokens read, including those from a cache."""
    output_tokens: int
    """All tokens written, including thinking."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` that came from the service's prompt cache."""
    reported: Any = field(default=None, compare=False, repr=False)
    """litellm's usage object, which its price list needs; None if there is none."""


class Priced(Protocol):
    """Prices of a model's tokens."""

    def cost(self, usage: Usage) -> float:
        """The cost in US dollars."""


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Price of tokens from the prompt cache; None if it is that of other input."""

    def cost(self, usage: Usage) -> float:
        """The cost in US dollars."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        of_cached = self.input if self.cached is None else self.cached
        total = (usage.prompt_tokens - cached) * self.input + cached * of_cached + usage.output_tokens * self.output
        return total / 1e6


@dataclass(frozen=True)
class Charge:
    """The usage that a service reports for a request without an answer, which broke off or was retried."""

    usage: Usage
    cost: float | None = None
    """US dollars; None if the price is unknown."""


class Player(Protocol):
    """Plays one episode for a policy."""

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """The next turn, given the conversation so far: system, user, then assistant and user alternately.

        None if the model's context has no space for another turn; the episode then ends and is graded.

        Raises:
            ModelError: The policy's service does not answer, which says nothing about the agent.
            UsageError: The service will never answer: wrong key, unknown model.
        """


@runtime_checkable
class TokenPlayer(Protocol):
    """A player that samples tokens. The episode owns them; the player only reads them."""

    async def sample(self, tokens: TokenTranscript) -> Completion | None:
        """The next turn, with its `Completion.token_ids`. Returns None and raises like `Player.act`."""


@runtime_checkable
class Listener(Protocol):
    """A player that also receives the opening and each reply in parts, not only as chat messages."""

    def opened(self, system: str, user: str) -> None:
        """The episode begins."""

    def answered(self, action: Action, outputs: Sequence[str]) -> None:
        """The action parsed from the last completion, and its outputs: one per command, none for other actions."""


@runtime_checkable
class Inhabitant(Protocol):
    """A player whose program runs in the episode's sandbox."""

    def enter(self, sandbox: Sandbox, turn_seconds: float) -> None:
        """The episode begins, in this sandbox. A turn may take `turn_seconds`, not counting the model's time."""


@runtime_checkable
class Billed(Protocol):
    """A player whose service also charges for requests that bring no answer."""

    def take_failed(self) -> Sequence[Charge]:
        """The charges for such requests since the last call, also if `Player.act` has raised."""


class Policy(Protocol):
    """Creates a player for each episode. One policy serves any number of episodes at once."""

    @property
    def name(self) -> str:
        """The policy's name in results. An evaluation identifies your own policy by its name alone, and resumes from
        results with the same name: after changing the policy's code, choose another name or another folder.
        """

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> Player | TokenPlayer:
        """A player for one episode, whose random choices depend on `seed`.

        Raises `UsageError` if the policy cannot play this problem.
        """


@runtime_checkable
class Closable(Protocol):
    """A policy with open connections."""

    async def close(self) -> None:
        """Close them. Idempotent."""


# ---- policies that have a model

MIN_TURN_TOKENS = 256
"""Minimum tokens left in the context for another turn: with fewer, no useful call would fit."""


def smallest_turn(max_tokens: int | None) -> int:
    """Tokens that must be left for another turn, in which at most `max_tokens` are sampled (None: no limit)."""
    # The cookbook's rollout loop ends an episode itself, ungraded, when a single token is left.
    return max(2, min(max_tokens or MIN_TURN_TOKENS, MIN_TURN_TOKENS))


class ModelOptions(PolicyOptions):
    """Options of the policies that have a model."""

    @property
    def prices(self) -> Prices | None:
        """The prices in these options; None if they are not set."""
        if self.price_input is None or self.price_output is None:
            return None
        return Prices(self.price_input, self.price_output, self.price_cached)

    @field_validator("base_url")
    @classmethod
    def _check_address(cls, address: str | None) -> str | None:
        try:
            parts = urlsplit(address or "http://none")
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is not a number, or an unclosed bracket
            good = False
        if address == "" or not good or any(character.isspace() for character in address or ""):
            raise UsageError(
                f"base_url {address!r} is not the address of a service; expected a form such as "
                "http://127.0.0.1:8000/v1"
            )
        return address

    @model_validator(mode="after")
    def _check_prices(self) -> ModelOptions:
        alone = self.prices is None and self.price_cached is not None
        if (self.price_input is None) != (self.price_output is None) or alone:
            raise UsageError("prices need both price_input and price_output (--price-input and --price-output)")
        return self


def split_address(model: str) -> tuple[str, str | None]:
    """The model and the service's address in ``MODEL@URL``; without ``@http…`` there is no address."""
    name, at, rest = model.partition("@http")
    return name, f"http{rest}" if at else None
