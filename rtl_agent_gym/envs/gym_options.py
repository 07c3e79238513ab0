"""The arguments of the Gymnasium environments, checked when one is made, and who may use it afterwards."""

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
from ..scoring.scorable import scorable


def read_problems(problems: str | Path | Sequence[Problem]) -> tuple[list[Problem], dict[str, str]]:
    """The problems that can be scored, and why the others cannot be, by id.

    Raises:
        UsageError: There are none, or they are no problems.
    """
    if isinstance(problems, Problem):
        raise UsageError("`problems` is a list of problems: put the one problem into a list")
    if not isinstance(problems, (str, Path, Sequence)):
        raise UsageError(f"`problems` must be 'bundled', a path, a data set's id or a list, got {problems!r}")
    found = list(load_problems(problems) if isinstance(problems, (str, Path)) else problems)
    for place, problem in enumerate(found):
        if not isinstance(problem, Problem):
            raise UsageError(f"`problems` holds something else than a Problem at place {place}: {problem!r}")
    if not found:
        raise UsageError("there is no problem to work on: `problems` is empty")
    kept, left = scorable(found)
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
    """The dialect. Raises `UsageError` for an unknown name, and for what is no renderer."""
    if isinstance(renderer, str):
        return get_renderer(renderer)
    if isinstance(renderer, Renderer):
        return renderer
    raise UsageError(f"renderer must be a dialect's name or a Renderer, got {renderer!r}")


class Caller:
    """Who may use an environment: the process that used it first, and one thread at a time.

    A call from elsewhere could only wait for a container that belongs to another process, or for the end of a call that
    is under way, so it raises at once.
    """

    def __init__(self) -> None:
        self._process: int | None = None
        self._busy = threading.Lock()

    def __reduce__(self) -> tuple[type[Caller], tuple[()]]:
        return Caller, ()  # an environment that was copied or sent elsewhere has not been used there

    @property
    def elsewhere(self) -> bool:
        """Whether another process has used the environment, and this one is its fork."""
        return self._process not in (None, os.getpid())

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Around a call of a method.

        Raises:
            UsageError: The environment belongs to another process, or another thread's call is under way.
        """
        if self.elsewhere:
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
