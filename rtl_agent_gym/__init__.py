"""Teach language models to design hardware: an agentic RTL environment on the CVDP benchmark.

Importing the package registers ``CVDPAgentic-v0`` and ``CVDPSingleTurn-v0`` with Gymnasium. It never imports torch,
tinker or transformers. The names in ``__all__`` are imported on first use.
"""

from .starting import is_command_line as _is_command_line
from .starting import quiet_interrupts as _quiet_interrupts

if _is_command_line():
    _quiet_interrupts()  # before anything else is imported

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any as _Any

import gymnasium as _gym
from gymnasium.envs.registration import WrapperSpec as _WrapperSpec

try:
    __version__ = version("rtl-agent-gym")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

# Not deterministic in Gymnasium's sense: infos and scores contain wall times.
for _name, _entry_point in (
    ("CVDPAgentic-v0", "rtl_agent_gym.envs:CVDPAgenticEnv"),
    ("CVDPSingleTurn-v0", "rtl_agent_gym.envs:CVDPSingleTurnEnv"),
):
    _gym.register(
        id=_name,
        entry_point=_entry_point,
        nondeterministic=True,
        additional_wrappers=(_WrapperSpec("NoTimeLimit", "rtl_agent_gym.envs.gym_env:NoTimeLimit", kwargs={}),),
    )

_PACKAGES = {
    "Episode": "episodes.episode",
    "EpisodeConfig": "episodes.rules",
    "Problem": "problems",
    "Score": "scoring",
    "Scorer": "scoring",
    "evaluate": "evaluation.evaluate",
    "load_problems": "problems",
    "score_files": "scoring",
}

__all__ = [
    "Episode",
    "EpisodeConfig",
    "Problem",
    "Score",
    "Scorer",
    "__version__",
    "evaluate",
    "load_problems",
    "score_files",
]


def __getattr__(name: str) -> _Any:
    if name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{_PACKAGES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
