"""Blocking work in threads: single calls outside the event loop, and the one thread in which an engine runs torch."""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ..errors import UsageError

T = TypeVar("T")

_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _run_into(future: Future[T], work: Callable[[], T]) -> None:
    """Do `work` unless its future is cancelled, and set the future's result or exception."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


async def in_thread(work: Callable[[], T]) -> T:
    """Do blocking work in a new daemon thread.

    Unlike with `asyncio.to_thread`, neither the end of the event loop nor the end of the process waits for the thread.
    """
    future: Future[T] = Future()
    threading.Thread(target=_run_into, args=(future, work), name="rtl-agent-gym-service", daemon=True).start()
    return await asyncio.wrap_future(future)


class Worker:
    """Runs jobs one after another in its thread, with steps between them.

    There is only one thread, because several would compete for the same cores. It is not the event loop's, so sandboxes
    and sockets never wait for a matrix product. It is a daemon thread: it ends with `close` or with the process. A
    job's exception goes to the job's future. `prepare` is called once in the thread, before anything else. `step`,
    which must not raise, is called between jobs, repeatedly while it returns True.
    """

    def __init__(self, prepare: Callable[[], None], step: Callable[[], bool]) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._step = step
        self.closed = False
        """Whether it accepts no more jobs."""
        self._thread = threading.Thread(target=self._run, args=(prepare,), name="rtl-agent-gym-engine", daemon=True)
        self.computing = False
        """Whether it is in the middle of a job or of a step."""
        _workers.add(self)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run `job` after the jobs submitted before it; cancelling the future withdraws a job that has not begun.

        Raises `UsageError` if the worker is closed.
        """
        if self.closed:
            raise UsageError("this engine is closed; create a new LocalServiceClient")
        future: Future[T] = Future()
        self._jobs.put(lambda: _run_into(future, job))
        return future

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
            self.computing = more
            try:
                job = self._jobs.get(block=not more)
            except queue.Empty:
                more = self._step()
                continue
            if job is None:
                self.computing = False
                return
            self.computing = True
            job()
            more = True


def discard_broken_output() -> None:
    """Discard the buffers of stdout and stderr if they cannot be written, as after the reader of a pipe has ended.

    Otherwise the interpreter would fail to write them at its exit, and its exit code would be 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def end_process(code: int) -> int:
    """Return `code`, to exit with; or, if a worker is still computing, end the process with it at once.

    When a process ends, CPython before 3.14 ends the other threads by unwinding their stacks. Torch's functions do not
    survive that: the process would abort with "terminate called without an active exception".
    """
    discard_broken_output()
    if any(worker.computing for worker in _workers):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
