"""Every exception of the package.

::

    RTLGymError
    ├── UsageError            the caller asked for something impossible      (also a ValueError)
    │   └── ProblemError      a problem's data is wrong; names file, line, field
    ├── SandboxError          the machine failed: never a score, retried, then raised   (also a RuntimeError)
    │   ├── DaemonError       the Docker daemon does not answer, or refuses a request
    │   ├── ImageError        the simulation image is missing or cannot be built
    │   ├── SandboxLost       the container or the connection to it was lost during use
    │   ├── HarnessError      the grader failed, not the design
    │   └── ModelError        the service behind a policy does not answer
    │       └── ServiceError  a training service failed one request: that episode or step fails
    │           ├── RequestRefused  the service refuses the request, and would refuse it again
    │           └── ServiceDown     the service is unusable: the run ends, and can be resumed
    ├── NotFinite             a model's output, a gradient or a weight is NaN or infinite (also an ArithmeticError)
    ├── LimitReached          the caller's limit on cost or tokens is reached: data, not a machine fault
    ├── SandboxBroken         an agent's own commands broke its sandbox: data, not a machine fault
    └── TranscriptError       a recorded episode cannot be read              (also a ValueError)

Who classifies: the module that calls a library or service (Docker, the operating system, JSON) turns its exceptions
into these, with the cause chained. No caller above that module catches ``Exception``.

Mistakes of an agent or a design are data (an observation, a `Score` with its reason), never exceptions. A
`SandboxError`, in contrast, says nothing about the agent, so no caller may turn it into a reward. `SandboxBroken` is
raised only inside the package: it ends the episode, which is then graded.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path


class RTLGymError(Exception):
    """Base class of all exceptions that this package raises on purpose."""


class UsageError(RTLGymError, ValueError):
    """The caller asked for something impossible: an unknown name, a value out of range, a call in the wrong order."""


class ProblemError(UsageError):
    """A problem's data is wrong, or needs something that is not available here.

    Args:
        message: What is wrong and what was expected.
        source: The file of the problem.
        line: The 1-based line in that file.
        field: The path of the wrong field, such as ``harness.docker-compose.yml``.
        problem_id: The problem's id, if known.
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
        self.message = str(message)  # Gymnasium's vector environments re-raise an error as type(error)(error)
        self.source, self.line, self.field, self.problem_id = source, line, field, problem_id
        location = source or ""
        if line is not None:
            location += f":{line}" if location else f"line {line}"
        parts = [part for part in (location, problem_id, field) if part]
        super().__init__(": ".join([*parts, self.message]))

    def __reduce__(self) -> tuple[object, ...]:
        names = ("source", "line", "field", "problem_id")
        return partial(ProblemError, self.message, **{name: getattr(self, name) for name in names}), ()


class SandboxError(RTLGymError, RuntimeError):
    """The machine failed. It says nothing about the agent or the design, and never becomes a score.

    Args:
        message: What failed and what to do.
        retries: How often the work was retried before this was raised.
    """

    def __init__(self, message: str, *, retries: int = 0) -> None:
        super().__init__(message)
        self.retries = retries


class DaemonError(SandboxError):
    """The Docker daemon does not answer, or refused a request."""


class ImageError(SandboxError):
    """The simulation image is missing or could not be built."""


class SandboxLost(SandboxError):
    """A container, or the connection to it, was lost during use."""


class SandboxBroken(RTLGymError, RuntimeError):
    """An agent's own commands broke its sandbox, as evidence from the daemon and the container shows.

    Not a machine fault: the episode ends and is graded, and nothing is retried.
    """


class LimitReached(RTLGymError):
    """A limit that the caller set on cost or tokens is reached: neither a fault nor a verdict. Nothing is retried."""


class NotFinite(RTLGymError, ArithmeticError):
    """A model's output, a loss, a gradient or a weight is NaN or infinite. It is neither trained on nor saved.

    Not a machine fault: the same work would fail again, so nothing is retried.
    """


class HarnessError(SandboxError):
    """The grader failed in a way that no design can cause."""


class ModelError(SandboxError):
    """The service behind a policy does not answer, or stops midway. It says nothing about the model's ability."""


class ServiceError(ModelError):
    """A training service failed one request, after retries. That episode or step is lost, not the run."""


class RequestRefused(ServiceError):
    """A service refuses one request, and would refuse it again: a retry is useless."""


class ServiceDown(ServiceError):
    """A training service is unusable: it did not answer for too long, or the account is blocked. The run ends."""


class TranscriptError(RTLGymError, ValueError):
    """A recorded episode cannot be read. The message says where and why."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, at any depth; `error` itself if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, down to the operating system's."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def most_telling(error: BaseException) -> RTLGymError | None:
    """The error of this package that best explains an exception or exception group.

    Wrong usage comes first, then permanent failures, then their consequences, such as a lost container. None if the
    group contains an exception from outside this package, which must not be hidden; cancellations do not count.
    """
    parts = [part for part in leaves(error) if not isinstance(part, asyncio.CancelledError)]
    ours = [part for part in parts if isinstance(part, RTLGymError)]
    if not ours or len(ours) < len(parts):
        return None
    kinds = (
        *(UsageError, ServiceDown, DaemonError, ImageError, ModelError, HarnessError, TranscriptError, SandboxBroken),
        RTLGymError,
    )
    return min(ours, key=lambda part: next(rank for rank, kind in enumerate(kinds) if isinstance(part, kind)))


def exit_code(error: RTLGymError) -> int:
    """The exit code of a process that ends with this error: 1 failed work, 2 wrong usage or data, 3 machine fault."""
    if isinstance(error, SandboxError):
        return 3
    return 2 if isinstance(error, (UsageError, TranscriptError)) else 1


_WRONG_PATH = {
    errno.EACCES, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip


def cannot_write(what: str, path: Path | str, error: OSError) -> RTLGymError:
    """The error for an output file that cannot be written.

    Args:
        what: A name for the output, such as the option that sets its path.
        path: The output file.
        error: The operating system's error.

    Returns:
        A `UsageError` if another path would help, otherwise (disk full, too many open files) a `SandboxError`.
    """
    at = f" (at {error.filename})" if error.filename is not None and str(error.filename) != str(path) else ""
    message = f"{what}: {path} cannot be written: {error.strerror or error}{at}"
    if error.errno in _WRONG_PATH:
        return UsageError(f"{message}; choose another place")
    return SandboxError(message)


@contextlib.contextmanager
def writing(what: str, path: Path | str) -> Iterator[None]:
    """Raise `cannot_write` in place of an `OSError` of the block."""
    try:
        yield
    except OSError as error:
        raise cannot_write(what, path, error) from error


@contextlib.contextmanager
def importing(needs: str, *, why: bool = False) -> Iterator[None]:
    """Raise `UsageError` with the text `needs` in place of an `ImportError` of the block; `why` appends its message."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{needs} ({error})" if why else needs) from error


MOST_NAMES = 12
"""Maximum number of names that a message lists."""


def near_matches(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A clause for an error message about the unknown `name`: the most similar names, or `otherwise`, or all names."""
    names = list(known)
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    # People often give part of a long id, which is too short for the similarity ratio.
    close += [low for low in by_lower if name and name.lower() in low and low not in close][: 3 - len(close)]
    if close:
        return "did you mean " + " or ".join(by_lower[low] for low in close) + "?"
    if otherwise or not names:
        return otherwise or "there are none"
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"choose one of {', '.join(names[:MOST_NAMES])}{rest}"
