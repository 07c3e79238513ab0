"""Process 1 of every sandbox: runs commands and processes, and reads and writes files for the client.

`program` returns its source text, for ``python3 -c``: the modules of this folder, which use only the standard library.
The image need not contain any of it, so any image with bash and Python 3.11 works.
"""

from __future__ import annotations

import functools
from importlib import resources

MODULES = ("confine", "files", "frames", "memory", "processes", "zygote", "relay", "shell", "loop")
"""In the order of their imports."""

_BOOTSTRAP = """\
import sys, types
for name in {parents!r}:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, text in {sources!r}:
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = {package!r}
    exec(compile(text, name, "exec"), module.__dict__)
sys.modules[{package!r} + ".loop"].main()
"""


@functools.cache
def program() -> str:
    """The warden's program as one Python text."""
    folder = resources.files(__package__)
    sources = [(f"{__package__}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    parts = __package__.split(".")
    parents = [".".join(parts[: n + 1]) for n in range(len(parts))]
    return _BOOTSTRAP.format(parents=parents, sources=sources, package=__package__)
