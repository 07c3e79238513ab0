"""A command of the shell. Runs inside a sandbox; standard library only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .frames import reply
from .output import Output


class Job:
    """A command: where its output goes, and when its time is over."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self.id = header["id"]
        self.begun = time.monotonic()
        self.deadline: float = self.begun + header["timeout"]
        self.step, self.timed_out = 0, False
        self.output = Output(header["limit"], lambda data: reply(b"o", {"id": self.id}, data))

    def done(self, exit_code: int, **more: object) -> None:
        """Report the end, with the last of the output."""
        header = {
            "id": self.id,
            "exit_code": None if self.timed_out else exit_code,
            "timed_out": self.timed_out,
            "size": self.output.size,
            "output_chars": self.output.chars,
            "seconds": time.monotonic() - self.begun,
            **more,
        }
        reply(b"d", header, self.output.rest())
