"""The record of an episode: JSON Lines, one event per line, written as it happens."""

from .record import (
    SCHEMA_VERSION,
    CommandRecord,
    End,
    Event,
    Header,
    ScoreRecord,
    SubmissionRecord,
    TokenRecord,
    Transcript,
    TranscriptWriter,
    TurnRecord,
    add_tokens,
    read_events,
    read_transcript,
)

__all__ = [
    "SCHEMA_VERSION",
    "CommandRecord",
    "End",
    "Event",
    "Header",
    "ScoreRecord",
    "SubmissionRecord",
    "TokenRecord",
    "Transcript",
    "TranscriptWriter",
    "TurnRecord",
    "add_tokens",
    "read_events",
    "read_transcript",
]
