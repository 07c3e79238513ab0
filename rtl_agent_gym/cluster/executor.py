"""An executor on Ray, for `tinker_cookbook.rl.rollouts.set_rollout_executor` and for other code that takes one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from .ray_cluster import SLOTS

P = ParamSpec("P")
T = TypeVar("T")


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Call any callable: Ray itself accepts only functions."""
    return fn(*args, **kwargs)


class RayExecutor(Executor):
    """Runs each call as a task on a node with room for it; a call whose node is lost runs again on another.

    Its worker processes use the Docker daemon of their own node. Connect to the cluster first (`connect`).

    Args:
        slots: Sandboxes that one call needs, such as the size of a group of episodes.
        retries: How often a call is run again because its node or process was lost.
    """

    def __init__(self, slots: int = 1, retries: int = 3) -> None:
        self._slots, self._retries = slots, retries
        self._pending: set[Future[Any]] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        import ray

        task: Any = ray.remote(_call).options(
            num_cpus=0, resources={SLOTS: self._slots}, max_retries=self._retries, scheduling_strategy="SPREAD"
        )
        future: Future[T] = task.remote(fn, args, kwargs).future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the calls if `wait`. Submitted calls are never cancelled."""
        for future in list(self._pending) if wait else ():
            future.exception()
