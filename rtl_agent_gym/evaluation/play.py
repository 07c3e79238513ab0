"""A policy plays an episode."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..episodes.episode import Episode, EpisodeConfig, Opening, StopReason, Turn
from ..errors import SandboxError, UsageError
from ..policies import Completion, Listener, Policy
from ..problems import Problem
from ..renderers.protocol import Message
from ..scoring.score import Score


@dataclass(frozen=True)
class Usage:
    """What an episode took."""

    prompt_tokens: int | None = None
    """Tokens read by the model, summed over the turns; None where the policy does not say."""
    output_tokens: int | None = None
    """Tokens written by it."""
    seconds: float = 0.0
    """Wall time from the start of the sandbox to the score."""
    acting_seconds: float = 0.0
    """Of these, waiting for the policy."""

    def after(self, completion: Completion, seconds: float) -> Usage:
        """With one more turn of the policy, which took `seconds`."""
        ids = completion.token_ids
        output = completion.output_tokens if ids is None else len(ids)
        return Usage(
            _plus(self.prompt_tokens, completion.prompt_tokens),
            _plus(self.output_tokens, output),
            self.seconds,
            self.acting_seconds + seconds,
        )


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


@dataclass(frozen=True)
class Played:
    """An episode that came to its end."""

    problem_id: str
    policy: str
    score: Score
    stop_reason: StopReason
    turns: int
    transcript: Path | None
    malformed: int = 0
    """Turns that could not be acted on."""
    usage: Usage = Usage()


@dataclass
class Watcher:
    """Told what happens, as it happens. Every part may be left out."""

    opening: Callable[[Opening], None] | None = None
    said: Callable[[int, Completion], None] | None = None
    turn: Callable[[Turn], None] | None = None


def rules_for(policy: Policy, problem: Problem, rules: EpisodeConfig) -> EpisodeConfig:
    """The rules of an episode as a policy needs them.

    A chat service with tools teaches its own form of calls, so that the prompt's part on the dialect is left out.
    """
    if not getattr(policy, "native_tools", False) or rules.system_prompt is not None:
        return rules
    return replace(rules, teach_dialect=False)


async def play(episode: Episode, policy: Policy, watcher: Watcher | None = None, *, seed: int | None = None) -> Played:
    """Play an episode to its end and close it.

    Args:
        episode: Not yet started.
        policy: Who acts.
        watcher: Told what happens.
        seed: What the player draws from.

    Raises:
        SandboxError: The machine failed, or the service behind the policy; the episode has no score.
        UsageError: The policy cannot play this problem.
    """
    watcher = watcher or Watcher()
    begun = time.monotonic()
    usage = Usage()
    player = policy.player(episode.problem, episode.renderer, seed)
    async with episode:
        opening = await episode.start()
        if watcher.opening:
            watcher.opening(opening)
        if isinstance(player, Listener):
            player.opened(opening.system, opening.user)
        messages: list[Message] = list(opening.messages)
        while True:
            asked = time.monotonic()
            try:
                completion = await player.act(messages)
            except (SandboxError, UsageError) as error:
                episode.abandon(error)
                raise
            if completion is None:
                score = await episode.finish("max_tokens")
                return _played(episode, policy, score, "max_tokens", usage, begun)
            usage = usage.after(completion, time.monotonic() - asked)
            if watcher.said:
                watcher.said(len(episode.turns) + 1, completion)
            turn = await episode.step(completion)
            if watcher.turn:
                watcher.turn(turn)
            if turn.stop_reason is not None and turn.score is not None:
                return _played(episode, policy, turn.score, turn.stop_reason, usage, begun)
            if isinstance(player, Listener):
                player.answered(turn.action, turn.outputs)
            messages += [
                {"role": "assistant", "content": completion.text},
                {"role": "user", "content": turn.observation},
            ]


def _played(
    episode: Episode, policy: Policy, score: Score, stop_reason: StopReason, usage: Usage, begun: float
) -> Played:
    malformed = sum(turn.action.kind == "malformed" for turn in episode.turns)
    return Played(
        problem_id=episode.problem.id,
        policy=policy.name,
        score=score,
        stop_reason=stop_reason,
        turns=len(episode.turns),
        transcript=episode.transcript_path,
        malformed=malformed,
        usage=Usage(usage.prompt_tokens, usage.output_tokens, time.monotonic() - begun, usage.acting_seconds),
    )
