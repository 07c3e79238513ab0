"""A stub of Tinker's service on loopback for the real SDK: it gives the chosen answers and records requests."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests import loopback

GOOD: dict[str, tuple[int, Any]] = {
    "client/config": (200, {}),
    "client/dynamic_config": (404, {"detail": "no such thing"}),
    "create_session": (200, {"type": "create_session", "session_id": "session-1"}),
    "get_server_capabilities": (
        200,
        {"supported_models": [{"model_name": "Qwen/Qwen3-8B", "max_context_length": 32768}]},
    ),
    "session_heartbeat": (200, {}),
    "telemetry": (200, {"status": "accepted"}),
    "sessions/session-1/finish": (200, None),
}
"""The answers of a working service, until a client is created."""


@dataclass
class Stub:
    """The service: ``answers`` by path; ``"*"`` for all paths, None for no answer."""

    answers: dict[str, tuple[int, Any] | None]
    seen: list[tuple[str, Any]] = field(default_factory=list)
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def paths(self) -> list[str]:
        """The requested paths."""
        return [path for path, _ in self.seen]


@contextlib.contextmanager
def serving(answers: Mapping[str, tuple[int, Any] | None]) -> Iterator[Stub]:
    """A service with these answers, and `GOOD` otherwise."""
    stub = Stub({**GOOD, **answers})

    def answer(path: str, body: bytes) -> tuple[int, Any]:
        path = path.removeprefix("/api/v1/")
        try:
            stub.seen.append((path, json.loads(body or b"null")))
        except ValueError:
            stub.seen.append((path, body))
        found = stub.answers.get("*", stub.answers.get(path, (404, {"detail": f"no path {path}"})))
        if found is None:
            stub.ended.wait(60)
            raise ConnectionError
        return found

    with loopback.serving(answer) as stub.url:
        try:
            yield stub
        finally:
            stub.ended.set()
