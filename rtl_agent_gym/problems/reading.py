"""Rows of a JSON Lines file, plain or gzipped, with their positions."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from rtl_agent_gym.errors import ProblemError, UsageError

SUFFIXES = (".jsonl", ".jsonl.gz")

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class Place(NamedTuple):
    """Where a problem is from, for messages."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"

    def error(self, message: str, **named: str | None) -> ProblemError:
        """An error at this place; `named` is its field and its problem's id."""
        return ProblemError(message, source=self.source, line=self.line, **named)


def read_rows(path: Path, label: str) -> Iterator[tuple[Place, dict[str, Any] | ProblemError]]:
    """For each line that is not blank, its JSON object, or the error if there is none.

    Args:
        path: The file. Gzip is detected by content, not by name.
        label: The file's name in messages.

    Raises:
        UsageError: The file cannot be opened or read.
        ProblemError: The gzip data is damaged or truncated.
    """
    number, offset = 0, 0
    try:
        with _open(path, label) as stream:
            for number, line in enumerate(stream, 1):
                data = line.removeprefix(_BOM) if number == 1 else line
                if data.strip():
                    place = Place(label, number)
                    yield place, _parse(data, offset + len(line) - len(data), place)
                offset += len(line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"damaged gzip data after line {number}: {error}; fetch the file again"
        raise Place(label, number or None).error(message) from error
    except OSError as error:
        raise UsageError(f"{label}: cannot be read: {error.strerror or error}") from error


def _open(path: Path, label: str) -> IO[bytes]:
    stream = path.open("rb")
    magic = stream.peek(2)[:2]
    if magic != _GZIP_MAGIC and path.suffix != ".gz":
        return stream
    stream.close()
    if magic != _GZIP_MAGIC:
        raise Place(label).error("expected gzip data because of the file's name; rename the file or compress it again")
    return cast(IO[bytes], gzip.open(path, "rb"))


def _parse(data: bytes, offset: int, place: Place) -> dict[str, Any] | ProblemError:
    try:
        row = json.loads(data.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        at = f"byte {offset + error.start} of the file (byte {error.start} of the line)"
        return place.error(f"not UTF-8: {error.reason} at {at}")
    except json.JSONDecodeError as error:
        return place.error(f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}")
    except ProblemError as error:  # a repeated key
        return place.error(error.message)
    except (ValueError, RecursionError) as error:
        return place.error(f"not JSON that can be read: {error}")
    return row if isinstance(row, dict) else place.error(f"expected a JSON object, got {json_kind(row)}")


def json_kind(value: object) -> str:
    """The JSON type of a value, with an article."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"the key {repeated!r} is repeated in one object")
    return row
