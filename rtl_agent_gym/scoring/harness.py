"""Runs the hidden tests on one submission, in a sandbox that is used for nothing else.

``docs/scoring.md`` describes what runs where and with which rights. Services of a harness with the same image run one
after another in one sandbox, since they share the work folder in the official runner too; they do not share /tmp and
/rundir.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import HarnessError
from ..problems.model import Problem
from ..sandboxes import WORK_DIR, SandboxProvider, SandboxSpec
from .blame import MemoryUse, check_report
from .compose import RUN_DIR, HarnessImages, Service
from .grader.bounds import decode_report
from .grader.line import encode
from .grader.measures import MOST_ADDED
from .grader.messages import GradingRequest, Report, ServiceReport, ServiceRequest, Settings
from .static_stages import is_hdl
from .submission import SubmittedFiles
from .used_by_tests import inputs_of_tests

TIME_LIMIT = 600.0
"""Seconds for each service of a harness, as in the official runner."""
GRADER = "/opt/rtl-agent-gym/grader"
"""The grader's folder in a scoring sandbox; files in the image contain this name, too."""
_PATIENCE = 20.0
"""Seconds after the services' time limit for the supervisor to end the remaining processes and report."""
HIDDEN = ("/src", f"{WORK_DIR}/src")
"""Folders of a harness's hidden files. In heavy rows the second is part of the repository."""
_LINT_SECONDS = 30
_LINT_MEMORY = 768 << 20
_HASH_SEED = "0"
_WAVES = re.compile(r"\.(?:vcd|fst|lxt2?|lx2)\b")


@dataclass(frozen=True)
class Defences:
    """The defences of a grading, described in ``docs/scoring.md``. All are active; tests switch one off to show that it
    is the one that stops an attack.
    """

    simulation: bool = True
    includes: bool = True
    witness: bool = True
    testbench: bool = True
    files: bool = True
    limits: bool = True


@dataclass(frozen=True)
class HarnessRun:
    """The results of a problem's harness."""

    services: tuple[ServiceReport, ...]
    lint: str | None = None
    """What Verilator's lint of the design printed; None if it did not finish."""
    memory: MemoryUse = field(default_factory=MemoryUse)


@functools.cache
def grader_files() -> dict[str, bytes]:
    """The grader's programs, by their path in a scoring sandbox."""
    folder = Path(__file__).with_name("grader")
    return {f"{GRADER}/rtl_gym_grader/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}


def scoring_sandbox(image: str, *, checkout: bool = False, foreign: bool = False, network: str = "") -> SandboxSpec:
    """The sandbox of one grading. Its supervisor starts before there is a submission, under the harness's Python, so
    that a harness can run in a fork of it.

    Args:
        checkout: Whether the work folder is a repository, so that ``src`` in it is not hidden.
        foreign: Whether the image is the caller's own, whose Python is found through PATH.
        network: A Docker network to join.
    """
    python, program = "/venv/bin/python3", "from rtl_gym_grader.supervisor import main; main()"
    if foreign:
        python, program = "python3", f"import sys; sys.path.insert(0, {GRADER!r}); {program}"
    return SandboxSpec(
        image=image,
        role="scoring",
        files=grader_files(),
        keeper_folders=(*(HIDDEN[:1] if checkout else HIDDEN), GRADER),
        standby=("/usr/bin/env", f"PYTHONHASHSEED={_HASH_SEED}", python, "-c", program),
        network=network,
    )


def scoring_limits() -> dict[str, Any]:
    """The limits of a grading, by their names in `SandboxSpec`. Different limits may change its result."""
    spec = scoring_sandbox("")
    return {name: getattr(spec, name) for name in ("memory", "cpus", "pids", "file_size", "disk")}


async def run_harness(
    submission: SubmittedFiles,
    services: Sequence[Service],
    provider: SandboxProvider,
    images: HarnessImages,
    *,
    timeout: float = TIME_LIMIT,
    defences: Defences | None = None,
    lint: bool = True,
    seed: int | None = None,
    network: str = "",
) -> HarnessRun:
    """Run every service of a harness on a submission.

    Args:
        timeout: Seconds for each service.
        defences: None for all of them.
        lint: Whether Verilator lints the design at the same time.
        seed: For random stimuli, unless the harness sets one; None for the problem's own.
        network: A Docker network that the sandboxes of the caller's own images join.

    Raises:
        SandboxError: The machine failed. A design never causes this.
        ProblemError: The harness needs a program that does not exist.
    """
    problem = submission.problem
    named = [(await images.image(problem, service, provider), service) for service in services]
    runs: list[ServiceReport] = []
    linted, memory = None, MemoryUse()
    for (image, foreign), group in groupby(named, key=lambda pair: (pair[0], pair[1].image is not None)):
        request: GradingRequest = {
            "seconds": timeout,
            "settings": settings_of(problem, defences or Defences()),
            "services": [service_request(service, problem, seed, services.index(service)) for _, service in group],
            "lint": _lint_command(services, submission) if lint and not runs and not foreign else None,
        }
        spec = scoring_sandbox(
            image, checkout=bool(problem.checkout), foreign=foreign, network=network if foreign else ""
        )
        report = await _run_batch(submission, spec, request, provider)
        runs += report["services"]
        used = check_report(report, problem)
        memory = memory if memory.out else used
        if report["lint"] and report["lint"]["code"] in (0, 1):
            linted = report["lint"]["log"]
    return HarnessRun(tuple(runs), linted, memory)


async def _run_batch(
    submission: SubmittedFiles, spec: SandboxSpec, request: GradingRequest, provider: SandboxProvider
) -> Report:
    harness = submission.problem.harness
    hidden = {path.removeprefix("src/"): text for path, text in harness.items() if path.startswith("src/")}
    sandbox = await provider.create(spec)
    try:
        await sandbox.write_files(submission.tree)
        for folder in HIDDEN[:1] if submission.problem.checkout else HIDDEN:
            await sandbox.write_files(hidden, root=folder, keeper=True)
        supervisor = sandbox.standby or await sandbox.spawn(spec.standby, cwd="/")
        seconds = (1 + MOST_ADDED) * request["seconds"] * len(request["services"]) + _PATIENCE
        result = await supervisor.communicate(encode(request), timeout=seconds, max_output=4_000_000)
    finally:
        await sandbox.close()
    try:
        return decode_report(result.output)
    except ValueError as error:
        raise HarnessError(
            f"the supervisor of {submission.problem.id} exited with {result.exit_code} and without a report: "
            f"{result.output[-400:].strip()!r}"
        ) from error


def settings_of(problem: Problem, defences: Defences) -> Settings:
    """What the grader defends against, and what it has to know of the problem."""
    waves = any(_WAVES.search(text) for path, text in problem.harness.items() if not is_hdl(path))
    return vars(defences) | {"checkout": bool(problem.checkout), "waves": waves, "inputs": inputs_of_tests(problem)}


def default_seed(problem: Problem) -> int:
    """The seed of random stimuli. It depends only on the hidden tests, so a problem and its mutants share it."""
    return int(hashlib.sha256(json.dumps(dict(problem.harness), sort_keys=True).encode()).hexdigest()[:8], 16)


def service_request(service: Service, problem: Problem, drawn: int | None = None, number: int = 0) -> ServiceRequest:
    """The supervisor's request for a service. Fixed seeds give equal designs equal scores; a harness may set its own.

    Args:
        drawn: The seed; None for `default_seed`.
        number: Index of the service in the problem's harness; each service has its own stimuli.
    """
    seed = (default_seed(problem) if drawn is None else drawn) + (number << 16)
    plain = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": _HASH_SEED,
        "RTL_GYM_SEED": str(seed),
    }
    if service.image is not None:  # the caller's image: without the grader in its path, and without the witness
        path = service.env.get("PYTHONPATH", "")
        service = replace(service, env={**service.env, "PYTHONPATH": f"{path}:{GRADER}" if path else GRADER})
        if "RANDOM_SEED" not in service.env:
            plain["COCOTB_RANDOM_SEED"] = str(seed)
    plugins = [name for name in (service.env.get("PYTEST_PLUGINS"), "rtl_gym_grader.plugin") if name]
    env = {**plain, **service.env, "HOME": RUN_DIR, "PYTEST_PLUGINS": ",".join(plugins)}
    return {"name": service.name, "argv": list(service.argv), "env": env, "cwd": service.cwd, "seed": seed}


def source_paths(services: Sequence[Service]) -> list[str]:
    """The files that the services compile, relative to the work folder, in compilation order."""
    words = [word for service in services for word in service.env.get("VERILOG_SOURCES", "").split()]
    prefix = f"{WORK_DIR}/"
    return list(dict.fromkeys(word.removeprefix(prefix) for word in words if word.startswith(prefix)))


def top_modules(services: Sequence[Service]) -> dict[str, list[str]]:
    """The top modules that the services test, each with the names of the Python modules that test it."""
    tops: dict[str, list[str]] = {}
    for service in services:
        if service.env.get("TOPLEVEL"):
            tops.setdefault(service.env["TOPLEVEL"], []).extend(service.env.get("MODULE", "").split(","))
    return tops


def _lint_command(services: Sequence[Service], submission: SubmittedFiles) -> list[str] | None:
    sources = [f"{WORK_DIR}/{path}" for path in source_paths(services) if path in submission.tree]
    if not sources:
        return None
    # Without the Perl wrapper, which takes longer to start than the lint itself.
    tool = ["env", "VERILATOR_ROOT=/usr/share/verilator", "/usr/bin/verilator_bin", "--lint-only", "--timing"]
    tool += ["-Wno-fatal", "-Wno-lint", "-Wno-style"]
    # The memory limit protects the tests, which run in the same container.
    limited = ["timeout", "-s", "KILL", str(_LINT_SECONDS), "nice", "-n", "10", "prlimit", f"--as={_LINT_MEMORY}"]
    folders = sorted({f"{WORK_DIR}/{path.rpartition('/')[0]}" for path in submission.tree if is_hdl(path)})
    return [*limited, *tool, "--bbox-unsup", "--bbox-sys", *(f"-I{folder}" for folder in folders), *sources]
