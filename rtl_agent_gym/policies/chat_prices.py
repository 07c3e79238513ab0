"""What the tokens of a chat service cost: the caller's prices, otherwise litellm's price list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .model_options import ModelOptions
from .usage import Prices, Usage


class PriceList(Protocol):
    """Prices of one model."""

    def cost(self, usage: Usage, reported: Any = None) -> float:
        """The cost of an answer in US dollars; `reported` is litellm's object for `usage`."""
        ...


@dataclass(frozen=True)
class _Given:
    """Prices set by the caller."""

    prices: Prices

    def cost(self, usage: Usage, reported: Any = None) -> float:
        return self.prices.cost(usage)


@dataclass(frozen=True)
class _Listed:
    """Prices of litellm's list, which knows tiers by length and the price of writing to a cache."""

    library: Any
    model: str
    provider: str

    def cost(self, usage: Usage, reported: Any = None) -> float:
        if reported is not None and not isinstance(reported, self.library.Usage):  # the service's own, of a cut stream
            reported = self.library.Usage(**reported.model_dump())
        read, written = self.library.cost_per_token(
            model=self.model,
            custom_llm_provider=self.provider,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.output_tokens,
            usage_object=reported,
        )
        return float(read + written)


def price_list(library: Any, model: str, options: ModelOptions) -> PriceList | None:
    """The prices of a model; None if they are unknown.

    A server of one's own may serve a model under the name that another service charges for, so with a
    `ModelOptions.base_url` only the caller's prices count.

    Args:
        library: The module ``litellm``.
        model: litellm's full name of the model.
        options: With the caller's prices, if any.
    """
    if options.prices is not None:
        return _Given(options.prices)
    if options.base_url is not None:
        return None
    name, provider, *_ = library.get_llm_provider(model)
    for key in (model, name, f"{provider}/{name}"):
        if {"input_cost_per_token", "output_cost_per_token"} <= library.model_cost.get(key, {}).keys():
            return _Listed(library, name, provider)
    return None
