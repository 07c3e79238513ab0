"""pytest as a fork of a process that has imported it: whatever a harness can see of it, a new interpreter shows too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.scoring.compose import RUN_DIR, HarnessImages, read_services
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


async def run_harness_of(
    provider: SandboxProvider, harness: Mapping[str, str], timeout: float = 250, cwd: str = RUN_DIR
) -> list[ServiceReport]:
    """Run the services of the adder's problem with these files, on the right design."""
    problem = make_problem(harness=harness)
    services = [replace(service, cwd=cwd) for service in read_services(problem)]
    submission, images = sift(problem, {TARGET: GOLDEN}), HarnessImages()
    return list((await run_harness(submission, services, provider, images, timeout=timeout, lint=False)).services)


async def run_cases(provider: SandboxProvider, cases: Sequence[Case], **more: str) -> list[ServiceReport]:
    """Run the cases one after another in one sandbox. Equal sources are one file."""
    numbers = {source: number for number, source in enumerate(dict.fromkeys(case.source for case in cases))}
    text, harness = "services:\n", {f"src/{name}.py": text for name, text in more.items()}
    for number, case in enumerate(cases):
        command = case.command.replace("/src/test_it.py", f"/src/test_it{numbers[case.source]}.py")
        text += f"  s{number}:\n    image: __OSS_SIM_IMAGE__\n    env_file: ./src/{number}.env\n"
        text += f"    command: {json.dumps(command)}\n"
        harness |= {f"src/{number}.env": case.env, f"src/test_it{numbers[case.source]}.py": case.source}
    return await run_harness_of(provider, {**harness, "docker-compose.yml": text})


async def run(provider: SandboxProvider, command: str, source: str, **more: str) -> ServiceReport:
    """As `run_cases`, with one case."""
    (service,) = await run_cases(provider, [Case(command, source)], **more)
    return service


def shown(service: ServiceReport) -> dict[str, Any]:
    match = re.search(r"SHOWN(.*)END", service["log"])
    assert match, service["log"]
    found: dict[str, Any] = json.loads(match[1])
    found["files"] = [re.sub(r"#\d+", "#", path) for path in found["files"]]  # a temporary file's number
    return found


OPTIONS = ["-s /src/test_it.py", "-o cache_dir=/code/rundir/.cache /src/test_it.py -v"]
COMPARED = [tuple(command.format(options) for command in pair) for pair, options in zip(PAIRS, OPTIONS, strict=True)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(shared_provider: SandboxProvider) -> dict[str, ServiceReport]:
    """What `SHOW` sees, by command."""
    env = f"{ENV}RTL_GYM_SEED = 5\nRANDOM_SEED = 5\n"
    commands = [command for pair in COMPARED for command in pair]
    found = await run_cases(shared_provider, [Case(command, SHOW, env) for command in commands])
    return dict(zip(commands, found, strict=True))


@pytest.mark.parametrize(("forked", "new"), COMPARED)
def test_a_harness_sees_no_difference(seen: dict[str, ServiceReport], forked: str, new: str) -> None:
    one, other = seen[forked], seen[new]
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
async def ended(shared_provider: SandboxProvider) -> dict[str, list[ServiceReport]]:
    """How each of `ENDS` ends as a fork, and with an interpreter of its own."""
    options = "-s -p no:cacheprovider /src/test_it.py"
    cases = [Case(command.format(options), source) for source in ENDS.values() for command in (FORKED, NEW)]
    found = await run_cases(shared_provider, cases)
    return dict(zip(ENDS.values(), map(list, zip(found[::2], found[1::2], strict=True)), strict=True))


@pytest.mark.sampled(6)
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
async def promised(shared_provider: SandboxProvider) -> dict[tuple[str, str], ServiceReport]:
    """The services of `PROMISES`."""
    cases = [Case(command.format("-s /src/test_it.py"), USES, env) for command, env in PROMISES]
    return dict(zip(PROMISES, await run_cases(shared_provider, cases), strict=True))


@pytest.mark.parametrize(("command", "env"), PROMISES)
def test_what_a_fork_cannot_promise_gets_an_interpreter(
    promised: dict[tuple[str, str], ServiceReport], command: str, env: str
) -> None:
    service = promised[command, env]
    assert service["code"] == 0, service["log"]
    assert ("\nFORKED" in service["log"]) == ("PYTEST_ADDOPTS" in env)


SERVICE = "  {}:\n    image: __OSS_SIM_IMAGE__\n    env_file: ./src/.env\n    command: {}\n"


@pytest.mark.slow
async def test_files_that_nobody_closed_are_written(shared_provider: SandboxProvider) -> None:
    source = "def test():\n    global kept\n    kept = open('/code/rundir/note', 'w')\n    kept.write('all of it')\n"
    both = f"{source}import atexit, os\natexit.register(os.system, 'cat /code/rundir/note')\n"
    for text, command in ((source, FORKED), (both, FORKED), (both, NEW)):
        service = await run(shared_provider, command.format("-s /src/test_it.py"), text)
        assert service["code"] == 0
    services = SERVICE.format("a", "pytest /src/test_it.py")
    services += SERVICE.format("b", "grep -q 'all of it' /code/rundir/note")
    harness = {"docker-compose.yml": f"services:\n{services}", "src/test_it.py": source}
    assert [service["code"] for service in await run_harness_of(shared_provider, harness)] == [0, 0]


async def test_files_that_no_test_of_a_simulation_closed_are_written(shared_provider: SandboxProvider) -> None:
    """Of this one there is only a reference in a cycle, so a collection as the interpreter ends would close it."""
    left = (
        "\n@cocotb.test()\nasync def leave(dut):\n    kept = [open('/code/rundir/note', 'w')]\n    kept.append(kept)\n"
    )
    reader = f"{RUNNER}    assert open('/code/rundir/note').read() == 'all of it'\n"
    tests = f"{TESTS}{left}    kept[0].write('all of it')\n"
    found = await run_harness_of(shared_provider, {"src/test_adder.py": tests, "src/test_runner.py": reader})
    assert [service["code"] for service in found] == [0], found[0]["log"]


@pytest.mark.parametrize("place", ["/root", "/proc/1/cwd"])
async def test_a_fork_that_cannot_be_made_ready_is_no_design_fault(
    shared_provider: SandboxProvider, place: str
) -> None:
    text = f"services:\n{SERVICE.format('one', 'pytest /src/test_it.py')}"
    harness = {"docker-compose.yml": text, "src/test_it.py": "def test(): pass\n"}
    with pytest.raises(ProblemError, match="cannot run 'pytest'"):
        await run_harness_of(shared_provider, harness, cwd=place)


async def test_a_file_that_bears_the_name_of_a_loaded_module_is_the_one_that_is_imported(
    shared_provider: SandboxProvider,
) -> None:
    source = f"import find_libpython\n{USES}def test_mine(): assert find_libpython.mine\n"
    service = await run(shared_provider, FORKED.format("-s /src/test_it.py"), source, find_libpython="mine = True")
    assert service["code"] == 0, service["log"]
    assert "\nNEW" in service["log"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["deep/ctypes", "warm", "deep/find_libpython"])
async def test_a_module_of_the_harness_is_found_however_it_looks_for_it(
    shared_provider: SandboxProvider, name: str
) -> None:
    folder, _, module = f"/src/{name}".rpartition("/")
    source = f"import sys\nsys.path.insert(0, {folder!r})\ndef test():\n    import {module}\n    assert {module}.mine\n"
    service = await run(shared_provider, FORKED.format("/src/test_it.py"), source, **{name: "mine = True"})
    assert service["code"] == 0, service["log"]


async def test_what_only_the_supervisor_has_is_not_there(shared_provider: SandboxProvider) -> None:
    service = await run(shared_provider, FORKED.format("/src/test_it.py"), "import warm\ndef test(): pass")
    assert "No module named 'warm'" in service["log"]


async def test_a_fork_that_runs_on_is_ended_with_its_children(shared_provider: SandboxProvider) -> None:
    endless = "import subprocess, time\ndef test():\n    subprocess.Popen(['sleep', '98'])\n    time.sleep(99)\n"
    services = SERVICE.format("a", "pytest /src/test_it.py") + SERVICE.format("b", "sh -c 'ps -eo args; exit 4'")
    harness = {"docker-compose.yml": f"services:\n{services}", "src/test_it.py": endless}
    first, second = await run_harness_of(shared_provider, harness, timeout=3)
    assert (first["code"], second["code"]) == (None, 4)
    assert "ps -eo args" in second["log"]
    assert "sleep 98" not in second["log"]
