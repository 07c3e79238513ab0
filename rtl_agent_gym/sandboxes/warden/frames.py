"""Frames between the client and a warden, and between two wardens. Standard library only, on both sides.

A frame is a kind (1 byte), the lengths of header and body (4 bytes each, big-endian), the header (JSON), the body.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

_FIXED = struct.Struct(">cII")
LARGE = 1 << 20
"""Bytes from which on a part of a reply gets a frame of its own."""


def pack(kind: bytes, header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(header).encode()
    return _FIXED.pack(kind, len(text), len(body)) + text + body


def unpack(frame: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    """Kind, header and body of a frame."""
    kind, header_size, _ = _FIXED.unpack_from(frame)
    body_at = _FIXED.size + header_size
    return kind, json.loads(frame[_FIXED.size : body_at]), frame[body_at:]


def split(received: bytearray) -> Iterator[bytes]:
    """Take the complete frames from the front of what was received."""
    while len(received) >= _FIXED.size:
        _, header_size, body_size = _FIXED.unpack_from(received)
        size = _FIXED.size + header_size + body_size
        if len(received) < size:
            return
        frame = bytes(received[:size])
        del received[:size]
        yield frame


def write_all(data: bytes) -> None:
    """Write to the client, and wait until it has everything."""
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]


def reply(kind: bytes, header: Mapping[str, Any], body: bytes = b"") -> None:
    """Send the client a frame."""
    write_all(pack(kind, header, body))


def reply_error(request: int, error: Exception) -> None:
    """Answer a request with what went wrong."""
    reply(b"e", {"id": request, "message": str(error), "errno": getattr(error, "errno", 0)})
