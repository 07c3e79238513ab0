"""Who acts: the reference solution, a script, a model."""

from ..errors import UsageError
from .golden import GoldenPolicy
from .protocol import Completion, Player, Policy
from .scripted import ScriptedPolicy

POLICIES = ("golden", "scripted FILE")
"""What `make_policy` takes."""


def make_policy(name: str) -> Policy:
    """The policy of a name as the command line takes it.

    Raises:
        UsageError: There is none of this name; the message lists them.
    """
    kind, _, rest = name.strip().replace(":", " ", 1).partition(" ")
    rest = rest.strip()
    if kind == "golden" and not rest:
        return GoldenPolicy()
    if kind == "scripted" and rest:
        return ScriptedPolicy(rest)
    raise UsageError(f"no policy {name!r}; there are: {', '.join(POLICIES)}")


__all__ = ["POLICIES", "Completion", "GoldenPolicy", "Player", "Policy", "ScriptedPolicy", "make_policy"]
