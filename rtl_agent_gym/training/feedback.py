"""What the grading of an episode tells a teacher afterwards, from the transcripts of its group."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tinker_cookbook.rl.types import Trajectory

from ..episodes.submissions import all_pass, verdict
from ..errors import TranscriptError
from ..prompts import feedback_text
from ..scoring.score import Score
from ..transcripts import ScoreRecord, read_transcript
from .options import TrainOptions
from .rollouts import PlayedGroup

logger = logging.getLogger(__name__)


def transcript_path(episode: Trajectory) -> Path | None:
    """Where an episode is recorded, from its transitions' logs; None if it is not."""
    paths = (str(step.logs["transcript"]) for step in episode.transitions if step.logs.get("transcript"))
    path = next(paths, None)
    return None if path is None else Path(path)


def teacher_feedback(groups: Sequence[PlayedGroup], options: TrainOptions) -> list[list[str | None]]:
    """What the teacher reads about each episode: its result, and the files of another one of its group that passed.

    Returns:
        Texts for the teacher by group, all empty without ``teacher_context=feedback``; None for an episode whose
        grading cannot be read, which is logged.
    """
    if options.teacher_context != "feedback" or not options.distils:
        return [[""] * len(group.trajectories.trajectories_G) for group in groups]
    tested = options.reward_config().simulate
    return [_group_feedback([_grading(one) for one in group.trajectories.trajectories_G], tested) for group in groups]


def _group_feedback(records: Sequence[ScoreRecord | None], tested: bool) -> list[str | None]:
    scores = [None if record is None else Score.model_validate(record.score) for record in records]
    passed = [place for place, score in enumerate(scores) if score is not None and all_pass(score, tested=tested)]
    texts: list[str | None] = []
    for place, score in enumerate(scores):
        if score is None:
            texts.append(None)
            continue
        other = next((records[one] for one in passed if one != place), None)
        broken = not score.violations and min(score.syntax, score.compile if tested else 1.0) < 1
        reason, files = score.reason if broken else "", other.files if other is not None else {}
        texts.append(feedback_text(verdict(score, tested=tested), reason, files))
    return texts


def _grading(episode: Trajectory) -> ScoreRecord | None:
    path = transcript_path(episode)
    try:
        if path is None:
            raise TranscriptError("an episode has no transcript")
        found = read_transcript(path).score
        if found is None:
            raise TranscriptError(f"{path}: the episode was not graded")
    except TranscriptError as error:
        logger.warning("no feedback for the teacher: %s", error)
        return None
    return found
