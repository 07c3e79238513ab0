"""Episodes, and the faces that drive them."""

from ..policies.protocol import Completion
from .episode import Episode, EpisodeConfig, Opening, Turn
from .gym_env import CVDPAgenticEnv
from .spaces import UnicodeText
from .submissions import Submission

__all__ = ["CVDPAgenticEnv", "Completion", "Episode", "EpisodeConfig", "Opening", "Submission", "Turn", "UnicodeText"]
