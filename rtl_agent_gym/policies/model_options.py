"""Sampling and connection options of model policies, for all services."""

from __future__ import annotations

import math
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import UsageError
from .protocol import Prices


@dataclass(frozen=True)
class ModelOptions:
    """Options of the policies that have a model."""

    temperature: float = 1.0
    """0 or more; 0 always chooses the most likely token."""
    top_p: float = 1.0
    """In (0, 1]: the probability mass that tokens are sampled from."""
    max_tokens: int = 4096
    """Maximum tokens of one turn."""
    max_context: int = 32_768
    """Maximum tokens of prompt and turn together; an episode that reaches it ends and is graded. For policies that
    sample tokens; chat services have their own limit."""
    base_url: str | None = None
    """The service's address, such as ``http://127.0.0.1:8000/v1``; None for the provider's default."""
    api_key: str | None = None
    """None for the value of the environment variable that the provider documents."""
    tools: bool = True
    """For chat: declare the shell as a tool. If False, the model writes its calls in the renderer's dialect."""
    stream: bool = False
    """For chat: have each answer streamed. Some proxies end a connection that is silent for a minute."""
    price_input: float | None = None
    """US dollars per million tokens read; None for litellm's price list. `price_output`: of tokens written."""
    price_output: float | None = None
    price_cached: float | None = None
    """US dollars per million tokens read from the service's prompt cache; None for `price_input`."""
    attempts: int = 8
    """Maximum attempts of a request while the service is busy or unreachable."""
    request_timeout: float = 600.0
    """Maximum seconds of one request."""

    @property
    def prices(self) -> Prices | None:
        """The prices that are set; None if they are not."""
        if self.price_input is None or self.price_output is None:
            return None
        return Prices(self.price_input, self.price_output, self.price_cached)

    def _check_prices(self) -> None:
        given = [self.price_input, self.price_output, self.price_cached]
        if any(price is not None and not 0 <= price < math.inf for price in given):
            raise UsageError("prices are US dollars per million tokens, 0 or more")
        if (self.price_input is None) != (self.price_output is None) or (self.prices is None and given[2] is not None):
            raise UsageError("prices need both price_input and price_output (--price-input and --price-output)")

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1:
            raise UsageError(
                f"temperature must be 0 or more and top_p in (0, 1], got {self.temperature:g} and {self.top_p:g}"
            )
        for name in ("max_tokens", "max_context", "attempts"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.request_timeout < math.inf:
            raise UsageError(f"request_timeout must be a number of seconds above 0, got {self.request_timeout:g}")
        self._check_prices()
        if self.base_url is not None:
            _check_address(self.base_url)


def split_address(model: str) -> tuple[str, str | None]:
    """The model and the service's address in ``MODEL@URL``; without ``@http…`` there is no address."""
    name, at, rest = model.partition("@http")
    return name, f"http{rest}" if at else None


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or an unclosed bracket
        good = False
    if not good or any(character.isspace() for character in address):
        raise UsageError(
            f"base_url {address!r} is not the address of a service; expected a form such as http://127.0.0.1:8000/v1"
        )
