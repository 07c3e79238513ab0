"""`evaluate` plays many episodes with a policy and summarises their results."""

from .config import EvaluationConfig
from .evaluate import Evaluation, evaluate
from .outcome import EpisodeResult, Summary, summarise
from .play import Observer, play, rules_for
from .replay import Replay, replay
from .results import read_config, read_results

__all__ = [
    "EpisodeResult",
    "Evaluation",
    "EvaluationConfig",
    "Observer",
    "Replay",
    "Summary",
    "evaluate",
    "play",
    "read_config",
    "read_results",
    "replay",
    "rules_for",
    "summarise",
]
