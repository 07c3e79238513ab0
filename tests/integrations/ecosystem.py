"""Virtual environments for frameworks whose requirements contradict constraints.txt.

Each framework has a complete list of exact versions, ``requirements/NAME.txt``. To make one, install the framework and
this package into a fresh environment, and run ``pip freeze --exclude-editable``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.integrations.conformance import Played, Script

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtl-agent-gym" / "ecosystem"
"""What these tests install."""
OUT_OF_REACH = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|Connection refused|Network is unreach"
)
"""What pip prints when a package index does not answer."""


class Missing(Exception):
    """This machine cannot have the environment. The message says why."""


def environment(name: str) -> Path:
    """The Python of the environment ``NAME``, with this checkout's package installed editable in it.

    It is made at first use, below the user's cache folder, and again when ``requirements/NAME.txt`` or pyproject.toml
    change. A line ``# python >= 3.12`` in the list asks for an interpreter that is not older. The versions are
    installed as listed, without a look at what each requires, the version of Python included.

    Skips the calling test where no package index or no such interpreter is in reach; see `lacking`.
    """
    found = _environment(name)
    if isinstance(found, str):
        lacking(found)
    return found


def lacking(what: str) -> NoReturn:
    """Skip the calling test, or let it fail if the variable ``RTL_GYM_TESTS_MAY_NOT_SKIP`` is set, as every night."""
    if os.environ.get("RTL_GYM_TESTS_MAY_NOT_SKIP"):
        pytest.fail(what)
    pytest.skip(what, allow_module_level=True)


def importable(*modules: str) -> None:
    """Skip the calling test or file if a module is not installed here, as `lacking` does."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            lacking(f"{module} is not installed")


def clean(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables for a process of another Python: those given, without what points Python elsewhere."""
    return {key: value for key, value in variables.items() if not key.startswith("PYTHON") and key != "VIRTUAL_ENV"}


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of something in the cache folder: workers of one run want it at the same time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def _environment(name: str) -> Path | str:
    """The Python, or why there is none."""
    versions = REQUIREMENTS / f"{name}.txt"
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    folder = CACHE / f"{name}-{checkout}"
    with locked(folder.name):
        folder.mkdir(exist_ok=True)
        try:
            return _make(folder, versions)
        except Missing as error:
            return f"no environment {name!r}: {error}"


def _make(folder: Path, versions: Path) -> Path:
    """Bring the environment up to date."""
    text = versions.read_text()
    python, stamp = folder / "bin" / "python", folder / "stamp"
    wanted = [hashlib.sha256(part.encode()).hexdigest() for part in (text, (ROOT / "pyproject.toml").read_text())]
    found = stamp.read_text().split() if stamp.is_file() else []
    if found == wanted:
        return python
    stamp.unlink(missing_ok=True)
    if found[:1] != wanted[:1]:
        _run(str(_interpreter(text)), "-m", "venv", "--clear", str(folder))
        _pip(python, "--requirement", str(versions))
    _pip(python, "--editable", str(ROOT))
    for hiding in folder.glob("lib/python*/site-packages/tests"):  # verl's wheel has one, which Python prefers to ours
        shutil.rmtree(hiding)
    stamp.write_text("\n".join(wanted))
    return python


def _interpreter(text: str) -> Path:
    """An interpreter that is as new as the list of versions asks for: this one, if it is."""
    lowest = re.search(r"^# python >= 3\.(\d+)$", text, re.MULTILINE)
    minor = int(lowest[1]) if lowest else 0
    if sys.version_info.minor >= minor:
        return Path(sys.executable)
    for candidate in _interpreters(minor):
        check = [str(candidate), "-c", f"import sys, venv; sys.exit(sys.version_info < (3, {minor}))"]
        if subprocess.run(check, env=clean(), capture_output=True).returncode == 0:
            return candidate
    raise Missing(f"it needs Python 3.{minor} or newer, and none was found; put python3.{minor} on PATH")


def _interpreters(minor: int) -> Iterator[Path]:
    """Those on PATH, then those of pyenv."""
    for number in range(minor, minor + 4):
        if (path := shutil.which(f"python3.{number}")) is not None:
            yield Path(path)
    for number in range(minor, minor + 4):
        root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        yield from sorted(root.glob(f"versions/3.{number}.*/bin/python"), reverse=True)


def _pip(python: Path, *arguments: str) -> None:
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--retries", "2"]
    _run(str(python), "-m", "pip", "install", *options, *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, env=clean() | {"PIP_IGNORE_REQUIRES_PYTHON": "1"}, capture_output=True, text=True)
    if done.returncode == 0:
        return
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    if OUT_OF_REACH.search(done.stderr):
        raise Missing(f"no package index answers ({' '.join(last)})")
    raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


async def call(name: str, function: str, *arguments: Any, **variables: str) -> Any:
    """Call a function of ``drive_NAME.py`` in the environment `name`, with more environment variables.

    Returns:
        The result as JSON gives it: lists for tuples, dicts for dataclasses.
    """
    return await call_in(await asyncio.to_thread(environment, name), name, function, *arguments, **variables)


async def call_in(python: Path | str, name: str, function: str, *arguments: Any, **variables: str) -> Any:
    """The same with a Python of the caller's."""
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-m", "tests.integrations.drive", f"tests.integrations.drive_{name}", function),
        cwd=ROOT,
        env=clean() | {"PYTHONPATH": str(ROOT)} | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, errors = await process.communicate(pickle.dumps(arguments))
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()[-6000:]
    return json.loads(out.splitlines()[-1])


async def play_all(name: str, scripts: Sequence[Script], folder: Path, **variables: str) -> list[Played]:
    """Play scripts with ``play(script, folder)``, in one process; each has a folder of its name."""
    jobs = [(script, folder / script.name) for script in scripts]
    for _, place in jobs:
        place.mkdir(parents=True)
    return [read_played(played) for played in await call(name, "play_all", jobs, **variables)]


def read_played(played: dict[str, Any]) -> Played:
    """A `Played` from its JSON."""
    seen = played["observations"]
    return Played(played["reward"], played["passed"], None if seen is None else tuple(seen), played["numbers"])
