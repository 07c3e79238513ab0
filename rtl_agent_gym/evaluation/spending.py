"""What an evaluation spends on its model, and the limits on it.

Every answer counts when it arrives, even if a machine fault then ends the episode. Requests without an answer count if
the service reports their tokens. Each line of ``results.jsonl`` contains what its attempts used, so a run that is
continued later knows what was spent before.

A limit is checked before each request and never interrupts one. An evaluation can therefore exceed its limit by at most
one request, including its retries, per concurrent episode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel

from ..errors import LimitReached, UsageError
from ..policies import Completion
from ..policies.protocol import Charge, Priced, Usage

STOPPED = "limit"
"""`EpisodeResult.stop_reason` of the line that records what an episode used before a limit stopped it."""


class Spent(BaseModel, frozen=True):
    """Answers, tokens and money, summed over answers and over requests without an answer."""

    answers: int = 0
    prompt_tokens: int | None = 0
    """Tokens read, including those from a cache; None if an answer did not report them. `output_tokens` likewise."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` that is known to come from the service's prompt cache."""
    output_tokens: int | None = 0
    cost: Annotated[float | None, AfterValidator(lambda cost: cost if cost is None or isfinite(cost) else None)] = 0.0
    """US dollars; None if the price is unknown, or a policy reports a number that is not finite."""

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            answers=self.answers + other.answers,
            prompt_tokens=sum_if_known(self.prompt_tokens, other.prompt_tokens),
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=sum_if_known(self.output_tokens, other.output_tokens),
            cost=sum_if_known(self.cost, other.cost),
        )

    def priced(self, prices: Priced | None) -> Spent:
        """A copy whose cost is computed from these prices if the cost is unknown and the tokens are known."""
        if prices is None or self.cost is not None or self.prompt_tokens is None or self.output_tokens is None:
            return self
        usage = Usage(self.prompt_tokens, self.output_tokens, self.cached_tokens)
        return self.model_copy(update={"cost": prices.cost(usage)})

    @property
    def tokens(self) -> int | None:
        """Tokens read and written; None if unknown."""
        return sum_if_known(self.prompt_tokens, self.output_tokens)

    @property
    def known(self) -> bool:
        """Whether tokens are known and anything was used; False for policies without a model."""
        return self.tokens is not None and (self.answers > 0 or self.tokens > 0)


Number = TypeVar("Number", int, float)


def sum_if_known(first: Number | None, second: Number | None) -> Number | None:
    """The sum; None if either is unknown."""
    return None if first is None or second is None else first + second


@dataclass
class Ledger:
    """Counts what an evaluation spends, and reports when a limit is reached."""

    max_cost: float | None = None
    """US dollars."""
    max_tokens: int | None = None
    """Tokens read and written."""
    total: Spent = field(default_factory=Spent)

    def check(self) -> None:
        """Called before each request.

        Raises:
            LimitReached: A limit is reached.
            UsageError: A limit is set for something that the service does not report.
        """
        for option, limit, spent in (
            ("--max-cost", self.max_cost, self.total.cost),
            ("--max-tokens-total", self.max_tokens, self.total.tokens),
        ):
            if limit is not None and spent is None:
                raise UsageError(
                    f"{option} cannot be enforced, since the service does not report the tokens of all its answers"
                )
        if reached := self.reached:
            raise LimitReached(reached)

    @property
    def reached(self) -> str:
        """Which limit is reached and what was spent; empty if no limit is reached."""
        cost, tokens = self.total.cost, self.total.tokens
        if self.max_cost is not None and cost is not None and cost >= self.max_cost:
            return f"--max-cost is reached: ${cost:,.4f} of ${self.max_cost:,.4g} used"
        if self.max_tokens is not None and tokens is not None and tokens >= self.max_tokens:
            return f"--max-tokens-total is reached: {tokens:,} of {self.max_tokens:,} tokens used"
        return ""


@dataclass
class Tally:
    """What one episode spends, over all its attempts."""

    ledger: Ledger = field(default_factory=Ledger)
    spent: Spent = field(default_factory=Spent)

    def add(self, completion: Completion) -> Spent:
        """Count an answer, here and in the ledger. Returns what it used."""
        ids = completion.token_ids
        used = Spent(
            answers=1,
            prompt_tokens=completion.prompt_tokens,
            cached_tokens=completion.cached_tokens or 0,
            output_tokens=completion.output_tokens if ids is None else len(ids),
            cost=completion.cost,
        )
        self._count(used)
        return used

    def add_failed(self, charges: Iterable[Charge]) -> None:
        """Count requests without an answer."""
        for charge in charges:
            usage = charge.usage
            self._count(
                Spent(
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cached_tokens,
                    output_tokens=usage.output_tokens,
                    cost=charge.cost,
                )
            )

    def _count(self, used: Spent) -> None:
        self.spent += used
        self.ledger.total += used
