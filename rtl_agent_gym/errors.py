"""Every exception of the package.

::

    RTLGymError
    ├── UsageError            the caller asked for something impossible      (also a ValueError)
    │   └── ProblemError      a problem's data is wrong; names file, line, field
    ├── SandboxError          the machine failed: never a score, retried, then raised   (also a RuntimeError)
    │   ├── DaemonError       no Docker daemon answers, or it refuses
    │   ├── ImageError        the simulation image is missing or cannot be built
    │   ├── SandboxLost       the container or its channel went away in use
    │   ├── HarnessError      the grading machinery broke, not the design
    │   └── ModelError        the service behind a policy does not answer
    ├── SandboxBroken         an agent's own commands ended its sandbox: data, never a machine's fault
    └── TranscriptError       a recorded episode cannot be read              (also a ValueError)

Who classifies: the module at whose edge a foreign exception appears (Docker, the operating system, JSON) turns it into
one of these, with the cause chained. Above that edge nobody catches ``Exception``.

What an agent or a design does wrong is data (an observation, a `Score` with its reason), never an exception.
`SandboxError` is the opposite: it says nothing about the agent, so no caller may turn it into a reward. `SandboxBroken`
is an exception for its way through the code alone: an episode takes it for its end, and is graded.
"""

from __future__ import annotations


class RTLGymError(Exception):
    """Base class of everything this package raises on purpose."""


class UsageError(RTLGymError, ValueError):
    """The caller asked for something that cannot be done: an unknown name, a value out of range, a wrong order."""


class ProblemError(UsageError):
    """A problem's data is wrong, or it asks for something that cannot be had here.

    Args:
        message: What is wrong and what was expected.
        source: The file the problem came from.
        line: The 1-based line in it.
        field: The path of the field at fault, such as ``harness.docker-compose.yml``.
        problem_id: The id of the problem, where it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str | None = None,
        line: int | None = None,
        field: str | None = None,
        problem_id: str | None = None,
    ) -> None:
        self.message, self.source, self.line, self.field, self.problem_id = message, source, line, field, problem_id
        place = source or ""
        if line is not None:
            place += f":{line}" if place else f"line {line}"
        parts = [part for part in (place, problem_id, field) if part]
        super().__init__(": ".join([*parts, message]))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_problem_error, (self.message, self.source, self.line, self.field, self.problem_id)


def _rebuild_problem_error(
    message: str, source: str | None, line: int | None, field: str | None, problem_id: str | None
) -> ProblemError:
    return ProblemError(message, source=source, line=line, field=field, problem_id=problem_id)


class SandboxError(RTLGymError, RuntimeError):
    """The machine failed. It says nothing about the agent or the design, and never becomes a score.

    Args:
        message: What failed and what to do.
        retries: How often the work had been retried before this was raised.
    """

    def __init__(self, message: str, *, retries: int = 0) -> None:
        super().__init__(message)
        self.retries = retries


class DaemonError(SandboxError):
    """No Docker daemon answers, or it refused a request."""


class ImageError(SandboxError):
    """The simulation image is missing or could not be built."""


class SandboxLost(SandboxError):
    """A container, or the channel into it, went away while it was in use."""


class SandboxBroken(RTLGymError, RuntimeError):
    """An agent's own commands ended its sandbox, by the evidence of the daemon and of what ran in it.

    No machine's fault: the episode is over and graded, and nothing is tried again.
    """


class HarnessError(SandboxError):
    """The grading machinery broke in a way that no design can cause."""


class ModelError(SandboxError):
    """The service behind a policy does not answer, or breaks off; says nothing about what the model can do."""


class TranscriptError(RTLGymError, ValueError):
    """A recorded episode cannot be read; the message says where and why."""
