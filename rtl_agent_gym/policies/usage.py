"""Tokens and money: what one answer used, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """The tokens of one answer, as the service counts them."""

    prompt_tokens: int
    """All tokens that were read, those from a cache included."""
    output_tokens: int
    """All tokens that were written, thinking included."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` that came from the service's prompt cache."""


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Of tokens from the prompt cache; None for the price of other input."""

    def cost(self, usage: Usage) -> float:
        """The cost of an answer in US dollars."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        of_cached = self.input if self.cached is None else self.cached
        total = (usage.prompt_tokens - cached) * self.input + cached * of_cached + usage.output_tokens * self.output
        return total / 1e6


@dataclass(frozen=True)
class Charge:
    """What a service reports for a request that brought no answer: one that broke off, or was retried."""

    usage: Usage
    cost: float | None = None
    """US dollars; None if the price is unknown."""
