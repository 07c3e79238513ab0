"""Policies by the names that the command line takes."""

from __future__ import annotations

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
    kind, _, rest = name.strip().replace(":", " ", 1).partition(" ")
    rest, options = rest.strip(), options or ModelOptions()
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
            from .samplers import tinker_policy

            return tinker_policy(rest, options)
        case "local", True:
            from .samplers import local_policy

            return local_policy(rest, options)
    raise UsageError(f"no policy {name!r}; there are: {', '.join(POLICIES)}")
