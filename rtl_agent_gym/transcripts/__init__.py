"""The record of an episode: JSON Lines, one event a line, written as it happens."""

from .events import SCHEMA_VERSION, CommandRecord, End, Event, Header, ScoreRecord, TurnRecord
from .record import Transcript, TranscriptWriter, read_events, read_transcript

__all__ = [
    "SCHEMA_VERSION",
    "CommandRecord",
    "End",
    "Event",
    "Header",
    "ScoreRecord",
    "Transcript",
    "TranscriptWriter",
    "TurnRecord",
    "read_events",
    "read_transcript",
]
