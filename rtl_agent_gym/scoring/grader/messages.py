"""What the parts of a grading tell each other; `line` writes and reads it.

Guards, witnesses and the wall around a simulation's files (`wall.c` in the image, which writes its line by hand)
connect to the supervisor's socket, which no design can do. The first line on each connection is the `Settings`; then
each message is answered with `line.OK`, so that nobody goes on before the supervisor knows.
"""

from __future__ import annotations

from typing import Literal, TypedDict

Settings = dict[str, bool]
"""Which defences stand, by the names of `Defences` in ``scoring/harness.py``."""


class Compiled(TypedDict):
    """A guard: a compiler has ended, or was not started."""

    kind: Literal["compiler"]
    code: int | None
    """Its exit status; None where it was not started."""
    text: str
    """The beginning of what it printed to stderr."""
    violations: list[str]
    refusals: list[str]
    """Why nothing is built or simulated although nobody cheated."""


class Simulated(TypedDict):
    """A guard: a simulation is about to begin, or is refused."""

    kind: Literal["simulator"]
    violations: list[str]
    refusals: list[str]


class Opened(TypedDict):
    """The wall: a design has asked for a file that it did not get."""

    kind: Literal["file"]
    violations: list[str]
    notes: list[str]


class Collected(TypedDict):
    """pytest: the tests that there are."""

    kind: Literal["items"]
    items: list[str]


class Phase(TypedDict):
    """pytest: a phase of a test has ended."""

    kind: Literal["phase"]
    item: str
    when: str
    """``setup``, ``call`` or ``teardown``."""
    outcome: str
    unfinished: bool
    """Whether it failed where it would have gone on to more, such as a further configuration."""


class Planned(TypedDict):
    """cocotb: a simulation begins, with these tests."""

    kind: Literal["plan"]
    item: str
    """The test of pytest that it belongs to; empty where there is none."""
    tests: list[str]


class Judged(TypedDict):
    """cocotb: a test of the last simulation has ended."""

    kind: Literal["test"]
    item: str
    test: str
    outcome: str


class Results(TypedDict):
    """The runner: what the results file says after a simulation."""

    kind: Literal["results"]
    item: str
    file: str
    total: int | None
    """How many tests; None where there is no such file."""
    failed: int


class Fault(TypedDict):
    """What was heard is not everything, by the machine's fault."""

    kind: Literal["fault"]
    text: str


Message = Compiled | Simulated | Opened | Collected | Phase | Planned | Judged | Results | Fault


class ServiceRequest(TypedDict):
    """A service to be run."""

    name: str
    argv: list[str]
    env: dict[str, str]
    cwd: str


class Request(TypedDict):
    """What the supervisor is asked for."""

    services: list[ServiceRequest]
    seconds: float
    """For all of them together."""
    settings: Settings
    lint: list[str] | None
    """A command that lints the design beside the first service."""


class StartFault(TypedDict):
    """Why a service could not be started."""

    program: str
    cwd: str
    errno: int
    text: str


class ProcessReport(TypedDict):
    """How a process ended."""

    code: int | None
    """The exit status; None when the time ran out."""
    seconds: float
    log: str
    """Head and tail of what it printed. For people: the design can print there too."""
    fault: StartFault | None
    stopped: bool
    """Whether a signal or a tracer held one of its processes when the time ran out."""
    waited: float
    """Seconds for which one of them was ready to run then, and got no processor."""


class ServiceReport(ProcessReport):
    """How a service ended, and what guards and witnesses said meanwhile."""

    name: str
    messages: list[Message]


class Memory(TypedDict):
    """What the kernel's books say of the sandbox's memory, from the grading's beginning."""

    kills: int
    """Processes that were killed for memory, whoever ran out of it: the sandbox, a group above it, or the host."""
    own: int
    """How often the sandbox's own limit called for that."""
    pressed: int
    """How often its own limit was met, so that memory had to be reclaimed."""
    limit: int
    """Bytes; 0 for none."""
    peak: int
    """The most bytes that one process had."""


class Report(TypedDict):
    """All that the supervisor found out."""

    services: list[ServiceReport]
    lint: ProcessReport | None
    faults: list[str]
    memory: Memory
    lost: float
    """Seconds for which the sandbox stood still."""
