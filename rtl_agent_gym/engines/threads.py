"""Runs blocking work in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_into(future: Future[T], work: Callable[[], T]) -> None:
    """Do `work` unless its future is cancelled, and set the future's result or exception."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


async def in_thread(work: Callable[[], T]) -> T:
    """Do blocking work in a daemon thread of its own.

    Unlike with `asyncio.to_thread`, neither the end of the event loop nor the end of the process waits for the thread.
    """
    future: Future[T] = Future()
    threading.Thread(target=run_into, args=(future, work), name="rtl-agent-gym-service", daemon=True).start()
    return await asyncio.wrap_future(future)
