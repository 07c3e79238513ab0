"""Checks of the Gymnasium environments' arguments, and of the process and thread that use an environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym

from ..errors import UsageError
from ..problems import Problem, load_problems
from ..renderers import Renderer, get_renderer
from ..scoring.options import GradingOptions
from ..scoring.scorable import scorable


def read_problems(
    problems: str | Path | Sequence[Problem], options: GradingOptions | None = None, *, texts: bool = True
) -> tuple[list[Problem], dict[str, str]]:
    """The problems that can be scored with these options, and the reason why each of the others cannot, by id.

    Without `texts`, those whose answer is text cannot.

    Raises:
        UsageError: There are none, or the argument holds something else than problems.
    """
    if isinstance(problems, Problem):
        raise UsageError("`problems` is a list of problems: put the one problem into a list")
    if not isinstance(problems, (str, Path, Sequence)):
        raise UsageError(f"`problems` must be 'bundled', a path, a data set's id or a list, got {problems!r}")
    found = list(load_problems(problems) if isinstance(problems, (str, Path)) else problems)
    for index, problem in enumerate(found):
        if not isinstance(problem, Problem):
            raise UsageError(f"`problems[{index}]` is not a Problem: {problem!r}")
    if not found:
        raise UsageError("there is no problem to work on: `problems` is empty")
    kept, left = scorable(found, options, texts=texts)
    if not kept:
        problem, reason = left[0]
        more = f", and so with {len(left) - 1} more" if len(left) > 1 else ""
        raise UsageError(f"no problem can be scored here: {problem.id}: {reason}{more}")
    if left:
        gym.logger.warn(
            f"{len(left)} of {len(found)} problems cannot be scored here and are left out: {left[0][0].id} …"
        )
    return kept, {problem.id: reason for problem, reason in left}


def read_renderer(renderer: str | Renderer) -> Renderer:
    """The dialect. Raises `UsageError` if it is neither a known name nor a `Renderer`."""
    if isinstance(renderer, str):
        return get_renderer(renderer)
    if isinstance(renderer, Renderer):
        return renderer
    raise UsageError(f"renderer must be a dialect's name or a Renderer, got {renderer!r}")


class Caller:
    """Restricts an environment to the process that used it first, and to one thread at a time.

    Any other call would block, on a container of another process or on a call in progress, so it raises at once.
    """

    def __init__(self) -> None:
        self._process: int | None = None
        self._busy = threading.Lock()

    def __reduce__(self) -> tuple[type[Caller], tuple[()]]:
        return Caller, ()  # a copied or unpickled environment is unused

    @property
    def in_fork(self) -> bool:
        """Whether this process is a fork of the one that used the environment first."""
        return self._process not in (None, os.getpid())

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Hold the environment during a call of `method`.

        Raises:
            UsageError: The environment belongs to another process, or another thread's call is in progress.
        """
        if self.in_fork:
            raise UsageError(
                f"{method}() in process {os.getpid()}: this environment is in use in process {self._process}, of which "
                "this one is a fork. Make an environment in each process, as AsyncVectorEnv does"
            )
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                f"{method}() while another thread's call of this environment is under way: "
                "an environment serves one thread at a time, so make one for each thread"
            )
        try:
            self._process = os.getpid()
            yield
        finally:
            self._busy.release()
