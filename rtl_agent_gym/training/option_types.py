"""The types of options that may be given as text."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from .. import strict_json


def _list(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def from_json(value: object) -> object:
    """The value of a text in JSON."""
    return strict_json.loads(value) if isinstance(value, str) else value


def optional(value: object) -> object:
    """None for the texts ``none``, ``null`` and the empty one."""
    return None if isinstance(value, str) and value.lower() in ("none", "null", "") else value


Names = Annotated[tuple[str, ...], BeforeValidator(_list)]
"""Several names, separated by commas."""
Table = Annotated[dict[str, str], BeforeValidator(from_json)]
"""A JSON object of strings."""
OptionalText = Annotated[str | None, BeforeValidator(optional)]
OptionalPositive = Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(optional)]
OptionalNonNegative = Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(optional)]
OptionalCount = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(optional)]
"""Numbers that may be None. The bound belongs to the number: around the union, pydantic would compare None with it."""
