"""Runs the hidden tests on one submission, in a sandbox that has never run anything and never will again.

What runs where, and with which rights, is told in ``docs/scoring.md``. All services of a harness that share an image
run one after another in one sandbox, as they share the mounted work folder in the official runner; what they leave in
/tmp and /rundir is theirs alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import HarnessError
from ..problems.model import Problem
from ..sandboxes.protocol import WORK_DIR, SandboxProvider, SandboxSpec
from .blame import MemoryUse, check_report
from .compose import RUN_DIR, Service
from .images import HarnessImages
from .report import decode
from .submission import Submission

TIME_LIMIT = 600.0
"""Seconds for all services of a harness, as the official runner gives."""
_PROGRAM = ("evidence", "report", "children", "supervisor")
"""Modules of this folder that the supervisor's program is made of, each after those that it imports."""
_PATIENCE = 20.0
"""Seconds that the supervisor has, beyond the services' own, to end what is left and report."""
_BOOTSTRAP = """\
import sys, types
sys.modules["rtl_gym"] = types.ModuleType("rtl_gym")
sys.modules["rtl_gym"].__path__ = []
for name, text in {sources!r}:
    module = sys.modules["rtl_gym." + name] = types.ModuleType("rtl_gym." + name)
    module.__package__ = "rtl_gym"
    exec(compile(text, name, "exec"), module.__dict__)
for name in [name for name in sys.modules if name.split(".")[0] == "rtl_gym"]:
    del sys.modules[name]  # a harness that begins as a fork of this finds none of it
module.main()
"""
_LINT_SECONDS = 30
_HASH_SEED = "0"


@dataclass(frozen=True)
class Defences:
    """The single defences of a grading. All stand; a test takes one away to show that it is the one that holds."""

    simulation: bool = True
    """A compiled design that opens files or reaches for the machine is not simulated."""
    includes: bool = True
    """A design that includes files which are not the problem's is not simulated."""
    witness: bool = True
    """A results file that says better than what was heard while the tests ran is a violation."""
    testbench: bool = True
    """A design that is compiled with a hidden testbench in Verilog meets it at its ports only, and does not end it."""
    files: bool = True
    """Only files below the folders that the problem lets one change are graded, and none that a checker would load."""
    limits: bool = True
    """A service's time, what is kept of its output, and the length of a report are bounded."""


@dataclass(frozen=True)
class ServiceRun:
    """How one service of a harness ended."""

    name: str
    code: int | None
    """The exit status; None when the time ran out."""
    log: str
    """Head and tail of what it printed. For people: the design can print there too."""
    messages: tuple[Mapping[str, Any], ...]
    """What guards and witnesses said."""


@dataclass(frozen=True)
class HarnessRun:
    """How the harness of a problem ended."""

    services: tuple[ServiceRun, ...]
    lint: str | None = None
    """What Verilator said of the design; None where it did not run to an end."""
    memory: MemoryUse = field(default_factory=MemoryUse)
    """How its memory ended."""


@functools.cache
def _supervisor() -> tuple[str, ...]:
    """The command that runs the supervisor, with the harness's Python, so that a harness may begin as a fork of it."""
    sources = [(name, Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")) for name in _PROGRAM]
    program = _BOOTSTRAP.format(sources=sources)
    return ("/usr/bin/env", f"PYTHONHASHSEED={_HASH_SEED}", "/venv/bin/python3", "-c", program)


def scoring_sandbox(image: str) -> SandboxSpec:
    """The sandbox of one grading; its supervisor is ready before there is anything to grade."""
    return SandboxSpec(image=image, role="scoring", standby=_supervisor())


def scoring_limits() -> dict[str, Any]:
    """The limits of a grading, by their names in `SandboxSpec`: another number may end it otherwise."""
    spec = asdict(scoring_sandbox(""))
    return {name: spec[name] for name in ("memory", "cpus", "pids", "file_size", "disk")}


async def run_harness(
    submission: Submission,
    services: Sequence[Service],
    provider: SandboxProvider,
    images: HarnessImages,
    *,
    timeout: float = TIME_LIMIT,
    defences: Defences | None = None,
    lint: bool = True,
    seed: int | None = None,
) -> HarnessRun:
    """Run every service of a harness on a submission.

    Args:
        submission: What is graded.
        services: From `read_services`.
        provider: Where the sandboxes come from.
        images: Where their images come from.
        timeout: Seconds for all services together.
        defences: None for all of them.
        lint: Whether Verilator lints the design meanwhile.
        seed: Of random stimuli, where the harness does not say it; None for the problem's own.

    Raises:
        SandboxError: The machine failed. What a design does never raises.
        ProblemError: The harness asks for a program that there is not.
    """
    named = [(await images.image(submission.problem, service, provider), service) for service in services]
    runs: list[ServiceRun] = []
    linted, memory, left = None, MemoryUse(), timeout
    for image, group in groupby(named, key=lambda pair: pair[0]):
        batch = [service for _, service in group]
        request = {
            "seconds": max(left, 0.1),
            "settings": vars(defences or Defences()),
            "services": [_request(service, submission.problem, seed) for service in batch],
            "lint": _lint_command(services, submission) if lint and not runs else None,
        }
        report = await _run_batch(submission, image, request, provider)
        left += report["lost"] - sum(service["seconds"] for service in report["services"])
        runs += [_service_run(service, report["messages"]) for service in report["services"]]
        used = check_report(report, submission.problem)
        memory = memory if memory.out else used
        if report["lint"] and report["lint"]["code"] in (0, 1):
            linted = report["lint"]["log"]
    return HarnessRun(tuple(runs), linted, memory)


async def _run_batch(
    submission: Submission, image: str, request: Mapping[str, Any], provider: SandboxProvider
) -> dict[str, Any]:
    sandbox = await provider.create(scoring_sandbox(image))
    try:
        await sandbox.write_files(submission.tree)
        hidden = {
            path.removeprefix("src/"): text
            for path, text in submission.problem.harness.items()
            if path.startswith("src/")
        }
        for folder in ("/src", f"{WORK_DIR}/src"):
            await sandbox.write_files(hidden, root=folder, keeper=True)
        process = sandbox.standby or await sandbox.spawn(_supervisor(), cwd="/")
        result = await process.communicate(
            json.dumps(request).encode(), timeout=request["seconds"] + _PATIENCE, max_output=4_000_000
        )
    finally:
        await sandbox.close()
    try:
        return decode(result.output)
    except ValueError as error:
        raise HarnessError(
            f"the supervisor of {submission.problem.id} ended with {result.exit_code} and no report: "
            f"{result.output[-400:].strip()!r}"
        ) from error


def _request(service: Service, problem: Problem, drawn: int | None) -> dict[str, Any]:
    """A service for the supervisor. The seeds make equal designs get equal scores; a harness may set its own."""
    seed = str(int(problem.digest[:8], 16) if drawn is None else drawn)
    plain = {
        "HOME": RUN_DIR,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": _HASH_SEED,
        "RTL_GYM_SEED": seed,
    }
    if "RANDOM_SEED" not in service.env:
        plain["COCOTB_RANDOM_SEED"] = seed
    plugins = [name for name in (service.env.get("PYTEST_PLUGINS"), "rtl_gym_report") if name]
    env = {**plain, **service.env, "PYTEST_PLUGINS": ",".join(plugins)}
    return {"name": service.name, "argv": list(service.argv), "env": env, "cwd": service.cwd}


def source_paths(services: Sequence[Service]) -> list[str]:
    """The files that the services compile, relative to the work folder, in their order."""
    words = [word for service in services for word in service.env.get("VERILOG_SOURCES", "").split()]
    prefix = f"{WORK_DIR}/"
    return list(dict.fromkeys(word.removeprefix(prefix) for word in words if word.startswith(prefix)))


def top_modules(services: Sequence[Service]) -> dict[str, list[str]]:
    """The modules that the services' tests run on, each with the names of its Python modules of tests."""
    tops: dict[str, list[str]] = {}
    for service in services:
        if service.env.get("TOPLEVEL"):
            tops.setdefault(service.env["TOPLEVEL"], []).extend(service.env.get("MODULE", "").split(","))
    return tops


def _lint_command(services: Sequence[Service], submission: Submission) -> list[str] | None:
    sources = [f"{WORK_DIR}/{path}" for path in source_paths(services) if path in submission.tree]
    if not sources:
        return None
    # Past the wrapper in Perl, which takes longer to start than the lint itself.
    tool = ["env", "VERILATOR_ROOT=/usr/share/verilator", "/usr/bin/verilator_bin", "--lint-only", "--timing"]
    tool += ["-Wno-fatal", "-Wno-lint", "-Wno-style"]
    limited = ["timeout", "-s", "KILL", str(_LINT_SECONDS), "nice", "-n", "10"]
    return [*limited, *tool, "--bbox-unsup", "--bbox-sys", *sources]


def _service_run(report: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> ServiceRun:
    mine = tuple(message for message in messages if message["service"] == report["name"])
    return ServiceRun(report["name"], report["code"], report["log"], mine)
