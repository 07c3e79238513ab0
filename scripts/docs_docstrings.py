"""Docstrings as the site reads them: an extension of griffe, named in mkdocs.yml.

The package's docstrings are plain text with three habits that Markdown does not share. A name in single backticks means
an object of the package and becomes a link to it; ``::`` announces a block of code; an ``Example:`` is code.
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
    """Rewrites every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """A package is loaded, all its modules with it."""
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
    """Whether a public name is of no use to a reader."""
    if isinstance(member, griffe.Attribute):
        return member.name == "model_config" or str(member.value).startswith(_MACHINERY)
    return isinstance(member, griffe.Function) and member.is_special and member.docstring is None and not _makes(member)


def _makes(function: griffe.Function) -> bool:
    return function.name == "__init__"  # its signature is the class's


def as_markdown(text: str, scope: griffe.Object) -> str:
    """A docstring in Markdown. Names in it are looked up from where it stands."""
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
    # Optional: what the reference does not show stays as it is.
    return f'<autoref optional identifier="{path}"><code>{found[1]}{found[2] or ""}</code></autoref>'
