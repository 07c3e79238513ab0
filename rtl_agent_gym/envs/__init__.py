"""Interfaces to episodes: Gymnasium's here, tinker-cookbook's in `tinker_env` and `tinker_data`."""

from ..episodes.episode import Episode, EpisodeConfig, Opening, Turn
from ..episodes.submissions import Submission
from ..policies.protocol import Completion
from .gym_env import CVDPAgenticEnv, CVDPSingleTurnEnv
from .text_space import UnicodeText

__all__ = [
    "CVDPAgenticEnv",
    "CVDPSingleTurnEnv",
    "Completion",
    "Episode",
    "EpisodeConfig",
    "Opening",
    "Submission",
    "Turn",
    "UnicodeText",
]
