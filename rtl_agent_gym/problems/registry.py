"""The registry of sources: which plug-in reads the problems of ``family:…``, ``…+mutants`` and others.

A plug-in is a function that takes a source's full name and yields each problem, or an error instead, with its place.
Other packages add plug-ins as entry points, which are loaded when a source names them::

    [project.entry-points."rtl_agent_gym.sources"]
    my-suite = "my_package:read"        # reads "my-suite:…"
    "+noisy" = "my_package:read_noisy"  # reads "…+noisy?…", derived from the problems of the source before the +
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from ..errors import ProblemError, UsageError, near_matches
from .model import Problem
from .rows import Place

GROUP = "rtl_agent_gym.sources"
"""The group of entry points."""

Located = tuple[Problem | ProblemError, Place]
"""A problem, or the error in its place, and where it comes from."""
Reader = Callable[[str], Iterable[Located]]
"""A plug-in. It raises `UsageError` if there is no such source."""

OWN = {
    "family": "rtl_agent_gym.sources.families:read_source",
    "verilog-eval": "rtl_agent_gym.sources.suites.testbenches:read_verilog_eval",
    "rtllm": "rtl_agent_gym.sources.suites.testbenches:read_rtllm",
    "notsotiny": "rtl_agent_gym.sources.suites.notsotiny:read_source",
    "+mutants": "rtl_agent_gym.sources.mutants.derived:read_source",
    "+ppa": "rtl_agent_gym.sources.optimization.derived:read_source",
    "+verify": "rtl_agent_gym.sources.verification.derived:read_source",
}
"""This package's own plug-ins, in the form of entry points; they need no installed metadata."""

_PREFIXED = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(.*)", re.DOTALL)
_DERIVED = re.compile(r"(.+)(\+[A-Za-z][A-Za-z0-9_-]*)(\?[^?]*)?", re.DOTALL)


class SourceName(NamedTuple):
    """The parts of a source's name, which is their concatenation."""

    prefix: str
    """A prefix that a plug-in reads, such as ``rtllm:``; or empty."""
    inner: str
    """The part after the prefix: a path, the name of a family, or a source without a prefix."""
    derived: str
    """A suffix that a plug-in reads, such as ``+mutants?count=3``; or empty."""


def split_source(source: str) -> SourceName:
    """Split a source's name at its prefix and its last suffix."""
    inner, prefix, derived = source, "", ""
    if (match := _DERIVED.fullmatch(inner)) and _find(match[2]):
        inner, derived = match[1], match[2] + (match[3] or "")
    if (match := _PREFIXED.fullmatch(inner)) and _find(match[1]):
        inner, prefix = match[2], f"{match[1]}:"
    return SourceName(prefix, inner, derived)


def split_whole(source: str) -> SourceName:
    """Like `split_source`, but with all suffixes: `derived` of ``rows.jsonl+mutants+verify`` is ``+mutants+verify``."""
    name = split_source(source)
    while (base := split_source(name.prefix + name.inner)).derived:
        name = base._replace(derived=base.derived + name.derived)
    return name


def find_reader(source: str) -> Reader | None:
    """The plug-in that reads a source; None if it is a file, a folder or a data set.

    Raises:
        UsageError: The plug-in cannot be imported.
    """
    name = split_source(source)
    entry = _find(name.derived.partition("?")[0] or name.prefix.removesuffix(":"))
    if entry is None:
        return None
    try:
        reader: Reader = entry.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{source!r}: its plug-in {entry.name} = {entry.value} cannot be loaded: {error}") from error
    return reader


def _find(name: str) -> EntryPoint | None:
    """The plug-in with this name; other packages cannot replace this package's own plug-ins."""
    if name in OWN:
        return EntryPoint(name, OWN[name], GROUP)
    return next(iter(entry_points(group=GROUP, name=name)), None) if name else None


_Options = TypeVar("_Options", bound=BaseModel)


def read_query(model: type[_Options], source: str, query: str) -> _Options:
    """The options in a query.

    Args:
        model: A model with a field for each option.
        source: The source's full name, for messages.
        query: The text after the question mark.

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
        first = error.errors()[0]
        key = str(first["loc"][0])
    if key not in model.model_fields:
        raise UsageError(f"unknown option {key!r} in {source!r}; {near_matches(key, model.model_fields)}")
    expected = first["ctx"]["error"] if first["type"] == "value_error" else f"expected {_values(model, key)}"
    raise UsageError(f"{key} is {given[key]!r} in {source!r}; {expected}")


def _values(model: type[BaseModel], key: str) -> str:
    """A description of an option's valid values."""
    schema = model.model_json_schema()["properties"][key]
    schema = schema.get("anyOf", [schema])[0]  # the other alternative is None
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "boolean":
        return "true or false"
    return f"a number from {schema['minimum']} " + (f"to {schema['maximum']}" if "maximum" in schema else "up")
