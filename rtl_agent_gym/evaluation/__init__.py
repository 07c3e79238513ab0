"""Many episodes with a policy, and what came of them."""

from .play import Played, Watcher, play

__all__ = ["Played", "Watcher", "play"]
