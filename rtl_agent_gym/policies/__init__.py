"""Who acts in an episode: the reference solution, a script, a model, a person."""

from .human import HumanPolicy
from .protocol import (
    Billed,
    Closable,
    Completion,
    Inhabitant,
    Listener,
    ModelOptions,
    Outside,
    Player,
    Policy,
    TokenPlayer,
)
from .registry import make_policy
from .scripted import GoldenPolicy, RandomPolicy, ScriptedPolicy, heredoc, write_turn

__all__ = [
    "Billed",
    "Closable",
    "Completion",
    "GoldenPolicy",
    "HumanPolicy",
    "Inhabitant",
    "Listener",
    "ModelOptions",
    "Outside",
    "Player",
    "Policy",
    "RandomPolicy",
    "ScriptedPolicy",
    "TokenPlayer",
    "heredoc",
    "make_policy",
    "write_turn",
]
