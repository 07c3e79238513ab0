"""What running the rows of CVDP has shown: which can be passed, and what their tests demand or do not see.

`note_of` gives the note of a problem. A note belongs to the row as it was published: a row with another task, other
files or other tests has none.
"""

from __future__ import annotations

from rtl_agent_gym.problems.cvdp_notes.notes import (
    RATINGS,
    MutationScore,
    Note,
    Right,
    Statement,
    all_notes,
    note_of,
    read_notes,
    row_digest,
    write_notes,
)
from rtl_agent_gym.problems.cvdp_notes.rows import ROWS, Rows, keep_rows

__all__ = [
    "RATINGS",
    "ROWS",
    "MutationScore",
    "Note",
    "Right",
    "Rows",
    "Statement",
    "all_notes",
    "keep_rows",
    "note_of",
    "read_notes",
    "row_digest",
    "write_notes",
]
