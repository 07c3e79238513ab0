"""Converts docstrings for the documentation site: an extension of griffe, listed in mkdocs.yml.

The package's docstrings are plain text with three conventions that Markdown does not have. A name in single backticks
is an object of the package and becomes a link to it; ``::`` introduces a block of code; an ``Example:`` is code.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(\(\))?`(?!`)")
_MACHINERY = ("logging.getLogger(", "TypeVar(")
_EXAMPLE = re.compile(r"^Example:\n((?:(?:    .*)?\n)+)", re.MULTILINE)


class PackageDocstrings(griffe.Extension):
    """Rewrites every docstring of the package after it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called when the package and all its modules are loaded."""
        _walk(pkg)


def _walk(obj: griffe.Object) -> None:
    if obj.docstring is not None:
        obj.docstring.value = as_markdown(obj.docstring.value, obj)
    for name, member in list(obj.members.items()):
        if _is_machinery(member):
            obj.del_member(name)
        elif isinstance(member, griffe.Object):  # an alias is shown where its target is
            _walk(member)


def _is_machinery(member: griffe.Object | griffe.Alias) -> bool:
    """Whether a public name is internal machinery that readers do not need."""
    if isinstance(member, griffe.Attribute):
        return member.name == "model_config" or str(member.value).startswith(_MACHINERY)
    return isinstance(member, griffe.Function) and member.is_special and member.docstring is None and not _makes(member)


def _makes(function: griffe.Function) -> bool:
    return function.name == "__init__"  # kept because its signature is that of the class


def as_markdown(text: str, scope: griffe.Object) -> str:
    """A docstring converted to Markdown. Names in it are resolved in `scope`."""
    text = re.sub(r"^::$", "", text, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = _EXAMPLE.sub(_fenced, f"{text}\n").rstrip("\n")
    return _NAME.sub(lambda found: _link(found, scope), text)


def _fenced(found: re.Match[str]) -> str:
    code = textwrap.dedent(found[1]).strip("\n")
    return f"**Example**\n\n```python\n{code}\n```\n"


def _link(found: re.Match[str], scope: griffe.Object) -> str:
    first, dot, rest = found[1].partition(".")
    try:
        path = scope.resolve(first) + dot + rest
    except griffe.NameResolutionError:
        return found[0]
    # Optional: names that the reference does not document stay plain code.
    return f'<autoref optional identifier="{path}"><code>{found[1]}{found[2] or ""}</code></autoref>'
