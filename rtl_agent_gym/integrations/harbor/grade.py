"""Grades in the verifier's container: runs the hidden tests on an agent's files and writes the reward.

This process and the supervisor, which it starts, run as root. Compilers, simulators and the tests that load a design
run as another user, who can neither read ``/tests`` nor write ``/logs``. The verdict comes from the supervisor's
report, by the rules of `scoring`; it never depends solely on a file or an output of the test processes.

If the machine fails, no reward is written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...errors import HarnessError, RTLGymError, SandboxError
from ...problems.model import Problem
from ...scoring.blame import check_report
from ...scoring.grader.bounds import decode_report
from ...scoring.grader.messages import GradingRequest, Report, ServiceRequest
from ...scoring.outcomes import Ran, share
from ...scoring.submission import SubmittedFiles, sift
from .collect import RECORD, TARGET, end_processes, read_untrusted

USER = 1001
"""Id of the user who runs everything that a design can influence."""
PATIENCE = 4.0
"""Time that the supervisor may take, as a multiple of the services' limits: it does not count time when nothing ran."""
START = 20.0
"""Seconds that the supervisor may take in addition."""
LARGEST_FILE = 256 << 20
_SUPERVISOR = (
    "import sys; sys.path.append('/opt/rtl-agent-gym/grader'); from rtl_gym_grader.supervisor import main; main()"
)
_AS_USER = [
    *("/usr/bin/prlimit", f"--fsize={LARGEST_FILE}", "--core=0", "--"),
    *("/usr/bin/setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--no-new-privs"),
    "--",
]


def read_collected(folder: Path) -> dict[str, bytes]:
    """The files of an agent, by path relative to the work folder.

    Args:
        folder: The copy of the folder that `collect` made.

    Raises:
        SandboxError: The files were not collected, or not all of them arrived: the machine failed.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        expected = int(record["files"]), int(record["bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SandboxError(
            f"the agent's files were not collected: {folder / RECORD} is missing or damaged, so the agent's container "
            "was lost before or while its collect hook ran"
        ) from error
    try:
        found = dict(read_untrusted(str(folder / "code")))
    except OSError as error:
        raise SandboxError(f"the agent's files cannot be read: {error}") from error
    arrived = len(found), sum(map(len, found.values()))
    if arrived != expected:
        raise SandboxError(
            f"{expected[0]} files ({expected[1]} bytes) were collected in the agent's container, but {arrived[0]} "
            f"({arrived[1]} bytes) arrived"
        )
    return found


def grade(task: dict[str, Any], files: dict[str, bytes]) -> tuple[dict[str, float], str]:
    """Run the hidden tests on files. Returns the reward's numbers, and the reason in words.

    Args:
        task: The content of ``problem.json``.
        files: The agent's files, by path relative to the work folder.

    Raises:
        SandboxError: The machine failed.
        ProblemError: The hidden tests cannot be run at all.
    """
    fields = task["problem"]
    problem = Problem(**{name: fields[name] for name in ("id", "context", "targets", "harness", "agentic")})
    request: GradingRequest = task["request"]
    defences = request["settings"]
    submission = sift(problem, files, defended=defences["files"])
    if submission.fault:
        return _numbers(submission, violations=len(submission.violations)), submission.fault
    _place(submission, [service["cwd"] for service in request["services"]])
    report = _run(request)
    check_report(report, problem)
    ran = Ran.of(report["services"], check_results=defences["witness"])
    violations = list(dict.fromkeys([*submission.violations, *ran.violations]))
    passed = ran.passes(violations)
    compiled = [ok for found in ran.accounts for ok in found.compiled] or [passed]  # Yosys does not report
    done, total = share(ran.tests)
    numbers = _numbers(
        submission,
        passed=passed,
        tests=done / total if total and not violations else 0.0,
        compiled=sum(compiled) / len(compiled),
        violations=len(violations),
    )
    words = [f"{done} of {total} tests passed", *violations, *submission.left_out]
    return numbers, "; ".join(text.encode("ascii", "backslashreplace").decode() for text in words)


def _numbers(
    submission: SubmittedFiles,
    *,
    passed: bool = False,
    tests: float = 0.0,
    compiled: float = 0.0,
    violations: int = 0,
) -> dict[str, float]:
    """The numbers of a reward file, named as in `episodes.turns`; ``reward`` is the official verdict."""
    return {
        "reward": float(passed),
        "tests_passed": float(passed),
        "tests_share": tests,
        "format_valid": float(submission.format > 0),
        "compile": compiled,
        "violations": float(violations),
    }


def _place(submission: SubmittedFiles, folders: list[str]) -> None:
    """Write the user's work folder, and the hidden tests, which only root can change."""
    os.chmod("/code", 0o1777)  # sticky: the user cannot rename root's files there
    for path in ("rtl", "verif", "docs", "rundir"):
        _folder(f"/code/{path}")
    for path, content in submission.tree.items():
        _folder(os.path.dirname(f"/code/{path}"))
        Path("/code", path).write_bytes(content)
        os.chown(f"/code/{path}", USER, USER)
    for path, text in submission.problem.harness.items():
        for root in ("", "/code") if path.startswith("src/") else ():
            place = Path(f"{root}/{path}")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    for path in [*folders, "/rundir"]:
        _folder(path)


def _folder(path: str) -> None:
    """Make a folder and its parents, owned by the user. Existing folders are not changed, except ``/rundir``."""
    if os.path.isdir(path) and path != "/rundir":
        return
    if not os.path.isdir(path):
        _folder(os.path.dirname(path))
        os.mkdir(path)
    os.chown(path, USER, USER)


def _run(request: GradingRequest) -> Report:
    """Run the services under the supervisor, each as the user."""
    services = [{**service, "argv": [*_AS_USER, *_argv(service)]} for service in request["services"]]
    command = ["/usr/bin/python3", "-IBc", _SUPERVISOR]
    asked = json.dumps({**request, "services": services}).encode()
    patience = PATIENCE * request["seconds"] * len(services) + START
    try:
        ended = subprocess.run(command, input=asked, capture_output=True, timeout=patience)
        return decode_report(ended.stdout.decode())
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise HarnessError(f"the supervisor did not report: {error}") from error
    finally:
        end_processes(USER)


def _argv(service: ServiceRequest) -> list[str]:
    """A service's command. Raises `HarnessError` if the image lacks its program, since `_AS_USER` always starts."""
    program = service["argv"][0]
    place = os.path.normpath(os.path.join(service["cwd"], program)) if "/" in program else program
    own = place.startswith("/code/")  # the submission's own program, which may be missing
    if not own and shutil.which(place, path=service["env"].get("PATH")) is None:
        raise HarnessError(f"service {service['name']!r}: there is no program {program!r} in the verifier's image")
    return service["argv"]


def write_reward(folder: Path, numbers: dict[str, float]) -> None:
    """Write the reward file, and remove any other."""
    for name in ("reward.json", "reward.txt"):
        (folder / name).unlink(missing_ok=True)
    new = folder / f".reward.{os.getpid()}"
    new.write_text(json.dumps(numbers), encoding="utf-8")
    new.rename(folder / "reward.json")


def main() -> None:
    """Grade ``/collected``. Exits 3 without a reward if the machine failed."""
    logs = Path("/logs/verifier")
    task = json.loads(Path("/tests/problem.json").read_text(encoding="utf-8"))
    try:
        numbers, words = grade(task, read_collected(Path(TARGET)))
    except RTLGymError as error:
        print(f"no verdict, since the machine failed: {error}")
        sys.exit(3)
    print(words)
    write_reward(logs, numbers)
