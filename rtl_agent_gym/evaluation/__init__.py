"""Many episodes with a policy, and what came of them."""

from .play import Played, Usage, Watcher, play, rules_for
from .replay import Divergence, Replay, replay
from .results import EpisodeResult, EvaluationConfig, read_config, read_results, results_file
from .run import Evaluation, Limits, Observer
from .statistics import Estimate, pass_at_k
from .summary import Summary, summarise

__all__ = [
    "Divergence",
    "EpisodeResult",
    "Estimate",
    "Evaluation",
    "EvaluationConfig",
    "Limits",
    "Observer",
    "Played",
    "Replay",
    "Summary",
    "Usage",
    "Watcher",
    "pass_at_k",
    "play",
    "read_config",
    "read_results",
    "replay",
    "results_file",
    "rules_for",
    "summarise",
]
