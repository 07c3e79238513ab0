"""Policies by the names that the command line takes."""

from __future__ import annotations

import re

from ..errors import UsageError
from .golden import GoldenPolicy
from .human import HumanPolicy
from .model_options import ModelOptions
from .protocol import Policy
from .random_commands import RandomPolicy
from .scripted import ScriptedPolicy

POLICIES = (
    "golden",
    "scripted FILE",
    "chat:MODEL",
    "tinker:MODEL_OR_CHECKPOINT",
    "local:PATH",
    "human",
    "random",
)
"""What `make_policy` takes."""

_NAME = re.compile(r"(?P<kind>[^:\s]*)(?:[:\s](?P<rest>.*))?", re.DOTALL)


def make_policy(name: str, options: ModelOptions | None = None) -> Policy:
    """The policy of a name as the command line takes it.

    Args:
        name: One of `POLICIES`; a colon or a blank stands before the argument.
        options: For the policies that have a model.

    Raises:
        UsageError: There is none of this name; the message lists them. Or its extra is not installed, or there is no
            such file, model or key.
    """
    kind, rest = _split(name.strip())
    options = options or ModelOptions()
    match kind, bool(rest):
        case "golden", False:
            return GoldenPolicy()
        case "random", False:
            return RandomPolicy()
        case "human", False:
            return HumanPolicy()
        case "scripted", True:
            return ScriptedPolicy(rest)
        case "chat", True:
            from .chat import ChatPolicy

            return ChatPolicy(rest, options)
        case "tinker", True:
            from .sampler import tinker_policy

            return tinker_policy(rest, options)
        case "local", True:
            from .sampler import local_policy

            return local_policy(rest, options)
    form = next((known for known in POLICIES if _split(known)[0] == kind), None)
    if form is not None and _split(form)[1]:
        what = _split(form)[1].lower().replace("_", " ")
        raise UsageError(f'{kind!r} needs a {what}: --policy "{form}"')
    if form is not None:
        raise UsageError(f"{kind!r} takes nothing after its name, got {rest!r}")
    raise UsageError(f"no policy {name!r}; there are: {', '.join(POLICIES)}")


def _split(name: str) -> tuple[str, str]:
    """A policy's kind and its argument: what stands before the first colon or blank, and what after it."""
    found = _NAME.match(name)
    return (found["kind"], (found["rest"] or "").strip()) if found is not None else (name, "")
