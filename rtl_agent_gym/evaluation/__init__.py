"""`evaluate` plays many episodes with a policy and sums up their results."""

from .config import EvaluationConfig, EvaluationRecord
from .evaluate import Evaluation, evaluate
from .outcome import EpisodeResult, Summary, summarise
from .play import Observer, play, rules_for
from .replay import Divergence, Replay, replay
from .results import read_config, read_results
from .statistics import Estimate, pass_at_k

__all__ = [
    "Divergence",
    "EpisodeResult",
    "Estimate",
    "Evaluation",
    "EvaluationConfig",
    "EvaluationRecord",
    "Observer",
    "Replay",
    "Summary",
    "evaluate",
    "pass_at_k",
    "play",
    "read_config",
    "read_results",
    "replay",
    "rules_for",
    "summarise",
]
