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
    from gymnasium.envs.registration import WrapperSpec as _WrapperSpec

try:
    __version__ = version("rtl-agent-gym")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

# Not deterministic in Gymnasium's sense: infos and scores carry wall times.
for _name, _place in (
    ("CVDPAgentic-v0", "rtl_agent_gym.envs:CVDPAgenticEnv"),
    ("CVDPSingleTurn-v0", "rtl_agent_gym.envs.single_turn:CVDPSingleTurnEnv"),
):
    _gym.register(
        id=_name,
        entry_point=_place,
        nondeterministic=True,
        additional_wrappers=(_WrapperSpec("NoTimeLimit", "rtl_agent_gym.envs.time_limits:NoTimeLimit", kwargs={}),),
    )

__all__ = ["__version__"]
