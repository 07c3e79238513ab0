"""The reward of each turn: how much it raised the score of the files.

Let Φ_t be the reward of the score of the files after turn t, Φ_0 = 0, and Φ_T that of the final score. Turn t earns::

    r_t = Φ_t − Φ_{t−1} + what its submissions earn

An unknown Φ_t (the turn was not graded, or its grading failed) is replaced by Φ_{t−1}, so the r_t always sum to the
episode's reward. This is potential-based shaping (Ng, Harada and Russell, 1999): it changes when reward is given, but
not how much. Whether a turn is graded is decided when it ends, from what is known then; a later decision would depend
on the agent's next actions, and so favour some of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..errors import SandboxError, UsageError
from ..problems import Problem
from ..problems.paths import in_graded_folders
from ..scoring.score import Score
from .submissions import Submitted
from .turns import Turn

logger = logging.getLogger(__name__)

Files = Mapping[str, str | bytes]
Read = Callable[[], Awaitable[tuple[dict[str, str | bytes], str]]]
Grade = Callable[[dict[str, str | bytes]], Awaitable[Score]]

MOST_KNOWN = 100_000
"""Maximum number of rewards that are remembered, each for one set of files."""
MOST_WAITING = 256 << 20
"""Maximum bytes of memory of all files whose grading has not ended."""


def refuse_turn_rewards(mode: str, framework: str) -> None:
    """Raise `UsageError` if the rule ``turn_rewards`` is set for a framework that cannot use rewards of turns."""
    if mode != "none":
        raise UsageError(
            f"turn_rewards must be 'none', not {mode!r}: the rewards of turns are known only at the end of an episode, "
            f"when {framework} can no longer use them; use rtl-agent-gym train rl instead"
        )


class TurnBudget:
    """The time and memory that the gradings of turns may take, for all episodes of a run."""

    def __init__(self, share: float | None = 0.2) -> None:
        self.share = share
        """Seconds allowed for each second of completed final gradings; None for no limit."""
        self.final = 0.0
        """Seconds of final gradings, and of gradings of turns whose files were the final ones."""
        self.spent = 0.0
        """Seconds of the gradings of turns."""
        self.waiting = 0
        """Bytes of the files whose grading has not ended."""
        self._reserved = 0.0
        self._measured = 0
        self.known: dict[bytes, float] = {}
        """The rewards of files that were already graded in this run."""

    def reserve(self, size: int) -> float | None:
        """Reserve `size` bytes and the mean time of a grading so far; returns the seconds, or None if there is less."""
        usual = (self.final + self.spent) / self._measured if self._measured else 0.0
        if self.waiting + size > MOST_WAITING:
            return None
        if self.share is not None and (
            not self._measured or self.spent + self._reserved + usual > self.share * self.final
        ):
            return None
        self.waiting += size
        self._reserved += usual
        return usual

    def release(self, reserved: float, size: int) -> None:
        """End a reservation."""
        self._reserved -= reserved
        self.waiting -= size

    def learn(self, key: bytes, score: Score, *, final: bool) -> None:
        """Remember the reward of files; an uncached final grading also adds to the budget."""
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[key] = score.reward
        if not score.cached:
            self._measured += 1
            self.final += score.seconds if final else 0.0

    def moved(self, seconds: float) -> None:
        """Count a turn's grading as a final one: its files are the final ones, whose score came from the cache."""
        self.spent -= seconds
        self.final += seconds


@dataclass
class _Graded:
    key: bytes
    reward: float | None = None
    """None while the grading runs, and if it failed."""
    seconds: float = 0.0
    """0 if the score came from a cache."""


@dataclass
class TurnRewards:
    """The rewards of the turns of one episode."""

    problem: Problem
    mode: str
    """`EpisodeOptions.turn_rewards`."""
    grade: Grade
    """Grades files with the official stimuli."""
    budget: TurnBudget
    """The budget of the run or of the episode."""
    _potentials: dict[int, float | _Graded] = field(default_factory=dict, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _last: bytes = field(default=b"", init=False)

    @property
    def wants_files(self) -> bool:
        """Whether `after` needs the files."""
        return self.mode == "files" and not self.problem.asks_text

    async def share(self, turns: Sequence[Turn], score: Score | None, read: Read) -> list[float]:
        """Called after each turn, with all turns so far: starts to grade the files that `read` reads.

        At the end, when the episode's `score` is given, returns `values`; before that, an empty list.
        """
        if self.mode == "none":
            return []
        if score is not None:
            return await self.values(turns, score)
        acted = turns[-1].action.kind == "command"  # a third-party agent may write files without any call
        self.after(turns[-1], (await read())[0] if self.wants_files and acted else None)
        return []

    def after(self, turn: Turn, files: Files | None) -> None:
        """Called after each turn but the last. Starts to grade its `files`, if given, without awaiting the result."""
        last = turn.results[-1] if turn.results else None
        submission = last.submission if isinstance(last, Submitted) else None
        if submission is not None:  # no command has changed the files since
            self._potentials[turn.number] = submission.score.reward
        if files is not None:
            key = self._key(files)
            before, self._last = self._last or self._key(self._given()), key
            if submission is None and key != before and (graded := self._graded(key, files)) is not None:
                self._potentials[turn.number] = graded

    def _graded(self, key: bytes, files: Files) -> _Graded | None:
        if (known := self.budget.known.get(key)) is not None:
            return _Graded(key, known)
        size = sum(map(sys.getsizeof, files.values()))
        if (reserved := self.budget.reserve(size)) is None:
            return None
        graded = _Graded(key)
        task = asyncio.create_task(self._run(graded, dict(files)))
        task.add_done_callback(lambda _: self.budget.release(reserved, size))  # also if it is cancelled before it runs
        self._tasks.append(task)
        return graded

    async def _run(self, graded: _Graded, files: dict[str, str | bytes]) -> None:
        begun = time.monotonic()
        try:
            score = await self.grade(files)
        except BaseException as error:
            self.budget.spent += time.monotonic() - begun
            if not isinstance(error, SandboxError):
                raise
            logger.warning("a turn of %s is not graded: %s", self.problem.id, error)
            return  # its reward is unknown, as if it had not been graded
        graded.reward, graded.seconds = score.reward, 0.0 if score.cached else score.seconds
        self.budget.spent += graded.seconds
        self.budget.learn(graded.key, score, final=False)

    def ended(self, files: Files, score: Score) -> None:
        if not self.wants_files:
            return
        key = self._key(files)
        self.budget.learn(key, score, final=True)
        if score.cached:
            for graded in self._potentials.values():
                if isinstance(graded, _Graded) and graded.key == key:
                    self.budget.moved(graded.seconds)
                    break

    async def values(self, turns: Sequence[Turn], score: Score) -> list[float]:
        """The reward of each turn, after all gradings have ended. They sum to the episode's reward.

        If a machine fault ends a grading, its reward is unknown; any other error of a grading is raised.
        """
        await asyncio.gather(*self._tasks)
        rewards, before = [], 0.0
        for turn in turns:
            now = score.reward
            if turn is not turns[-1]:
                found = self._potentials.get(turn.number)
                known = found.reward if isinstance(found, _Graded) else found
                now = before if known is None else known
            rewards.append(now - before + turn.progress_reward)
            before = now
        return rewards

    def numbers(self) -> dict[str, float]:
        """Metrics: how many turns had their files graded, and the seconds it took. Empty if turns are not graded."""
        if not self.wants_files:
            return {}
        graded = [found for found in self._potentials.values() if isinstance(found, _Graded)]
        return {
            "turns_graded": float(sum(found.reward is not None for found in graded)),
            "turn_grading_seconds": sum((found.seconds for found in graded), 0.0),
        }

    async def close(self) -> None:
        """End the gradings that still run, and their sandboxes. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _given(self) -> Files:
        return {path: text for path, text in self.problem.context.items() if in_graded_folders(self.problem, path)}

    @cached_property
    def _problem_digest(self) -> bytes:
        return self.problem.digest.encode()

    def _key(self, files: Files) -> bytes:
        total = hashlib.sha256(self._problem_digest)
        for path in sorted(files):
            data = files[path]
            data = data.encode() if isinstance(data, str) else data
            name = f"\0{len(path)} {path} {len(data)}\0".encode("utf-8", "surrogatepass")  # a path need not be UTF-8
            total.update(name + data)
        return total.digest()
