"""Starts pytest without starting Python: as a fork of a process that has already imported it.

Importing pytest and cocotb's runner takes a third of a small harness's time. A scoring sandbox waits for its submission
anyway, so its supervisor imports them meanwhile. Each service whose command is a plain call of pytest runs in a fork of
the supervisor. To the service, the fork looks like a new interpreter. If a command, a variable or a file makes that
uncertain, a new interpreter is started.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import re
import shutil
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .ending import flush_all

PROGRAM = "/venv/bin/pytest"
MODULES = ("pytest", "cocotb_tools.runner")
SHELLS = ("sh", "/bin/sh", "bash", "/bin/bash", "/usr/bin/bash")
PLAIN = re.compile(r"[\w@%+=:,./ -]+")
"""Text that a shell only splits into words."""
DECIDING = ("PYTHON", "COVERAGE", "LANG", "LC_", "LD_", "MALLOC_", "GLIBC_", "TZ", "PATH", "BASH", "ENV")
"""Prefixes of variables that an interpreter, or the program that starts it, reads only when it starts."""
HIDDEN = ("/src", "/code/src")
"""Folders of a harness's own modules."""
FOLLOWED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Exceptions: variables that a fork can apply later, or whose effect it already has."""

_base_path: list[str] = []


def preload() -> None:
    """Import what such a harness will import. Call this once, before the request is read."""
    _base_path[:] = [folder for folder in sys.path if folder]
    gc.disable()  # nearly all new objects stay
    try:
        for name in MODULES:
            importlib.import_module(name)
        for name in importlib.import_module("_pytest.config").default_plugins:
            importlib.import_module(f"_pytest.{name}")
        gc.freeze()
    finally:
        gc.enable()


def words_of(argv: Sequence[str]) -> tuple[list[str] | None, bool]:
    """The words of a plain call of pytest, and whether it is a shell command; (None, False) for anything else."""
    shell = len(argv) == 3 and argv[0] in SHELLS and argv[1] == "-c"
    if shell:
        words = argv[2].split(" ") if PLAIN.fullmatch(argv[2]) else []
        words = [word for word in words if word]
    else:
        words = list(argv)
    return (words, shell) if words and words[0] in ("pytest", PROGRAM) else (None, False)


def can_start(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> bool:
    """Whether a fork would behave like a new interpreter. `env` has the variables that a service adds."""
    words, _ = words_of(argv)
    if words is None or not _base_path or shutil.which("pytest") != PROGRAM:
        return False
    for name, value in env.items():
        decides = name.startswith(DECIDING) and name not in FOLLOWED
        if decides and os.environ.get(name) != value:
            return False
    loaded = {name.partition(".")[0] for name in sys.modules}
    folders = [cwd, *_python_path(env, cwd), *(_folder(word, cwd) for word in words[1:])]
    names = {name for folder in folders for name in _names(folder)}
    names.update(name for top in HIDDEN for _, below, files in os.walk(top) for name in [*below, *files])
    return not any(name.partition(".")[0] in loaded for name in names)


def run(argv: list[str], env: dict[str, str], cwd: str) -> NoReturn:
    """Run pytest in a fork of this process, after `can_start` returned True, and end as an interpreter does."""
    code = 1
    try:
        _become(argv, env, cwd)
        code = _exit_code()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            gc.unfreeze()
            flush_all()
        os._exit(code)


def _become(argv: list[str], env: dict[str, str], cwd: str) -> None:
    words, shell = words_of(argv)
    assert words is not None
    os.environ.update(env)
    if shell:
        os.environ["PWD"] = cwd
    sys.path[:] = list(dict.fromkeys([os.path.dirname(PROGRAM), *_python_path(env, cwd), *_base_path]))
    sys.argv = [PROGRAM, *words[1:]]
    main: Any = types.ModuleType("__main__")
    main.__file__ = PROGRAM
    sys.modules["__main__"] = main
    importlib.invalidate_caches()


def _exit_code() -> int:
    """Run pytest, and return the exit status that `sys.exit` would set."""
    import pytest

    try:
        raise SystemExit(pytest.console_main())  # as its script does; a hook may have set any status
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1


def _python_path(env: Mapping[str, str], cwd: str) -> list[str]:
    value = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return [os.path.normpath(os.path.join(cwd, part)) for part in value.split(":")] if value else []


def _folder(word: str, cwd: str) -> str:
    place = os.path.join(cwd, word.partition("::")[0])
    return place if os.path.isdir(place) else os.path.dirname(place)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
