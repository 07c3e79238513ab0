"""Episodes, and the faces that drive them."""

from ..episodes.episode import Episode, EpisodeConfig, Opening, Turn
from ..episodes.submissions import Submission
from ..policies.protocol import Completion
from .gym_env import CVDPAgenticEnv
from .spaces import UnicodeText

__all__ = ["CVDPAgenticEnv", "Completion", "Episode", "EpisodeConfig", "Opening", "Submission", "Turn", "UnicodeText"]
