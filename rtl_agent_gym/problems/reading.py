"""Lines of a JSON Lines file, plain or gzipped, with their positions."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from rtl_agent_gym.errors import ProblemError, UsageError

SUFFIXES = (".jsonl", ".jsonl.gz")

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class RawLine:
    """A non-blank line."""

    number: int
    """1-based."""
    offset: int
    """Bytes before the line in the (uncompressed) file."""
    data: bytes


def read_lines(path: Path, label: str) -> Iterator[RawLine]:
    """The non-blank lines of a file.

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
            for data in stream:
                number += 1
                if data.strip():
                    bom = len(_BOM) if number == 1 and data.startswith(_BOM) else 0
                    yield RawLine(number, offset + bom, data[bom:])
                offset += len(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ProblemError(
            f"damaged gzip data after line {number}: {error}; fetch the file again", source=label, line=number or None
        ) from error
    except OSError as error:
        raise UsageError(f"{label}: cannot be read: {error.strerror or error}") from error


def _open(path: Path, label: str) -> IO[bytes]:
    stream = path.open("rb")
    magic = stream.peek(2)[:2]
    if magic == _GZIP_MAGIC:
        stream.close()
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".gz":
        stream.close()
        raise ProblemError(
            "expected gzip data because of the file's name; rename the file or compress it again", source=label
        )
    return stream


def parse_line(line: RawLine, label: str) -> dict[str, Any]:
    """The JSON object on a line.

    Raises:
        ProblemError: The line is not UTF-8, JSON or an object, or an object repeats a key.
    """
    try:
        row = json.loads(line.data.decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ProblemError(_json_fault(error, line), source=label, line=line.number) from error
    if not isinstance(row, dict):
        raise ProblemError(f"expected a JSON object, got {json_kind(row)}", source=label, line=line.number)
    return row


def _json_fault(error: Exception, line: RawLine) -> str:
    if isinstance(error, UnicodeDecodeError):
        place = f"byte {line.offset + error.start} of the file (byte {error.start} of the line)"
        return f"not UTF-8: {error.reason} at {place}"
    if isinstance(error, _RepeatedKey):
        return f"the key {error.args[0]!r} is repeated in one object"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.pos + 1}"
    return f"not JSON that can be read: {error}"


def json_kind(value: object) -> str:
    """The JSON type of a value, with an article."""
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


class _RepeatedKey(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKey(next(name for name in names if names.count(name) > 1))
    return row
