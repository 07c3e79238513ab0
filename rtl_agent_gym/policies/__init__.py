"""Who acts in an episode: the reference solution, a script, a model, a person."""

from .human import HumanPolicy
from .model_options import ModelOptions
from .protocol import Billed, Closable, Completion, Listener, Player, Policy, TokenPlayer
from .registry import POLICIES, make_policy
from .scripted import GoldenPolicy, RandomPolicy, ScriptedPolicy, heredoc, write_turn

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
    "TokenPlayer",
    "heredoc",
    "make_policy",
    "write_turn",
]
