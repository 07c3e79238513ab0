"""The one thread that does an engine's torch work, and the futures of what it is asked for.

One thread, because several would only take the cores from one another; and a thread of its own, so that the event loop,
on which sandboxes and sockets live, never waits for a matrix product.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import tinker

from ..errors import UsageError

T = TypeVar("T")

Step = Callable[[], bool]
"""A piece of work to be done again and again, between jobs, while it says that there is more."""


class Later(tinker.APIFuture[T], Generic[T]):
    """A result to come: await it, or call `result`."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result. Raises `TimeoutError` after `timeout` seconds."""
        return self._future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:
        """The same without blocking the event loop."""
        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(self._future)

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()

    def future(self) -> Future[T]:
        """The `concurrent.futures.Future` below it; cancelling it withdraws what has not begun."""
        return self._future


class Worker:
    """Runs jobs one after another in its own thread, and steps between them.

    The thread is a daemon: it ends with `close`, or with the process. A job that raises fails its own future only.

    Args:
        prepare: Run once in the thread, before anything else.
        step: Done between jobs. It must not raise: it answers to its own futures.
    """

    def __init__(self, prepare: Callable[[], None], step: Step) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._step = step
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(prepare,), name="rtl-agent-gym-engine", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> Later[T]:
        """Do `job` after those submitted before it. Raises `UsageError` when the worker is closed."""
        if self._closed:
            raise UsageError("this engine is closed; make a new LocalServiceClient")
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = job()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._jobs.put(run)
        return Later(future)

    @property
    def closed(self) -> bool:
        """Whether it takes no more jobs."""
        return self._closed

    def close(self) -> None:
        """Finish the jobs submitted so far and end the thread. Idempotent."""
        if not self._closed:
            self._closed = True
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
