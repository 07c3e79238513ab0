"""Pauses before more work is given to a daemon that keeps failing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

FAILURES = 5
"""Failures in a row before the first pause."""
LONGEST = 30.0
"""Seconds of a pause at most; the first one lasts one second, each later one twice as long as the one before."""

logger = logging.getLogger(__name__)


class Breaker:
    """Counts a daemon's failures in a row. One success ends the pauses. Used from several threads and event loops."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0
        self._lock = threading.Lock()

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    async def ready(self) -> None:
        """Wait until the present pause is over."""
        while (left := self._until - time.monotonic()) > 0:
            await asyncio.sleep(left)

    def failed(self, why: object) -> None:
        """Note a failure, which may begin a pause. Logs those whose number in a row is a power of two."""
        with self._lock:
            self._failures += 1
            if not self._failures & (self._failures - 1):
                logger.warning("a sandbox could not be started (failure %d in a row): %s", self._failures, why)
            if self._failures >= FAILURES:
                pause = min(LONGEST, 2.0 ** min(self._failures - FAILURES, 10))
                self._until = max(self._until, time.monotonic() + pause)

    def worked(self) -> None:
        """Note a success."""
        with self._lock:
            if self._failures:
                logger.warning("sandboxes can be started again")
            self._failures, self._until = 0, 0.0
