"""Adds tokens and log-probabilities to the transcripts of a step, for `rtl-agent-gym view`.

A transcript is written during its episode; the teacher's log-probabilities are only known after it.
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
"""Returns the bytes of a token."""


def annotate(examples: Sequence[Example], token_bytes: TokenBytes | None = None) -> None:
    """Add tokens and log-probabilities to the episodes' transcripts. Idempotent.

    Errors with a transcript are only logged, since the training does not depend on it.

    Args:
        examples: The path of the transcript is in the logs of their transitions, where `CVDPEnv` writes it.
        token_bytes: Gives the text of the tokens; without it, their ids are shown.
    """
    for example in examples:
        if example.episode is None:
            continue
        logs = (step.logs["transcript"] for step in example.episode.transitions if "transcript" in step.logs)
        path = next(logs, None)
        if not path:
            continue
        try:
            add_tokens(Path(str(path)), dict(enumerate(_token_records(example, example.episode, token_bytes), 1)))
        except (TranscriptError, UsageError) as error:
            logger.warning("not annotated: %s", error)


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
            teacher = [
                logprob - kl[place] if covered[place] else None for logprob, place in zip(own, here, strict=True)
            ]
        texts = [token_bytes(id_).decode(errors="replace") for id_ in ids] if token_bytes is not None else None
        records.append(TokenRecord(ids, own if len(own) == len(ids) else None, texts, teacher))
    return records
