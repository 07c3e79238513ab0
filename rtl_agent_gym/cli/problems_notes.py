"""What is known of a row of CVDP, for ``problems show``."""

from __future__ import annotations

from ..problems import Problem
from ..problems.notes import RATINGS, Note, Statement, note_of


def note_lines(problem: Problem) -> list[str]:
    """The note of a problem in lines; none if it has no note."""
    note = note_of(problem)
    if note is None:
        return []
    lines = [f"rating: {note.rating}: {RATINGS[note.rating]} ({_how(note)})"]
    lines += [f"its tests need from the image: {', '.join(note.needs)}"] if note.needs else []
    if note.strength is not None:
        lines.append(f"strength of its tests: {note.strength.rate:.0%} ({note.strength.text} rejected)")
    return lines + [_line(one) for one in note.statements]


def _how(note: Note) -> str:
    return f"{note.release}: {note.how}"


def _line(one: Statement) -> str:
    first = "demanded, but not stated" if one.kind == "wants" else "not seen by the tests"
    first += " (core)" if one.core else ""
    return f"  {first}: {one.text} [{'shown by a run' if one.shown == 'run' else 'read, not shown'}]"
