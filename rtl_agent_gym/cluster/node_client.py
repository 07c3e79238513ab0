"""The driver's client of a machine, which detects when the machine no longer answers.

How long a call takes depends on the machine's queues, so no time limit would be right for all. But a working machine
confirms immediately that it is alive. So it is asked regularly from the first call on, and a silent machine is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import RTLGymError, SandboxError, SandboxLost
from ..problems import Problem
from ..sandboxes.channel import SECOND_WAIT
from ..scoring import rules_digest
from .machine import Facts
from .ray_cluster import first_line, release

ALIVE_SECONDS = 30.0
"""Seconds between two checks that a machine is alive."""
SILENCE_SECONDS = 120.0
"""Time limit for its answer, and for the start of a new machine."""
SMALL = 4_096
"""Files of fewer bytes in all are sent within a call, which costs less than a request to the object store."""


@dataclass(eq=False)
class NodeClient:
    """The client of a node's `Machine`."""

    node: str
    """Ray's id of the node."""
    name: str
    """Its host and address, for messages."""
    slots: int
    """Sandboxes that it can have at once: the slots that this run has reserved on the node."""
    actor: Any
    facts: Facts
    capacity: int = 0
    """All slots of the node."""
    reserved: list[Any] = field(default_factory=list)
    """The placement groups of its slots; see `ray_cluster.reserve`."""
    live: int = 0
    """Sandboxes that it has now."""
    grading: int = 0
    """Submissions that it grades now."""
    lost: str = ""
    """Why it gets no more work; empty if it does."""
    gone: bool = False
    """Whether it no longer answers."""
    wrong: bool = False
    """Whether it graded a canary incorrectly."""
    _watching: asyncio.Task[None] | None = field(default=None, init=False)
    """Ends when the machine is gone."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the `Machine`.

        Raises:
            RTLGymError: The method raised it.
            SandboxError: The object store of this process cannot store the arguments.
            SandboxLost: The node or its actor is gone, or silent.
        """
        from ray import exceptions

        if self.gone:
            raise self._refusal()
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        with _storing():
            answer: asyncio.Future[Any] = asyncio.ensure_future(getattr(self.actor, method).remote(*arguments))
        try:
            await asyncio.wait([answer, self._watching], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._refusal()
            return answer.result()
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, RTLGymError):
                raise error.cause from None
            raise
        except exceptions.RayError as error:
            self.lose(first_line(error))
            raise self._refusal() from error
        finally:
            answer.cancel()

    async def _watch(self) -> None:
        """Ask the machine whether it is alive, until it does not answer."""
        from ray import exceptions

        while not self.gone:
            await asyncio.sleep(ALIVE_SECONDS)
            answer: asyncio.Future[None] = asyncio.ensure_future(self.actor.alive.remote())
            try:
                # If this process itself was stopped, an answer that arrived meanwhile is read in the second wait.
                for seconds in (SILENCE_SECONDS, SECOND_WAIT):
                    if (await asyncio.wait([answer], timeout=seconds))[0]:
                        answer.result()
                        break
                else:
                    self.lose(f"it has not answered for {SILENCE_SECONDS:.0f} s")
            except exceptions.RayTaskError:  # this is an answer, too
                pass
            except exceptions.RayError as error:
                self.lose(first_line(error))
            finally:
                answer.cancel()

    def lose(self, why: str) -> None:
        """Record that it no longer answers. All waiting calls raise `SandboxLost`."""
        self.gone, self.lost = True, self.lost or why
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def _refusal(self) -> SandboxLost:
        return SandboxLost(f"machine {self.name} is lost: {self.lost}")

    def end(self) -> None:
        """End its actor, and with it the containers, and release its slots."""
        import ray
        from ray.exceptions import RayError

        self.gone, self.lost = True, self.lost or "it has been closed"
        with contextlib.suppress(RuntimeError):  # its event loop has been closed
            self._stop_watching()
        if self.actor is not None:
            with contextlib.suppress(RayError, ValueError):  # it may be gone already
                ray.kill(self.actor)
        while self.reserved:
            release(self.reserved.pop())


def difference(facts: Facts, digest: str) -> str:
    """Why a node would grade differently from this process or from machines with this image digest; empty if not."""
    here = rules_digest()
    if facts.rules != here:
        return (
            f"its version of this package grades by the rules {facts.rules[:12]}, this one by {here[:12]}; "
            "install the same version there"
        )
    if digest not in ("", facts.digest):
        return f"its image has the digest {facts.digest[:19]}, that of the machines in use {digest[:19]}"
    return ""


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    """Errors of the object store of this process are faults of this machine, not of a node."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise SandboxError(
            f"Ray's object store on this machine accepts no more objects: {first_line(error)}; free disk space here, "
            "or see with `ray memory` what fills it"
        ) from error


class ObjectCache:
    """Objects that this process has put into Ray's object store, by digest. Each node fetches each of them once.

    At most `most` objects of `most_bytes` in all stay there; others are put there again when they are needed.
    """

    def __init__(self, most: int = 1_000, most_bytes: int = 512 << 20) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._references: dict[str, tuple[Any, int]] = {}
        """With their sizes; the most recently used are at the end."""
        self._digests: dict[int, tuple[Problem, str]] = {}
        """Digests of problems by `id()`; the problems are kept, so that no other object gets the same id."""

    def reference(self, digest: str, value: Any, size: int = 0) -> Any:
        """A reference to a value with this digest, which Ray replaces by the value in a call's arguments.

        Raises `SandboxError` if the object store of this process cannot take it.
        """
        import ray

        with _storing():
            found = self._references.pop(digest, None) or (ray.put(value), size)
        self._references[digest] = found
        total = sum(size for _, size in self._references.values())
        while len(self._references) > self._most or (len(self._references) > 1 and total > self._most_bytes):
            total -= self._references.pop(next(iter(self._references)))[1]
        return found[0]

    def files(self, files: Mapping[str, str | bytes]) -> Any:
        """The files, or a reference to them if they are not small."""
        size = sum(len(content) for content in files.values())
        if size < SMALL:
            return dict(files)
        digest = hashlib.sha256()
        for file in sorted(files.items()):
            digest.update(repr(file).encode())  # text and bytes differ, as their results may
        return self.reference(f"files {digest.hexdigest()}", dict(files), size)

    def problem(self, problem: Problem) -> Any:
        """A reference to a problem, whose digest is computed once per object."""
        if id(problem) not in self._digests:
            if len(self._digests) >= self._most:
                self._digests.clear()
            self._digests[id(problem)] = (problem, problem.digest)
        parts = (problem.context, problem.harness, problem.golden or {})
        size = sum(len(text) for files in parts for text in files.values())
        return self.reference(self._digests[id(problem)][1], problem, size)
