"""Sampling and connection options of model policies, for all services."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from ..errors import UsageError
from ..options import PolicyOptions
from .protocol import Prices

MIN_TURN_TOKENS = 256
"""A turn is not sampled with fewer tokens left than this: no useful call would fit."""


def smallest_turn(max_tokens: int | None) -> int:
    """Tokens that must be left for another turn, in which at most `max_tokens` are sampled (None: no limit)."""
    # The cookbook's rollout loop ends an episode itself, ungraded, when a single token is left.
    return max(2, min(max_tokens or MIN_TURN_TOKENS, MIN_TURN_TOKENS))


class ModelOptions(PolicyOptions):
    """Options of the policies that have a model."""

    @property
    def prices(self) -> Prices | None:
        """The prices that are set; None if they are not."""
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
