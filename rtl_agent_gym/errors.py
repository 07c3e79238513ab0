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
    │       └── ServiceError  a training service failed one request: a fault of that episode or step
    │           ├── RequestRefused  it will not do what was asked, and would refuse it again
    │           └── ServiceDown     it cannot be used at all: the run ends, and can be resumed
    ├── SandboxBroken         an agent's own commands ended its sandbox: data, never a machine's fault
    └── TranscriptError       a recorded episode cannot be read              (also a ValueError)

Who classifies: the module at whose edge a foreign exception appears (Docker, the operating system, JSON) turns it into
one of these, with the cause chained. Above that edge nobody catches ``Exception``.

What an agent or a design does wrong is data (an observation, a `Score` with its reason), never an exception.
`SandboxError` is the opposite: it says nothing about the agent, so no caller may turn it into a reward. `SandboxBroken`
is an exception for its way through the code alone: an episode takes it for its end, and is graded.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path


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


class ServiceError(ModelError):
    """A training service failed one request, after its retries. It costs that episode or step, not the run."""


class RequestRefused(ServiceError):
    """A training service refuses what one request asks for, and would refuse it again: a retry is useless."""


class ServiceDown(ServiceError):
    """A training service cannot be used: it was silent for too long, or billing stops it. The run ends."""


class TranscriptError(RTLGymError, ValueError):
    """A recorded episode cannot be read; the message says where and why."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions that a group holds, at any depth; the exception itself where it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def most_telling(error: BaseException) -> RTLGymError | None:
    """The one error of this package that explains an exception, or a group of them, best.

    What was asked for wrongly goes before what failed for good, and that before what only followed from it, such as a
    lost container. None where anything else is among them (a cancelled task aside), which must not be hidden.
    """
    parts = [part for part in leaves(error) if not isinstance(part, asyncio.CancelledError)]
    ours = [part for part in parts if isinstance(part, RTLGymError)]
    if not ours or len(ours) < len(parts):
        return None
    kinds = (UsageError, DaemonError, ImageError, ModelError, HarnessError)

    def rank(part: RTLGymError) -> int:
        known = next((at for at, kind in enumerate(kinds) if isinstance(part, kind)), None)
        return known if known is not None else len(kinds) + isinstance(part, SandboxError)

    return min(ours, key=rank)


_PATH_AT_FAULT = {
    errno.EACCES, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip


def cannot_write(what: str, path: Path | str, error: OSError) -> RTLGymError:
    """The error for an output that the operating system refuses.

    Args:
        what: What the output is, such as the option that names it.
        path: Where it was to go.
        error: Why not.

    Returns:
        A `UsageError` where another path would help, otherwise (the disk is full, too many files are open) a
        `SandboxError`.
    """
    at = f" (at {error.filename})" if error.filename is not None and str(error.filename) != str(path) else ""
    message = f"{what}: {path} cannot be written: {error.strerror or error}{at}"
    if error.errno in _PATH_AT_FAULT:
        return UsageError(f"{message}; choose another place")
    return SandboxError(message)
