"""The registry of sources: which plug-in reads the problems of ``family:…``, ``…+mutants`` and others.

A plug-in is a function of a source's whole name that yields each problem, or an error instead, with its place. Other
packages add plug-ins as entry points, which are loaded when a source names them::

    [project.entry-points."rtl_agent_gym.sources"]
    my-suite = "my_package:read"        # reads "my-suite:…"
    "+noisy" = "my_package:read_noisy"  # reads "…+noisy?…", which is made of the problems before the +
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
"""A problem, or why there is none, and where it is from."""
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
    """The parts of a source's name. Together they are the name."""

    prefix: str
    """Such as ``rtllm:``; empty if no plug-in has it."""
    inner: str
    """What follows: a path, the name of a family, or a source without a prefix."""
    derived: str
    """Such as ``+mutants?count=3``; empty if no plug-in has it."""


def split_source(source: str) -> SourceName:
    """The parts of a source's name."""
    inner, prefix, derived = source, "", ""
    if (match := _DERIVED.fullmatch(inner)) and _find(match[2]):
        inner, derived = match[1], match[2] + (match[3] or "")
    if (match := _PREFIXED.fullmatch(inner)) and _find(match[1]):
        inner, prefix = match[2], f"{match[1]}:"
    return SourceName(prefix, inner, derived)


def split_whole(source: str) -> SourceName:
    """The same with all suffixes: of ``rows.jsonl+mutants+verify``, `derived` is ``+mutants+verify``."""
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
    """The plug-in of a name; those of other packages cannot replace this package's own."""
    if name in OWN:
        return EntryPoint(name, OWN[name], GROUP)
    return next(iter(entry_points(group=GROUP, name=name)), None) if name else None


_Options = TypeVar("_Options", bound=BaseModel)


def read_query(model: type[_Options], source: str, query: str) -> _Options:
    """The options that a query gives.

    Args:
        model: Has a field for each option.
        source: The source's whole name, for messages.
        query: What follows the question mark.

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
    """What a value of an option must be."""
    schema = model.model_json_schema()["properties"][key]
    schema = schema.get("anyOf", [schema])[0]  # the other one is None
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "boolean":
        return "true or false"
    return f"a number from {schema['minimum']} " + (f"to {schema['maximum']}" if "maximum" in schema else "up")
