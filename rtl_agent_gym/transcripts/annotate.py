"""Adding to a finished transcript what is known only after the episode: its tokens, and what a teacher says of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import TranscriptError, UsageError


@dataclass(frozen=True)
class TokenRecord:
    """The tokens of one turn. All that is given is of one length; None leaves what the transcript holds."""

    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    """Of each token under the policy, natural logarithm."""
    tokens: Sequence[str] | None = None
    """The text of each token."""
    teacher_logprobs: Sequence[float | None] | None = None
    """Of each token under the teacher; None for one that it has no counterpart of."""

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.given().items()}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"the tokens of a turn must be of one length, got {lengths}")

    def given(self) -> dict[str, list[object]]:
        """What is not None."""
        return {name: list(values) for name, values in vars(self).items() if values is not None}


def add_tokens(path: Path, turns: Mapping[int, TokenRecord]) -> None:
    """Add tokens to turns of a transcript that nobody writes to any more. The file is replaced whole or not at all.

    Args:
        path: The transcript.
        turns: By the turn's number, from 1.

    Raises:
        TranscriptError: The file cannot be read or written, or has no such turn.
    """
    missing = set(turns)
    lines: list[str] = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a line is no event: {line[:60]}")
            if row.get("event") == "turn" and row.get("turn") in turns:
                row |= turns[row["turn"]].given()
                missing.discard(row["turn"])
            lines.append(json.dumps(row))
    except (OSError, ValueError) as error:
        raise TranscriptError(f"{path}: cannot be added to: {error}") from error
    if missing:
        raise TranscriptError(f"{path}: has no turn {', '.join(map(str, sorted(missing)))}, so no tokens can be added")
    scratch = path.with_name(f".{path.name}.new")  # not *.jsonl: nobody takes it for a transcript
    try:
        scratch.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.replace(scratch, path)
    except OSError as error:
        raise TranscriptError(f"{path}: cannot be written: {error}") from error
