"""The options in the names of generated sources, as in ``family:registers?count=200&seed=7``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems.near import near_matches

_Options = TypeVar("_Options", bound=BaseModel)


def read_query(model: type[_Options], source: str, query: str, expected: Mapping[str, str]) -> _Options:
    """The options that a query gives.

    Args:
        model: Has a field for each option.
        source: The source's whole name, for messages.
        query: What follows the question mark.
        expected: For each option what a value must be, for messages.

    Raises:
        UsageError: An option is unknown, repeated, or has a wrong value.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs):
        repeated = next(key for key, _ in pairs if [other for other, _ in pairs].count(key) > 1)
        raise UsageError(f"the option {repeated!r} is repeated in {source!r}")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
    if key not in model.model_fields:
        raise UsageError(f"unknown option {key!r} in {source!r}; {near_matches(key, model.model_fields)}")
    raise UsageError(f"{key} is {given[key]!r} in {source!r}; expected {expected[key]}")
