"""The one thread that does an engine's torch work.

One thread, because several would only take the cores from one another; and a thread of its own, so that the event loop,
on which sandboxes and sockets live, never waits for a matrix product.
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
Later = AwaitableConcurrentFuture
"""A result to come: await it, or call ``result``. Cancelling its ``future()`` withdraws what has not begun."""


class Worker:
    """Runs jobs one after another in its own thread, and steps between them.

    The thread is a daemon: it ends with `close`, or with the process. A job that raises fails its own future only.

    Args:
        prepare: Run once in the thread, before anything else.
        step: Done between jobs, again and again while it returns True. It must not raise.
    """

    def __init__(self, prepare: Callable[[], None], step: Callable[[], bool]) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._step = step
        self.closed = False
        """Whether it takes no more jobs."""
        self._thread = threading.Thread(target=self._run, args=(prepare,), name="rtl-agent-gym-engine", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> Later[T]:
        """Do `job` after those submitted before it. Raises `UsageError` when the worker is closed."""
        if self.closed:
            raise UsageError("this engine is closed; make a new LocalServiceClient")
        future: Future[T] = Future()
        self._jobs.put(lambda: run_into(future, job))
        return Later(future)

    def close(self) -> None:
        """Finish the jobs submitted so far and end the thread. Idempotent."""
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
