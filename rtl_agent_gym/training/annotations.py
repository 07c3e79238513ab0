"""Adds to the transcripts of a step what the training knows of their tokens, for `rtl-agent-gym view` to show.

A transcript is written as its episode happens; the teacher's log-probabilities are known only after the episode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tinker_cookbook.rl.types import Trajectory

from ..errors import TranscriptError, UsageError
from ..transcripts import TokenRecord, add_tokens
from .datums import Example

logger = logging.getLogger(__name__)

TokenBytes = Callable[[int], bytes]
"""The bytes of a token."""


def annotate(examples: Sequence[Example], token_bytes: TokenBytes | None = None) -> None:
    """Add tokens and log-probabilities to the episodes' transcripts. Doing it again changes nothing.

    A transcript that is missing or cannot be written is logged, and the others are still done: nothing of the training
    depends on it.

    Args:
        examples: With the path of their transcripts in the logs of their transitions, as `CVDPEnv` puts it there.
        token_bytes: The text of the tokens; without it they are shown by their ids.
    """
    for example in examples:
        path = _transcript_of(example.episode) if example.episode is not None else None
        if example.episode is None or path is None:
            continue
        try:
            add_tokens(path, dict(enumerate(_token_records(example, example.episode, token_bytes), 1)))
        except (TranscriptError, UsageError) as error:
            logger.warning("not annotated: %s", error)


def _transcript_of(episode: Trajectory) -> Path | None:
    found = next((step.logs["transcript"] for step in episode.transitions if "transcript" in step.logs), None)
    return Path(str(found)) if found else None


def _token_records(example: Example, episode: Trajectory, token_bytes: TokenBytes | None) -> list[TokenRecord]:
    """The tokens of each turn with their log-probabilities."""
    places = [place for place, sampled in enumerate(example.sampled.mask) if sampled]
    records: list[TokenRecord] = []
    for transition in episode.transitions:
        ids = list(transition.ac.tokens)
        own = list(transition.ac.maybe_logprobs or [])
        here, places = places[: len(ids)], places[len(ids) :]
        teacher = None
        if example.judgement is not None and len(here) == len(ids) == len(own):
            kl, covered = example.judgement.kl, example.judgement.covered
            teacher = [o - kl[place] if covered[place] else None for o, place in zip(own, here, strict=True)]
        texts = [token_bytes(id_).decode(errors="replace") for id_ in ids] if token_bytes is not None else None
        records.append(TokenRecord(ids, own if len(own) == len(ids) else None, texts, teacher))
    return records
