"""The thread in which an engine runs torch.

There is one, because several would compete for the same cores; and it is not the event loop's thread, so that sandboxes
and sockets never wait for a matrix product.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from ..errors import UsageError
from .threads import run_into

T = TypeVar("T")
ResultFuture = AwaitableConcurrentFuture
"""The SDK's `protocol.Pending`. Cancelling its ``future()`` withdraws a job that has not begun."""


class Worker:
    """Runs jobs one after another in its own thread, with steps between them.

    The thread is a daemon: it ends with `close` or with the process. The exception of a job goes to the job's future.

    Args:
        prepare: Called once in the thread, before anything else.
        step: Called between jobs, repeatedly while it returns True. It must not raise.
    """

    def __init__(self, prepare: Callable[[], None], step: Callable[[], bool]) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._step = step
        self.closed = False
        """Whether it accepts no more jobs."""
        self._thread = threading.Thread(target=self._run, args=(prepare,), name="rtl-agent-gym-engine", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> ResultFuture[T]:
        """Run `job` after the jobs submitted before it. Raises `UsageError` if the worker is closed."""
        if self.closed:
            raise UsageError("this engine is closed; create a new LocalServiceClient")
        future: Future[T] = Future()
        self._jobs.put(lambda: run_into(future, job))
        return ResultFuture(future)

    def close(self) -> None:
        """Finish the submitted jobs and end the thread. Idempotent."""
        if not self.closed:
            self.closed = True
            self._jobs.put(None)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _run(self, prepare: Callable[[], None]) -> None:
        prepare()
        more = False
        while True:
            try:
                job = self._jobs.get(block=not more)
            except queue.Empty:
                more = self._step()
                continue
            if job is None:
                return
            job()
            more = True
