"""Decides from evidence whether the design, the problem or the machine caused a failed grading.

``docs/scoring.md`` lists the evidence ("When the machine fails"). What a design cannot cause is the machine's fault.
All else counts as the design's, even if a machine could fail like that: a policy would learn to exploit exceptions.
"""

from __future__ import annotations

import errno
import posixpath
import signal
from dataclasses import dataclass

from ..errors import HarnessError, ProblemError
from ..problems.compose import COMPOSE_FILE
from ..problems.model import Problem
from ..problems.paths import editable
from ..sandboxes import WORK_DIR
from .grader.messages import Memory, Report, Signal, StartFault
from .outcomes import Ran

LOST = 5.0
"""Minimum seconds of standstill that may have made a test fail, since a test may have its own time limit."""
STARVED = 0.1
"""Share of the promised processor time that a service must have lacked for a time-out to be the machine's fault. Time
spent waiting was added to its limit, up to a bound, so a design that never ends lacks nothing on a machine that gives
it half a processor: load that it may have caused is no excuse."""
SHORTEST_WAIT = 0.5
"""Minimum seconds that the service must have lacked."""
HOG = 0.5
"""Share of a container's memory from which one process counts as the reason for running out, whichever limit was
reached. Otherwise a design could cause machine faults at will on a host with less memory than promised."""

_NO_PROGRAM = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOEXEC, errno.ELOOP, errno.EROFS,
    errno.ENAMETOOLONG, errno.EEXIST, errno.E2BIG,
}  # fmt: skip
"""Errors that mean a missing or unusable program or folder on any machine; others mean a lack of resources."""


@dataclass(frozen=True)
class MemoryUse:
    """Whether a grading ran out of memory, and at which limit."""

    out: bool = False
    """Whether a process was killed for memory, and the design is at fault."""
    limit: int = 0
    """The container's limit in bytes; 0 if unknown."""
    own: bool = True
    """Whether the container's own limit was reached."""


def start_fault(service: str, fault: StartFault, problem: Problem) -> None:
    """Raise if a service could not be started, unless the submission may be the cause: then it counts as failed.

    Raises:
        ProblemError: The program or folder does not exist on any machine.
        HarnessError: The machine could not start it.
    """
    message = f"cannot run {fault['program']!r} in {fault['cwd']}: {fault['text']}"
    if fault["errno"] not in _NO_PROGRAM:
        raise HarnessError(f"{problem.id}: service {service!r}: {message}")
    program = posixpath.join(fault["cwd"], fault["program"]) if "/" in fault["program"] else ""
    for path in map(posixpath.normpath, (program, fault["cwd"])):
        inside = path.removeprefix(f"{WORK_DIR}/")
        if inside != path and (editable(problem, inside) or editable(problem, f"{inside}/x")):
            return
    message = f"service {service!r}: {message}; every grading would fail like this, so the problem cannot be scored"
    raise ProblemError(message, problem_id=problem.id, field=f"harness.{COMPOSE_FILE}")


def memory_use(memory: Memory) -> MemoryUse | None:
    """The design's part in processes killed for memory; None if the host or a parent control group ran out."""
    limit, own = memory["limit"], memory["own"] > 0
    if memory["kills"] <= 0:
        return MemoryUse(limit=limit)
    return MemoryUse(out=True, limit=limit, own=own) if own or _hog(memory) else None


def _hog(memory: Memory) -> bool:
    return 0 < HOG * memory["limit"] <= memory["peak"]


def sent_from_outside(report: Report) -> list[Signal]:
    """The signals that reached the services from outside, without SIGKILL if a lack of memory explains it."""
    found = [sent for service in report["services"] for sent in service["signals"]]
    return [sent for sent in found if sent["number"] != signal.SIGKILL or report["memory"]["kills"] <= 0]


def machine_fault(report: Report) -> str:
    """Why the machine is to blame for a run in which a service failed; empty if it is not."""
    memory, lost = report["memory"], report["lost"]
    if memory_use(memory) is None:
        return (
            f"a process was killed for memory although none had more than {memory['peak'] >> 20} MiB and the container "
            f"may have {memory['limit'] >> 20} MiB: the host, or a group above the container, ran out of it; "
            "give it more, or grade fewer submissions at once"
        )
    # A host that runs out of memory kills the largest process, so a design could provoke that.
    if (sent := sent_from_outside(report)) and not _hog(memory):
        known = {int(number): number.name for number in signal.Signals if number < signal.SIGRTMIN}
        name = known.get(sent[0]["number"], "a signal")
        return (
            f"{sent[0]['program']!r} got {name} from outside its container, perhaps from an operator or an "
            "out-of-memory daemon"
        )
    # A container near its own limit also stands still, while the kernel reclaims its memory.
    if lost >= LOST and not memory["pressed"] and not _hog(memory):
        return f"the container did not run for {lost:.0f} s: it was paused, or the host had no processor for it"
    for service in report["services"]:
        if service["code"] is not None:
            continue
        if service["stopped"]:
            return f"service {service['name']!r} was stopped by a signal, which no design can send"
        seconds, waited, added = service["seconds"], service["waited"], service["added"]
        if waited - added >= max(SHORTEST_WAIT, STARVED * (seconds - added)):
            return (
                f"service {service['name']!r} ran out of time, but for {waited:.1f} of {seconds:.1f} s the host had no "
                "processor for it; grade fewer submissions at once"
            )
    return ""


def check_report(report: Report, problem: Problem) -> MemoryUse:
    """Return the design's use of memory, or raise if the report says nothing about the design.

    Raises:
        HarnessError: The machine failed.
        ProblemError: The harness cannot be run on any machine.
    """
    for service in report["services"]:
        if service["fault"]:
            start_fault(service["name"], service["fault"], problem)
    if report["faults"]:
        raise HarnessError(f"{problem.id}: {report['faults'][0]}")
    sent, use = sent_from_outside(report), memory_use(report["memory"])
    # A service can fail although it exited with 0: a killed simulation leaves results that no witness confirms.
    found = Ran.of(report["services"]).accounts if sent or use is None else ()
    denied = any(account.wraps or account.violations for account in found)
    failed = denied or any(service["code"] != 0 for service in report["services"])
    if failed and (fault := machine_fault(report)):
        raise HarnessError(f"{problem.id}: {fault}")
    if failed and sent:
        return MemoryUse(out=True, limit=report["memory"]["limit"], own=False)
    return use or MemoryUse()
