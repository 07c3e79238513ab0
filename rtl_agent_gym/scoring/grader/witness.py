"""Reports the results of tests to the supervisor of a grading. Without a supervisor, it does nothing.

`rtl_gym_site` (in the image) calls `complete` on two modules of cocotb: the regression manager, which then reports each
test as it ends, and the runner, which then reports what it reads from a results file.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import time
from _thread import allocate_lock
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .ending import leave_garbage
from .line import SOCKET, Line
from .messages import Message

GRADED = "RTL_GYM_SEED"
"""An environment variable that is set for every service of a grading."""


class _Witness:
    """A process's connection to the supervisor, opened at the first message and shared by its threads with a lock."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.tried = False
        self.lock = allocate_lock()

    def send(self, message: Message) -> None:
        with self.lock:
            line = self._connected()
            if line is None:
                return
            try:
                line.send(message)
            except OSError as error:  # the machine's fault: a design cannot break this connection
                line.close()
                self.line = line = _connect(patient=True)
                assert line is not None
                text = f"a witness lost its connection to the supervisor ({error}), so messages may be missing"
                line.send({"kind": "fault", "text": text})
                line.send(message)

    def seed(self) -> int | None:
        with self.lock:
            line = self._connected()
            return None if line is None else line.seed

    def _connected(self) -> Line | None:
        if not self.tried:
            self.tried = True
            self.line = _connect(patient=GRADED in os.environ)
        return self.line


def _connect(patient: bool) -> Line | None:
    """A new connection; None without a supervisor. With `patient`, as in a grading, it retries until there is one."""
    while True:
        try:
            return Line(SOCKET)
        except OSError:
            if not patient:
                return None
            time.sleep(0.1)


_witness = _Witness()


def _forget_line() -> None:
    """In a forked child: close its copy of the parent's connection. It opens a new one at its first message."""
    global _witness
    if _witness.line is not None:
        _witness.line.close()
    _witness = _Witness()


os.register_at_fork(after_in_child=_forget_line)


def send(message: Message) -> None:
    """Send a message to the supervisor, if there is one, and wait for its acknowledgement."""
    _witness.send(message)


def _item() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]


def complete(module: ModuleType) -> None:
    """Make a newly loaded module of cocotb report what it observes."""
    {"cocotb.regression": _complete_regression, "cocotb_tools.runner": _complete_runner}[module.__name__](module)


def _complete_runner(module: ModuleType) -> None:
    check = module.get_results

    def get_results(results_xml_file: Any) -> tuple[int, int]:
        total, failed = None, 0
        try:
            total, failed = check(results_xml_file)
            return total, failed
        finally:
            file = os.path.realpath(str(results_xml_file))
            send({"kind": "results", "item": _item(), "file": file, "total": total, "failed": failed})

    get_results.__module__, get_results.__qualname__ = module.__name__, "get_results"  # so that it can be pickled
    module.get_results = get_results  # type: ignore[attr-defined]


def _complete_regression(module: ModuleType) -> None:
    # Import it now, while our finder comes first: cocotb puts pytest's before it when it imports the tests.
    import cocotb.result  # type: ignore[import-not-found,unused-ignore] # noqa: F401

    atexit.register(leave_garbage)
    manager = module.RegressionManager
    for method, outcome in (
        ("_record_test_passed", "passed"),
        ("_record_test_failed", "failed"),
        ("_record_test_init_failed", "error"),
        ("_record_test_skipped", "skipped"),
    ):
        setattr(manager, method, _reporting(getattr(manager, method), outcome))
    manager._execute = _announcing(manager._execute)
    manager.__init__ = _seeding(manager.__init__)


def _seeding(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        import cocotb

        given = {"COCOTB_RANDOM_SEED", "RANDOM_SEED"} & set(os.environ)
        given |= {"seed", "ntb_random_seed"} & set(cocotb.plusargs)
        # cocotb would use the time as the seed. The tests have not been imported yet.
        if not given and (seed := _witness.seed()) is not None:
            cocotb.RANDOM_SEED = seed
            random.seed(seed)
            cocotb.log.info("The grading seeds Python random module with %d", seed)
        return method(self, *args, **kwargs)

    return init


def _reporting(method: Callable[..., Any], outcome: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def record(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = self._test.fullname
        send({"kind": "test", "item": _item(), "process": os.getpid(), "test": name, "outcome": outcome})
        return method(self, *args, **kwargs)

    return record


def _announcing(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._first_test and not getattr(self, "_rtl_gym_announced", False):
            self._rtl_gym_announced = True
            tests = [test.fullname for test, chosen in zip(self._test_queue, self._included, strict=False) if chosen]
            file = os.path.realpath(os.getenv("COCOTB_RESULTS_FILE", "results.xml"))
            send({"kind": "plan", "item": _item(), "process": os.getpid(), "file": file, "tests": tests})
        return method(self, *args, **kwargs)

    return execute
