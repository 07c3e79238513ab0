"""Options on the command line: ``key=value`` arguments, and the help text."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from ..errors import UsageError
from .options import TrainOptions

MAX_HELP_WIDTH = 120
"""Columns of the help text at most."""


def split_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Split ``key=value`` arguments. Raises `UsageError` for another form, or for an option that is given twice."""
    given: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"{argument!r} is not an option; give options as name=value, such as learning_rate=1e-4")
        if name in given:
            raise UsageError(f"{name}: given twice, as {given[name]!r} and as {value!r}")
        given[name] = value
    return given


def describe_options(width: int | None = None, kind: type[TrainOptions] = TrainOptions) -> str:
    """All options with their defaults and descriptions. `width` is in columns; by default that of the terminal."""
    columns = max(40, min(width or shutil.get_terminal_size().columns, MAX_HELP_WIDTH))
    lines = ["Options, as name=value, with their defaults:", ""]
    for name in kind.names():
        field = kind.model_fields[name]
        lines.append(f"  {name}={_default(field.get_default(call_default_factory=True))}")
        lines += textwrap.wrap(
            _description(field.description or "", field.annotation),
            columns,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _description(text: str, annotation: Any) -> str:
    words = " ".join(text.replace("``", "").split())
    if get_origin(annotation) is Literal:
        words += f" One of {', '.join(map(str, get_args(annotation)))}."
    return words


def _default(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)
