"""Counters of this process for Prometheus, in prometheus_client's default registry.

They count whether or not they are served. `serving` starts an endpoint; a process that already has one needs no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import Counter, Histogram, start_http_server

from .errors import UsageError

EPISODES = Counter("rtl_gym_episodes", "Ended episodes: passed, failed, fault (of the machine), aborted", ["outcome"])
FAULTS = Counter("rtl_gym_machine_faults", "Machine faults: where, and the error's class", ["where", "error"])
STARTS = Counter("rtl_gym_container_starts", "Containers that were started, by role", ["role"])
COMMANDS = Histogram(
    "rtl_gym_command_seconds", "Commands of agents", buckets=(0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)
)
COMMAND_OOMS = Counter("rtl_gym_command_ooms", "Processes of agents that ran out of memory, in graded episodes")
COMMAND_TIMEOUTS = Counter("rtl_gym_command_timeouts", "Commands of agents that ran out of time")
GRADINGS = Histogram(
    "rtl_gym_grading_seconds",
    "Gradings that were run, including the time in the queue",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600),
)
CACHED = Counter("rtl_gym_cached_gradings", "Gradings that were found in the cache")
GRADING_TIMEOUTS = Counter("rtl_gym_grading_timeouts", "Gradings whose tests ran out of time")
GRADING_OOMS = Counter("rtl_gym_grading_ooms", "Gradings whose processes ran out of memory")
VIOLATIONS = Counter("rtl_gym_violations", "Gradings of files with an attempt against the grader")


@contextlib.contextmanager
def serving(port: int) -> Iterator[int]:
    """Serve the metrics at ``http://127.0.0.1:port/metrics`` within the context; yields the port.

    0 starts no server; -1 takes any free port. Raises `UsageError` if the port is taken.
    """
    if port == 0:
        yield 0
        return
    try:
        server, thread = start_http_server(max(0, port), "127.0.0.1")
    except (OSError, OverflowError) as error:
        raise UsageError(f"metrics_port: cannot serve at 127.0.0.1:{port}: {error}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
