"""A judge that repeats a recorded rating, so that an episode can be replayed without asking the model again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ..transcripts import Transcript


@dataclass(frozen=True)
class RecordedJudge:
    """Gives the rating of a record; implements `Judge`."""

    name: str
    rating: float
    reasoning: str

    async def ask(self, system: str, user: str) -> str | None:
        """The recorded rating, in the form that the prompt asks for."""
        code = re.findall(r'"code": "(\w+)"', user)[-1]
        return json.dumps({"code": code, "score": self.rating, "reasoning": self.reasoning})


def recorded_judge(transcript: Transcript) -> RecordedJudge | None:
    """The judge that a transcript's score names; None if none rated it."""
    score = transcript.score.score if transcript.score is not None else {}
    name = score.get("judge")
    if not isinstance(name, str) or not name:
        return None
    rating, reason = score.get("rating", 0.0), str(score.get("reason", ""))
    # The reason is the judge's name and its words, to which the episode may have added notes.
    words = reason.removeprefix(f"rated {rating:g} by {name}").removeprefix(": ")
    return RecordedJudge(name, float(rating), words)
