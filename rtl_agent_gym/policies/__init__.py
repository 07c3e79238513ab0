"""Who acts in an episode: the reference solution, a script, a model, a person."""

from .golden import GoldenPolicy, heredoc
from .human import HumanPolicy
from .model_options import ModelOptions
from .protocol import Billed, Closable, Completion, Listener, Player, Policy
from .random_commands import RandomPolicy
from .registry import POLICIES, make_policy
from .scripted import ScriptedPolicy, write_turn

__all__ = [
    "POLICIES",
    "Billed",
    "Closable",
    "Completion",
    "GoldenPolicy",
    "HumanPolicy",
    "Listener",
    "ModelOptions",
    "Player",
    "Policy",
    "RandomPolicy",
    "ScriptedPolicy",
    "heredoc",
    "make_policy",
    "write_turn",
]
