"""A policy plays an episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..envs.episode import Episode, Opening, StopReason, Turn
from ..policies import Completion, Policy
from ..renderers.protocol import Message
from ..scoring.score import Score


@dataclass(frozen=True)
class Played:
    """An episode that came to its end."""

    problem_id: str
    policy: str
    score: Score
    stop_reason: StopReason
    turns: int
    transcript: Path | None


@dataclass
class Watcher:
    """Told what happens, as it happens. Every part may be left out."""

    opening: Callable[[Opening], None] | None = None
    said: Callable[[int, Completion], None] | None = None
    turn: Callable[[Turn], None] | None = None


async def play(episode: Episode, policy: Policy, watcher: Watcher | None = None) -> Played:
    """Play an episode to its end and close it.

    Raises:
        SandboxError: The machine failed; the episode has no score.
        UsageError: The policy cannot play this problem.
    """
    watcher = watcher or Watcher()
    player = policy.player(episode.problem, episode.renderer)
    async with episode:
        opening = await episode.start()
        if watcher.opening:
            watcher.opening(opening)
        messages: list[Message] = list(opening.messages)
        while True:
            completion = await player.act(messages)
            if watcher.said:
                watcher.said(len(episode.turns) + 1, completion)
            turn = await episode.step(completion)
            if watcher.turn:
                watcher.turn(turn)
            if turn.stop_reason is not None and turn.score is not None:
                path = episode.transcript_path
                return Played(episode.problem.id, policy.name, turn.score, turn.stop_reason, turn.number, path)
            messages += [
                {"role": "assistant", "content": completion.text},
                {"role": "user", "content": turn.observation},
            ]
