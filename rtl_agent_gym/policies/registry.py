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
    forms = {_split(form)[0]: form for form in POLICIES}
    if kind not in forms:
        raise UsageError(f"no policy {name!r}; there are: {', '.join(POLICIES)}")
    if (argument := _split(forms[kind])[1]) and not rest:
        what = argument.lower().replace("_", " ")
        raise UsageError(f'{kind!r} needs a {what}: --policy "{forms[kind]}"')
    if rest and not argument:
        raise UsageError(f"{kind!r} takes nothing after its name, got {rest!r}")
    match kind:
        case "golden":
            return GoldenPolicy()
        case "random":
            return RandomPolicy()
        case "human":
            return HumanPolicy()
        case "scripted":
            return ScriptedPolicy(rest)
        case "chat":
            from .chat import ChatPolicy

            return ChatPolicy(rest, options)
    from .sampler import local_policy, tinker_policy

    return tinker_policy(rest, options) if kind == "tinker" else local_policy(rest, options)


def _split(name: str) -> tuple[str, str]:
    """A policy's kind and its argument: what stands before the first colon or blank, and what after it."""
    kind, *rest = re.split(r"[:\s]", name, maxsplit=1)
    return kind, "".join(rest).strip()
