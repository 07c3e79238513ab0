"""pytest as a fork of a process that has imported it: whatever a harness can see of it, a new interpreter shows too."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.sandboxes import DockerSandboxes, SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.scoring.compose import HarnessImages, read_services
from rtl_agent_gym.scoring.grader.messages import ServiceReport
from rtl_agent_gym.scoring.harness import run_harness
from rtl_agent_gym.scoring.submission import sift

from .conftest import ENV, GOLDEN, RUNNER, TARGET, TESTS, make_problem

pytestmark = pytest.mark.docker

FORKED, NEW = "pytest {}", "/venv/bin/python3 /venv/bin/pytest {}"
SHELL_FORKED, SHELL_NEW = '/bin/sh -c "pytest {}"', "/bin/sh -c \"'pytest' {}\""
PAIRS = [(FORKED, NEW), (SHELL_FORKED, SHELL_NEW)]

SHOW = """\
import atexit, gc, json, locale, os, random, resource, signal, sys, threading, warnings

def status(*names):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {name: lines[name].strip().replace(str(os.getuid()), "own") for name in names}

def test_show(capsys):
    numbers = set(os.listdir("/proc/self/fd"))
    open_files = sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in numbers if os.path.exists(f"/proc/self/fd/{n}"))
    shown = {
        "argv": sys.argv, "path": sys.path, "environ": dict(os.environ), "cwd": os.getcwd(), "files": open_files,
        "flags": repr(sys.flags), "executable": sys.executable, "prefix": sys.prefix,
        "main": sys.modules["__main__"].__file__, "hash": hash("abc"), "random": random.random(),
        "handlers": {s.name: repr(getattr(signal.getsignal(s), "__name__", signal.getsignal(s))) for s in signal.valid_signals() if isinstance(s, signal.Signals)},
        "masks": status("SigBlk", "SigIgn", "SigCgt", "Seccomp", "NoNewPrivs", "Uid", "Gid", "Groups", "CapEff", "CapPrm", "Threads"),
        "umask": os.umask(0o22), "limits": [resource.getrlimit(n) for n in range(16)], "nice": os.nice(0),
        "oom": open("/proc/self/oom_score_adj").read(), "stdin": repr(os.read(0, 9)), "threads": threading.active_count(),
        "streams": [[s.encoding, s.errors, s.line_buffering, s.name, s.isatty()] for s in (sys.__stdin__, sys.__stdout__, sys.__stderr__)],
        "gc": [gc.isenabled(), gc.get_threshold()], "locale": [locale.getpreferredencoding(), locale.getlocale()],
        "filters": [str(f) for f in warnings.filters], "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "bytecode": sys.dont_write_bytecode, "affinity": sorted(os.sched_getaffinity(0)),
    }
    with capsys.disabled():
        print("SHOWN" + json.dumps(shown, default=str) + "END")
        print("FORKED" if b"-c" in open("/proc/self/cmdline", "rb").read().split(b"\\0") else "NEW")
"""  # noqa: E501


@dataclass(frozen=True)
class Case:
    """One service: a command, with its test file in the place of the braces, and its variables."""

    command: str
    source: str
    env: str = ENV


async def run_cases(provider: SandboxProvider, cases: Sequence[Case], **more: str) -> list[ServiceReport]:
    """Run the cases one after another in one sandbox. Equal sources are one file."""
    numbers = {source: number for number, source in enumerate(dict.fromkeys(case.source for case in cases))}
    text, harness = "services:\n", {f"src/{name}.py": text for name, text in more.items()}
    for number, case in enumerate(cases):
        command = case.command.replace("/src/test_it.py", f"/src/test_it{numbers[case.source]}.py")
        text += f"  s{number}:\n    image: __OSS_SIM_IMAGE__\n    env_file: ./src/{number}.env\n"
        text += f"    command: {json.dumps(command)}\n"
        harness |= {f"src/{number}.env": case.env, f"src/test_it{numbers[case.source]}.py": case.source}
    problem = make_problem(harness={**harness, "docker-compose.yml": text})
    submission = sift(problem, {TARGET: GOLDEN})
    found = await run_harness(submission, read_services(problem), provider, HarnessImages(), timeout=250, lint=False)
    return list(found.services)


async def run(provider: DockerSandboxes, command: str, source: str, env: str = ENV, **more: str) -> ServiceReport:
    """As `run_cases`, with one case."""
    (service,) = await run_cases(provider, [Case(command, source, env)], **more)
    return service


def shown(service: ServiceReport) -> dict[str, Any]:
    match = re.search(r"SHOWN(.*)END", service["log"])
    assert match, service["log"]
    found: dict[str, Any] = json.loads(match[1])
    found["files"] = [re.sub(r"#\d+", "#", path) for path in found["files"]]  # a temporary file's number
    return found


OPTIONS = ["-s /src/test_it.py", "-o cache_dir=/code/rundir/.cache /src/test_it.py -v"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen() -> dict[tuple[str, str], ServiceReport]:
    """What `SHOW` sees, by command and options."""
    env = f"{ENV}RTL_GYM_SEED = 5\nRANDOM_SEED = 5\n"
    keys = [(command, options) for options in OPTIONS for pair in PAIRS for command in pair]
    async with make_provider() as provider:
        found = await run_cases(provider, [Case(command.format(options), SHOW, env) for command, options in keys])
    return dict(zip(keys, found, strict=True))


@pytest.mark.parametrize(("forked", "new"), PAIRS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_harness_sees_no_difference(
    seen: dict[tuple[str, str], ServiceReport], forked: str, new: str, options: str
) -> None:
    one, other = seen[forked, options], seen[new, options]
    assert "\nFORKED" in one["log"]
    assert "\nNEW" in other["log"]
    assert (one["code"], other["code"]) == (0, 0)
    left, right = shown(one), shown(other)
    differences = [f"{name}: {left[name]} {right[name]}" for name in left if left[name] != right[name]]
    assert not differences, "\n".join(differences)


ENDS = {
    "passes": "def test(): pass",
    "fails": "def test(): assert 0, 'indeed'",
    "has no tests": "",
    "does not load": "import nowhere",
    "leaves at once": "import os\ndef test(): os._exit(7)",
    "is killed": "import os\ndef test(): os.kill(os.getpid(), 9)",
    "crashes": "import ctypes\ndef test(): ctypes.string_at(0)",
    "is interrupted": "def test(): raise KeyboardInterrupt",
    "exits": "import pytest\ndef test(): pytest.exit('enough', returncode=9)",
    "exits while loading": "raise SystemExit(3)",
    "has no status": """
class Hooks:
    def pytest_sessionfinish(self, session): session.exitstatus = None
def test(request): request.config.pluginmanager.register(Hooks())
""",
    "says a last word": "import atexit\natexit.register(print, 'last word')\ndef test(): pass",
    "has a thread": "import threading, time\ndef test(): threading.Thread(target=lambda: time.sleep(.3) or print('late')).start()",  # noqa: E501
    "keeps what is gone": "import weakref\ngone = weakref.proxy({1})\ndef test(): pass",
    "forks": "import os\ndef test():\n    if os.fork() == 0: os._exit(0)\n    os.wait()",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ended() -> dict[str, list[ServiceReport]]:
    """How each of `ENDS` ends as a fork, and with an interpreter of its own."""
    options = "-s -p no:cacheprovider /src/test_it.py"
    cases = [Case(command.format(options), source) for source in ENDS.values() for command in (FORKED, NEW)]
    async with make_provider() as provider:
        found = await run_cases(provider, cases)
    return dict(zip(ENDS.values(), map(list, zip(found[::2], found[1::2], strict=True)), strict=True))


@pytest.mark.parametrize("source", ENDS.values(), ids=ENDS.keys())
def test_it_ends_as_a_new_interpreter_does(ended: dict[str, list[ServiceReport]], source: str) -> None:
    one, other = ended[source]
    assert one["code"] == other["code"]
    assert _lasting(one["log"]) == _lasting(other["log"])


def _lasting(log: str) -> list[str]:
    """What a log says, without times and numbers of processes; a crash's dump names the frames below pytest."""
    text = re.sub(r"in \d+\.\d+s|0x[0-9a-f]+", "…", log)
    return [line for line in text.splitlines() if not re.match(r"  File |Extension modules|Current thread", line)]


USES = """\
def test():
    print("\\nFORKED" if "-c" in open("/proc/self/cmdline").read().split("\\0") else "\\nNEW")
"""


PROMISES = [
    (FORKED, f"{ENV}PYTHONWARNINGS = default\n"),
    (FORKED, f"{ENV}PYTHONHASHSEED = 7\n"),
    (FORKED, f"{ENV}LC_ALL = C\n"),
    (FORKED, f"{ENV}PYTEST_ADDOPTS = -q\n"),
    ('bash -c "pytest {}"', f"{ENV}BASH_ENV = /src/before.sh\n"),
    ('/bin/sh -c "cd /src && pytest {}"', ENV),
    ('/bin/sh -c "A=1 pytest {}"', ENV),
    ("python3 -m pytest {}", ENV),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def promised() -> dict[tuple[str, str], ServiceReport]:
    """The services of `PROMISES`."""
    cases = [Case(command.format("-s /src/test_it.py"), USES, env) for command, env in PROMISES]
    async with make_provider() as provider:
        return dict(zip(PROMISES, await run_cases(provider, cases), strict=True))


@pytest.mark.parametrize(("command", "env"), PROMISES)
def test_what_a_fork_cannot_promise_gets_an_interpreter(
    promised: dict[tuple[str, str], ServiceReport], command: str, env: str
) -> None:
    service = promised[command, env]
    assert service["code"] == 0, service["log"]
    assert ("\nFORKED" in service["log"]) == ("PYTEST_ADDOPTS" in env)


@pytest.mark.slow
async def test_files_that_nobody_closed_are_written(provider: DockerSandboxes) -> None:
    source = "def test():\n    global kept\n    kept = open('/code/rundir/note', 'w')\n    kept.write('all of it')\n"
    both = f"{source}import atexit, os\natexit.register(os.system, 'cat /code/rundir/note')\n"
    for text, command in ((source, FORKED), (both, FORKED), (both, NEW)):
        service = await run(provider, command.format("-s /src/test_it.py"), text)
        assert service["code"] == 0
    problem = make_problem(
        harness={
            "docker-compose.yml": "services:\n"
            "  a:\n    image: __OSS_SIM_IMAGE__\n    command: pytest /src/test_it.py\n"
            "  b:\n    image: __OSS_SIM_IMAGE__\n    command: grep -q 'all of it' /code/rundir/note\n",
            "src/test_it.py": source,
        }
    )
    submission = sift(problem, {TARGET: GOLDEN})
    found = await run_harness(submission, read_services(problem), provider, HarnessImages(), timeout=60, lint=False)
    assert [service["code"] for service in found.services] == [0, 0]


async def test_files_that_no_test_of_a_simulation_closed_are_written(provider: DockerSandboxes) -> None:
    """Of this one there is only a reference in a cycle, so a collection as the interpreter ends would close it."""
    left = (
        "\n@cocotb.test()\nasync def leave(dut):\n    kept = [open('/code/rundir/note', 'w')]\n    kept.append(kept)\n"
    )
    reader = f"{RUNNER}    assert open('/code/rundir/note').read() == 'all of it'\n"
    tests = f"{TESTS}{left}    kept[0].write('all of it')\n"
    problem = make_problem(harness={"src/test_adder.py": tests, "src/test_runner.py": reader})
    submission = sift(problem, {TARGET: GOLDEN})
    found = await run_harness(submission, read_services(problem), provider, HarnessImages(), timeout=60, lint=False)
    assert [service["code"] for service in found.services] == [0], found.services[0]["log"]


@pytest.mark.parametrize("place", ["/root", "/proc/1/cwd"])
async def test_a_fork_that_cannot_be_made_ready_is_no_design_fault(provider: DockerSandboxes, place: str) -> None:
    service = "    image: __OSS_SIM_IMAGE__\n    command: pytest /src/test_it.py\n"
    harness = {"docker-compose.yml": f"services:\n  one:\n{service}", "src/test_it.py": "def test(): pass\n"}
    problem = make_problem(harness=harness)
    submission = sift(problem, {TARGET: GOLDEN})
    services = [replace(one, cwd=place) for one in read_services(problem)]
    with pytest.raises(ProblemError, match="cannot run 'pytest'"):
        await run_harness(submission, services, provider, HarnessImages(), timeout=60, lint=False)


async def test_a_file_that_bears_the_name_of_a_loaded_module_is_the_one_that_is_imported(
    provider: DockerSandboxes,
) -> None:
    source = f"import find_libpython\n{USES}def test_mine(): assert find_libpython.mine\n"
    service = await run(provider, FORKED.format("-s /src/test_it.py"), source, find_libpython="mine = True")
    assert service["code"] == 0, service["log"]
    assert "\nNEW" in service["log"]


@pytest.mark.parametrize("name", ["deep/ctypes", "warm", "deep/find_libpython"])
async def test_a_module_of_the_harness_is_found_however_it_looks_for_it(provider: DockerSandboxes, name: str) -> None:
    folder, _, module = f"/src/{name}".rpartition("/")
    source = f"import sys\nsys.path.insert(0, {folder!r})\ndef test():\n    import {module}\n    assert {module}.mine\n"
    service = await run(provider, FORKED.format("/src/test_it.py"), source, **{name: "mine = True"})
    assert service["code"] == 0, service["log"]


async def test_what_only_the_supervisor_has_is_not_there(provider: DockerSandboxes) -> None:
    service = await run(provider, FORKED.format("/src/test_it.py"), "import warm\ndef test(): pass")
    assert "No module named 'warm'" in service["log"]


async def test_a_fork_that_runs_on_is_ended_with_its_children(provider: DockerSandboxes) -> None:
    endless = "import subprocess, time\ndef test():\n    subprocess.Popen(['sleep', '98'])\n    time.sleep(99)\n"
    problem = make_problem(
        harness={
            "docker-compose.yml": "services:\n"
            + "".join(
                f"  {name}:\n    image: __OSS_SIM_IMAGE__\n    env_file: ./src/.env\n    command: {command}\n"
                for name, command in (("a", "pytest /src/test_it.py"), ("b", "sh -c 'ps -eo args; exit 4'"))
            ),
            "src/.env": ENV,
            "src/test_it.py": endless,
        }
    )
    submission = sift(problem, {TARGET: GOLDEN})
    found = await run_harness(submission, read_services(problem), provider, HarnessImages(), timeout=4, lint=False)
    assert found.services[0]["code"] is None
    assert found.services[1]["code"] == 4
    assert "ps -eo args" in found.services[1]["log"]
    assert "sleep 98" not in found.services[1]["log"]
