"""Teach language models to design hardware: an agentic RTL environment on the CVDP benchmark.

Importing the package registers ``CVDPAgentic-v0`` and ``CVDPSingleTurn-v0`` with Gymnasium. It never imports torch,
tinker or transformers.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from .starting import is_command_line as _is_command_line
from .starting import quiet_interrupts as _quiet_interrupts

with _quiet_interrupts(_is_command_line()):
    import gymnasium as _gym

try:
    __version__ = version("rtl-agent-gym")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

# Not deterministic in Gymnasium's sense: infos and scores carry wall times.
_gym.register(id="CVDPAgentic-v0", entry_point="rtl_agent_gym.envs:CVDPAgenticEnv", nondeterministic=True)
_gym.register(
    id="CVDPSingleTurn-v0", entry_point="rtl_agent_gym.envs.single_turn:CVDPSingleTurnEnv", nondeterministic=True
)

__all__ = ["__version__"]
