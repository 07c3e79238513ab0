"""Whose fault it was that a grading ended badly: the design's, the problem's or the machine's. Evidence decides.

What a design cannot bring about is the machine's fault: a container that was frozen, a process that was stopped, one
killed for memory while the container had not met its own limit, a witness that lost its line. What a design can bring
about is its own, even where a machine could have failed in the same way, as a policy would soon find it out.
"""

from __future__ import annotations

import errno
import posixpath
from dataclasses import dataclass

from ..errors import HarnessError, ProblemError
from ..problems.compose import COMPOSE_FILE
from ..problems.model import Problem
from ..problems.paths import editable
from ..sandboxes.protocol import WORK_DIR
from .grader.messages import Memory, Report, StartFault

LOST = 5.0
"""Seconds without the machine from which on a test that failed may have failed for them: it may have its own clock."""
STARVED = 0.9
"""Share of its time that a service has waited for a processor when it is not to blame for being late. Endless designs
that are graded side by side take time from each other, and must not be able to excuse each other with that."""
HOG = 0.5
"""Share of a container's memory that one process had when it counts as the reason for what ran out, whoever's limit it
was: on a host that has less than it promises, a design could otherwise choose to fail as the machine."""

_NO_PROGRAM = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOEXEC, errno.ELOOP, errno.EROFS,
    errno.ENAMETOOLONG, errno.EEXIST, errno.E2BIG,
}  # fmt: skip
"""What a system says of a program or folder that cannot be had anywhere; all else is said by a machine in need."""


@dataclass(frozen=True)
class MemoryUse:
    """How a grading's memory ended."""

    out: bool = False
    """Whether something was killed for it, and the design is to blame."""
    limit: int = 0
    """Bytes that the container might have; 0 where that is not known."""
    own: bool = True
    """Whether it was the container's own limit."""


def start_fault(service: str, fault: StartFault, problem: Problem) -> None:
    """Of a service that did not start: nothing where the submission may be the reason, which is then a failed service.

    Raises:
        ProblemError: There is no such program or folder, on any machine.
        HarnessError: The machine could not start it.
    """
    said = f"cannot run {fault['program']!r} in {fault['cwd']}: {fault['text']}"
    if fault["errno"] not in _NO_PROGRAM:
        raise HarnessError(f"{problem.id}: service {service!r}: {said}")
    program = posixpath.join(fault["cwd"], fault["program"]) if "/" in fault["program"] else ""
    for path in map(posixpath.normpath, (program, fault["cwd"])):
        inside = path.removeprefix(f"{WORK_DIR}/")
        if inside != path and (editable(problem, inside) or editable(problem, f"{inside}/x")):
            return
    raise ProblemError(
        f"service {service!r}: {said}; every grading would fail like this, so the problem cannot be scored",
        problem_id=problem.id,
        field=f"harness.{COMPOSE_FILE}",
    )


def memory_use(memory: Memory) -> MemoryUse | None:
    """Who is to blame for what was killed for memory; None where the host or a parent group ran out of it.

    Args:
        memory: The supervisor's account (`grader/measures.py`).
    """
    limit = memory["limit"]
    if memory["kills"] <= 0:
        return MemoryUse(limit=limit)
    if memory["own"] > 0:
        return MemoryUse(out=True, limit=limit)
    if _hog(memory):
        return MemoryUse(out=True, limit=limit, own=False)
    return None


def _hog(memory: Memory) -> bool:
    return 0 < HOG * memory["limit"] <= memory["peak"]


def machine_fault(report: Report) -> str:
    """Why a grading that did not end well says nothing about the design; empty where it does.

    Args:
        report: The supervisor's, of a run in which a service has failed.
    """
    memory, lost = report["memory"], report["lost"]
    if memory_use(memory) is None:
        return (
            f"a process was killed for memory although none had more than {memory['peak'] >> 20} MiB and the container "
            f"may have {memory['limit'] >> 20} MiB: the host, or a group above the container, ran out of it; "
            "give it more, or grade fewer submissions at once"
        )
    # Near its own limit a container stands still, too, while the kernel looks for memory in it.
    if lost >= LOST and not memory["pressed"] and not _hog(memory):
        return f"the container stood still for {lost:.0f} s: it was paused, or the host had no processor for it"
    for service in report["services"]:
        if service["code"] is not None:
            continue
        if service["stopped"]:
            return f"service {service['name']!r} was stopped by a signal, which no design can send"
        if service["waited"] >= STARVED * service["seconds"] > 0:
            return (
                f"service {service['name']!r} waited for a processor in {service['waited']:.0f} of its "
                f"{service['seconds']:.0f} s; grade fewer submissions at once"
            )
    return ""


def check_report(report: Report, problem: Problem) -> MemoryUse:
    """Raise where a report says nothing about the design; otherwise say how its memory ended.

    Raises:
        HarnessError: The machine failed.
        ProblemError: The harness cannot be run on any machine.
    """
    for service in report["services"]:
        if service["fault"]:
            start_fault(service["name"], service["fault"], problem)
    if report["faults"]:
        raise HarnessError(f"{problem.id}: {report['faults'][0]}")
    if any(service["code"] != 0 for service in report["services"]) and (fault := machine_fault(report)):
        raise HarnessError(f"{problem.id}: {fault}")
    return memory_use(report["memory"]) or MemoryUse()
