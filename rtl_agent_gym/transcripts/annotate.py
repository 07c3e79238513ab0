"""Adding to a finished transcript what is only known later: its tokens and the teacher's log-probabilities."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import TranscriptError, UsageError


@dataclass(frozen=True)
class TokenRecord:
    """The tokens of one turn. All fields given have the same length; None keeps what the transcript has."""

    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    """Log-probability of each token under the policy, in nats."""
    tokens: Sequence[str] | None = None
    """The text of each token."""
    teacher_logprobs: Sequence[float | None] | None = None
    """Log-probability of each token under the teacher, in nats; None for a token that the teacher cannot score."""

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.given().items()}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"the fields of a turn must have the same length, got {lengths}")

    def given(self) -> dict[str, list[object]]:
        """The fields that are not None."""
        return {name: list(values) for name, values in vars(self).items() if values is not None}


def add_tokens(path: Path, turns: Mapping[int, TokenRecord]) -> None:
    """Add tokens to turns of a finished transcript. The file is replaced atomically.

    Args:
        path: The transcript.
        turns: Tokens by turn number, from 1.

    Raises:
        TranscriptError: The file cannot be read or written, or a turn does not exist.
    """
    missing = set(turns)
    lines: list[str] = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a line is not an event: {line[:60]}")
            if row.get("event") == "turn" and row.get("turn") in turns:
                row |= turns[row["turn"]].given()
                missing.discard(row["turn"])
            lines.append(json.dumps(row))
    except (OSError, ValueError) as error:
        raise TranscriptError(f"{path}: tokens cannot be added: {error}") from error
    if missing:
        raise TranscriptError(f"{path}: has no turn {', '.join(map(str, sorted(missing)))}, so tokens cannot be added")
    scratch = path.with_name(f".{path.name}.new")  # not *.jsonl, so that it is not read as a transcript
    try:
        scratch.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.replace(scratch, path)
    except OSError as error:
        raise TranscriptError(f"{path}: cannot be written: {error}") from error
