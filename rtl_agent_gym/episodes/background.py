"""One event loop on a thread of its own, for faces whose callers do not await."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _forget_loop() -> None:
    """A forked child has the loop's memory but not its thread; it makes a loop of its own when it needs one."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's loop, started at first use. A daemon thread: it ends with the process."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="rtl-gym-loop", daemon=True).start()
        return _loop


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for its result; Ctrl-C cancels it and waits for its clean-up."""
    future = asyncio.run_coroutine_threadsafe(work, background_loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
