"""Tells the supervisor of a grading what the tests did, over a socket that no design can write to.

Outside a grading, where nobody listens, it says nothing.
"""

import contextlib
import functools
import json
import os
import socket
import time

SOCKET = "\0rtl-agent-gym"
GRADED = "RTL_GYM_SEED"
"""A variable that the supervisor gives to every service."""


class _Line:
    """The line to the supervisor, opened at the first word.

    It has no time limit. A container that is frozen, or gets no processor, answers late, and a witness that went silent
    for that would make an honest result look forged. The supervisor's own clock ends a grading that takes too long.
    """

    def __init__(self):
        self.stream = None
        self.tried = False

    def open(self):
        """The open line, or None where there is no supervisor."""
        if not self.tried:
            self.tried = True
            self.stream = _connect(patient=GRADED in os.environ)
        return self.stream

    def exchange(self, text):
        """Send a line and wait for the answer. Raises OSError when the supervisor is gone."""
        self.stream.write(text + b"\n")
        self.stream.flush()
        if not self.stream.readline():
            raise ConnectionError("the supervisor has hung up")


def _connect(patient):
    """A new line; None where nobody listens. In a grading somebody must: a patient one tries until its time is over."""
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream = None
        try:
            connection.connect(SOCKET)
            stream = connection.makefile("rwb")
            if stream.readline():
                return stream
        except OSError:
            pass
        finally:
            connection.close()  # the stream keeps it open
        if stream is not None:
            _close(stream)
        if not patient:
            return None
        time.sleep(0.1)


def _close(stream):
    with contextlib.suppress(OSError):
        stream.close()


_line = _Line()


def tell(**message):
    """Say something to the supervisor, if there is one, and wait until it has been heard.

    A line that breaks is the machine's fault. This is said on a new one, and the grading says nothing of the design.
    """
    if _line.open() is None:
        return
    message.setdefault("item", os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0])
    text = json.dumps(message).encode()
    try:
        _line.exchange(text)
    except OSError as error:
        fault = f"a witness lost its line to the supervisor ({error}), so what was heard is not everything"
        _close(_line.stream)
        _line.stream = _connect(patient=True)
        _line.exchange(json.dumps({"fault": fault}).encode())
        _line.exchange(text)


def complete(module):
    """Make cocotb's regression manager report each test as it is judged."""
    # Now, while our finder stands first: cocotb puts pytest's in front of it before the tests are imported.
    import cocotb.result  # noqa: F401

    manager = module.RegressionManager
    for method, outcome in (
        ("_record_test_passed", "passed"),
        ("_record_test_failed", "failed"),
        ("_record_test_init_failed", "error"),
        ("_record_test_skipped", "skipped"),
    ):
        setattr(manager, method, _reporting(getattr(manager, method), outcome))
    manager._execute = _announcing(manager._execute)


def _reporting(method, outcome):
    @functools.wraps(method)
    def record(self, *args, **kwargs):
        tell(source="cocotb", test=self._test.fullname, outcome=outcome)
        return method(self, *args, **kwargs)

    return record


def _announcing(method):
    @functools.wraps(method)
    def execute(self, *args, **kwargs):
        if self._first_test and not getattr(self, "_rtl_gym_announced", False):
            self._rtl_gym_announced = True
            planned = [test.fullname for test, chosen in zip(self._test_queue, self._included, strict=False) if chosen]
            tell(source="cocotb", planned=planned)
        return method(self, *args, **kwargs)

    return execute
