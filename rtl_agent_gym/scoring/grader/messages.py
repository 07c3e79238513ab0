"""The messages between the parts of a grading; `line` encodes and decodes them.

Guards, witnesses and the library that guards a simulation's file accesses (`wall.c` in the image, which formats its own
messages) connect to the supervisor's socket, which no design can do. The first line on each connection is the
`Greeting`; then the supervisor acknowledges each message with `line.OK`, for which the sender waits.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Settings = dict[str, Any]
"""Which defences are active, by the names of `Defences` in ``scoring/harness.py``; ``checkout``, whether the whole
work folder is the problem's; ``waves``, whether the harness may read waveforms of its testbench; and ``inputs``, names
of ports that the task calls inputs."""


MEASURES = (
    "quality", "goal", "equivalence", "area", "flops", "delay", "why", "coverage", "line_coverage", "toggle_coverage"
)  # fmt: skip
"""Properties of a hidden test that become part of the score, as ``Score.measures`` describes."""
TEXTS = ("goal", "equivalence", "why")
"""The properties that are texts; the others are finite numbers."""


class Greeting(TypedDict):
    """The first line of a connection, from the supervisor."""

    settings: Settings
    seed: int
    """The seed of the next simulation's random stimuli."""
    named: list[str]
    """Files that the harness named in parameters of designs, and what `connections.benches_with_files` found."""
    times: list[int]
    """When the submitted files were last changed (``st_ctime_ns``)."""


class Checked(TypedDict):
    """From a guard."""

    violations: list[str]
    refusals: list[str]
    """Reasons, other than violations, not to build or simulate anything."""


class Build(TypedDict):
    """The submission's part of a compiler's arguments; paths are relative to the work folder."""

    sources: list[str]
    """In the order of compilation."""
    folders: list[str]
    """Include folders, in search order."""
    defines: list[str]
    """``NAME`` or ``NAME=value``."""


class Compiled(Checked):
    """A compiler has ended, or was not started."""

    kind: Literal["compiler"]
    code: int | None
    """Its exit status; None if it was not started."""
    text: str
    """The beginning of its stderr."""
    build: Build | None
    """None in a report if it is known from an earlier call, or is too long."""
    named: NotRequired[list[str]]
    """More entries for ``named`` of the next `Greeting`; not in a report."""


class Simulated(Checked):
    """A simulation is about to begin, or is refused."""

    kind: Literal["simulator"]


class Opened(TypedDict):
    """From `wall.c`: a design tried to open a file, and was refused."""

    kind: Literal["file"]
    violations: list[str]
    notes: list[str]


class Collected(TypedDict):
    """From pytest: the collected tests."""

    kind: Literal["items"]
    items: list[str]


class Phase(TypedDict):
    """From pytest: a phase of a test has ended."""

    kind: Literal["phase"]
    item: str
    when: str
    """``setup``, ``call`` or ``teardown``."""
    outcome: str
    unfinished: bool
    """Whether it failed before all its work was done, for example with more configurations to run."""
    late: bool
    """Whether it failed with Python's `TimeoutError`."""
    measures: NotRequired[dict[str, float | str]]
    """The properties in `MEASURES` that the test recorded (pytest's ``record_property``)."""


class Planned(TypedDict):
    """From cocotb: a simulation with these tests begins."""

    kind: Literal["plan"]
    item: str
    """The pytest test that it belongs to; empty if there is none."""
    process: int
    """Its process id: a test may run several simulations at once."""
    file: str
    """The path of its results file."""
    tests: list[str]


class Judged(TypedDict):
    """From cocotb: a test of a simulation has ended."""

    kind: Literal["test"]
    item: str
    process: int
    test: str
    outcome: str


class Results(TypedDict):
    """From cocotb's runner: the content of a results file after a simulation."""

    kind: Literal["results"]
    item: str
    file: str
    total: int | None
    """Number of tests; None if there is no such file."""
    failed: int


class Fault(TypedDict):
    """Messages were lost because the machine failed."""

    kind: Literal["fault"]
    text: str


Message = Compiled | Simulated | Opened | Collected | Phase | Planned | Judged | Results | Fault


class ServiceRequest(TypedDict):
    """A service to be run."""

    name: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    seed: int
    """The seed of its first simulation's random stimuli; each later simulation has the next number."""


class GradingRequest(TypedDict):
    """What the supervisor has to run."""

    services: list[ServiceRequest]
    seconds: float
    """Time limit of each service."""
    settings: Settings
    lint: list[str] | None
    """A command that lints the design, in parallel with the services."""


class StartFault(TypedDict):
    """Why a service could not be started."""

    program: str
    cwd: str
    errno: int
    text: str


class Signal(TypedDict):
    """A signal sent neither by a process of the service nor by the kernel for what the receiving process did."""

    number: int
    program: str
    """The name of the program that received it."""


class ProcessReport(TypedDict):
    """How a process ended."""

    code: int | None
    """The exit status; None if the time ran out."""
    seconds: float
    log: str
    """Head and tail of its output. For people only, since the design can print there too."""
    fault: StartFault | None
    stopped: bool
    """Whether a signal had stopped one of its processes when the time ran out."""
    signals: list[Signal]
    """Signals from outside the container while it ran, at most a fixed number."""
    waited: float
    """Seconds for which its processes were ready to run but had no processor."""


class ServiceReport(ProcessReport):
    """How a service ended, and the messages of guards and witnesses while it ran."""

    name: str
    messages: list[Message]
    added: float
    """Seconds by which its time limit was extended because it waited for a processor."""


class Memory(TypedDict):
    """The kernel's counters of the sandbox's memory since the grading began."""

    kills: int
    """Processes killed because the sandbox, a control group above it, or the host ran out of memory."""
    own: int
    """How often the sandbox's own limit was the reason."""
    pressed: int
    """How often its own limit was reached and memory was reclaimed."""
    limit: int
    """Bytes; 0 for none."""
    peak: int
    """The largest memory of one process, in bytes."""


class Report(TypedDict):
    """The result of a grading's run."""

    services: list[ServiceReport]
    lint: ProcessReport | None
    faults: list[str]
    memory: Memory
    lost: float
    """Seconds for which the sandbox did not run."""
