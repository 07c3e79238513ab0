"""Adds to the transcripts of a step what the training knows of their tokens, for `rtl-agent-gym view` to show.

A transcript is written as its episode happens; the student's log-probabilities are known with the tokens, and the
teacher's only after the episode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tinker_cookbook.rl.types import Trajectory

from ..errors import TranscriptError, UsageError
from ..transcripts import TokenRecord, add_tokens
from .teachers import Judgement

logger = logging.getLogger(__name__)

Spell = Callable[[int], bytes]
"""The bytes of a token."""


@dataclass(frozen=True)
class Judged:
    """An episode and what its teacher said of it."""

    trajectory: Trajectory
    judgement: Judgement | None
    """Of all its tokens, those that the student did not sample included; None where no teacher was asked."""
    mask: Sequence[float]
    """1 for the tokens that the student sampled; as long as the judgement's lists."""


def annotate(episodes: Sequence[Judged], spell: Spell | None = None) -> int:
    """Add tokens and log-probabilities to the episodes' transcripts. Doing it again changes nothing.

    A transcript that is missing or cannot be written is logged, and the others are still done: nothing of the training
    depends on it.

    Args:
        episodes: With the path of their transcripts in the logs of their transitions, as `CVDPEnv` puts it there.
        spell: The text of the tokens; without it they are shown by their ids.

    Returns:
        How many transcripts were added to.
    """
    done = 0
    for episode in episodes:
        logged = [step.logs["transcript"] for step in episode.trajectory.transitions if "transcript" in step.logs]
        if not logged:
            continue
        try:
            add_tokens(Path(str(logged[0])), dict(enumerate(_token_records(episode, spell), 1)))
        except (TranscriptError, UsageError) as error:
            logger.warning("not annotated: %s", error)
            continue
        done += 1
    return done


def _token_records(episode: Judged, spell: Spell | None) -> Iterator[TokenRecord]:
    """What is known of the tokens of each turn."""
    places = (place for place, sampled in enumerate(episode.mask) if sampled)
    judgement = episode.judgement
    for transition in episode.trajectory.transitions:
        ids, own = list(transition.ac.tokens), list(transition.ac.maybe_logprobs or [])
        here = list(islice(places, len(ids)))
        teacher = None
        if judgement is not None and len(here) == len(ids) == len(own):
            teacher = [
                logprob - judgement.kl[place] if judgement.covered[place] else None
                for logprob, place in zip(own, here, strict=True)
            ]
        texts = [spell(id_).decode(errors="replace") for id_ in ids] if spell is not None else None
        yield TokenRecord(ids, own if len(own) == len(ids) else None, texts, teacher)
