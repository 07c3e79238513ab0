"""The help text of the training options, generated from `TrainOptions`."""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import Any, Literal, get_args, get_origin

from .options import TrainOptions

WIDEST = 120


def describe_options(width: int | None = None) -> str:
    """All options with their defaults and descriptions.

    Args:
        width: Columns to fill; by default those of the terminal, but at most `WIDEST`.
    """
    columns = max(40, min(width or shutil.get_terminal_size().columns, WIDEST))
    lines = ["Options, as name=value, with their defaults:", ""]
    for name, field in TrainOptions.model_fields.items():
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
