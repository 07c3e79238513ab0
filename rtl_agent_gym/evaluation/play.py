"""Play one episode with a policy."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..episodes.episode import Episode, EpisodeConfig, Opening, StopReason, Turn
from ..errors import LimitReached, SandboxError, UsageError
from ..policies import Billed, Completion, Inhabitant, Listener, Player, Policy, TokenPlayer
from ..problems import Problem
from ..renderers.protocol import MAX_CALLS, Message
from ..scoring.score import Score
from .outcome import EpisodeResult
from .spending import Spent, Tally

SLOWEST_START = 60.0
"""Seconds that the program of an agent may take in addition to the commands of a turn, for example to start."""


def _ignore(*_: object) -> None:
    pass


@dataclass
class Observer:
    """Functions that are called while episodes are played; set those of interest."""

    left_out: Callable[[Problem, str], None] = _ignore
    """A problem that cannot be scored here, and why."""
    started: Callable[[Path | None, int, list[EpisodeResult]], None] = _ignore
    """An evaluation begins: its folder, the number of episodes, and the results that exist already."""
    begun: Callable[[Problem, int], None] = _ignore
    """An episode begins: problem and sample."""
    opening: Callable[[Opening], None] = _ignore
    """The prompt of an episode."""
    completion: Callable[[int, Completion], None] = _ignore
    """The number of a turn, from 1, and the policy's completion."""
    output: Callable[[bytes], None] = _ignore
    """Output of a command, while it runs."""
    turn: Callable[[Turn], None] = _ignore
    """The outcome of the turn."""
    faulted: Callable[[Problem, int, SandboxError], None] = _ignore
    """The machine failed in an episode, which is retried unless its attempts are used up."""
    finished: Callable[[EpisodeResult], None] = _ignore
    """A result was saved."""


def rules_for(policy: Policy, rules: EpisodeConfig) -> EpisodeConfig:
    """The rules for a policy: the prompt does not teach the dialect to a chat service with native tools, there is no
    system prompt for an agent that has its own, and the sandbox has the programs of an agent that works in it.

    Raises:
        UsageError: A system prompt is given for such an agent.
    """
    if getattr(policy, "own_prompts", False):
        if rules.system_prompt:
            raise UsageError(f"system_prompt: {policy.name} has prompts of its own; leave it out")
        rules = rules.with_options(system_prompt="")
    if programs := getattr(policy, "programs", ""):
        rules = rules.with_options(sandbox=replace(rules.sandbox, programs=programs))
    return rules.with_options(teach_dialect=False) if getattr(policy, "native_tools", False) else rules


async def play(
    episode: Episode,
    policy: Policy,
    observer: Observer | None = None,
    *,
    seed: int | None = None,
    tally: Tally | None = None,
) -> EpisodeResult:
    """Play an episode to its end and close it.

    Args:
        episode: Not yet started.
        observer: Its functions for the opening and the turns are called.
        seed: Random seed of the player.
        tally: Counts what the turns cost, and may stop the episode between two of them.

    Raises:
        LimitReached: A limit of `tally` is reached; the episode has no score.
        SandboxError: The machine or the service of the policy failed; the episode has no score.
        UsageError: The policy cannot play this problem, or returns something other than a `Completion`.
    """
    observer, tally = observer or Observer(), tally or Tally()
    begun, acting = time.monotonic(), 0.0
    used, refused = Spent(), False
    player = policy.player(episode.problem, episode.renderer, seed)
    async with episode:
        opening = await episode.start()
        observer.opening(opening)
        if isinstance(player, Listener):
            player.opened(opening.system, opening.user)
        if isinstance(player, Inhabitant):
            player.enter(episode.sandbox, SLOWEST_START + MAX_CALLS * episode.config.command_timeout)
        if isinstance(player, TokenPlayer):
            await asyncio.to_thread(lambda: episode.tokens)  # encoding a long prompt takes time
        messages: list[Message] = list(opening.messages)
        score: Score | None = None
        stop_reason: StopReason | None = None
        while stop_reason is None:
            waiting_since = time.monotonic()
            try:
                tally.ledger.check()
                completion = await _next_turn(player, episode, messages)
            except (SandboxError, UsageError, LimitReached) as error:
                episode.abandon(error)
                raise
            finally:
                if isinstance(player, Billed):
                    tally.add_failed(player.take_failed())
            if completion is None:
                stop_reason, score = "max_tokens", await episode.finish("max_tokens")
                break
            used += tally.add(completion)
            refused = completion.refused
            acting += time.monotonic() - waiting_since
            observer.completion(len(episode.turns) + 1, completion)
            turn = await episode.step(completion)
            observer.turn(turn)
            stop_reason, score = turn.stop_reason, turn.score
            if isinstance(player, Listener) and stop_reason is None:
                player.answered(turn.action, turn.outputs)
            messages += [
                {"role": "assistant", "content": completion.text},
                {"role": "user", "content": turn.observation},
            ]
        path = episode.transcript_path
        return EpisodeResult.of(
            episode.problem,
            episode.seed,
            score=score,
            stop_reason=stop_reason,
            turns=len(episode.turns),
            malformed=sum(turn.action.kind == "malformed" for turn in episode.turns),
            prompt_tokens=used.prompt_tokens,
            output_tokens=used.output_tokens,
            refused=refused,
            oom_kills=episode.oom_kills,
            spent=tally.spent,
            seconds=time.monotonic() - begun,
            acting_seconds=acting,
            transcript=str(path) if path is not None else None,
        )


async def _next_turn(player: Player | TokenPlayer, episode: Episode, messages: Sequence[Message]) -> Completion | None:
    """The player's next turn. Raises `UsageError` if its protocol does not allow what it returned."""
    method, answer = (
        ("sample", player.sample(episode.tokens)) if isinstance(player, TokenPlayer) else ("act", player.act(messages))
    )
    found: object = answer
    if inspect.isawaitable(answer):
        found = await answer
        if found is None or isinstance(found, Completion):
            return found
    raise UsageError(
        f"{type(player).__name__}.{method} returned {type(found).__name__}; expected an async function that returns a "
        "Completion, or None if there is no room for another turn"
    )
