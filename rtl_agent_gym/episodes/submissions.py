"""Grading before the end: the command ``submit``, what the agent learns from it, and what its progress earns.

``submit`` is no program in the sandbox. The episode takes the command before the shell would, so every dialect calls it
as it calls anything else. The files are graded as at the end, in a fresh machine, and the agent reads the names of what
fails and nothing more: no message, value, path or parameter of a hidden test, and of an attack only that it was one.

What a design does with the hidden stimuli must not come back by the clock: an answer comes 1, 2, 4, 8, … seconds after
the command began. Nor may what one submission tells help against the next, or in another episode: each draws the tests'
random stimuli anew, from the episode's seed, wherever the official run draws them too. The grading at the end does not
follow from any of them: it uses the problem's own seed.

A submission earns ``progress_coef * max(0, fraction - best)``, ``best`` being the highest fraction of tests that an
earlier one passed. Over an episode that adds up to ``progress_coef`` times the best fraction, so going back and forth
earns nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..problems import Problem
from ..sandboxes import CommandResult
from ..sandboxes.observation import cut
from ..scoring import RewardWeights
from ..scoring.score import Score
from .rules import EpisodeConfig, Grader

COMMAND = "submit"
MISPLACED = f"{COMMAND} must be a command of its own: nothing before it, nothing after it. Nothing was checked"
"""The note under a command that contains ``submit`` among other things."""

FIRST_ANSWER = 1.0
"""Seconds after which the first submission's answer may come; after each of them, the next wait is twice as long."""

_LONGEST_NAME = 80
_IN_A_LINE = re.compile(
    rf"(?:^|[;&|({{]|\b(?:then|do|else|time|exec|command)\b)[ \t]*{COMMAND}(?=$|[\s;&|)}}<>])", re.MULTILINE
)


@dataclass(frozen=True)
class Submission:
    """One grading before the end."""

    number: int
    """1-based."""
    left: int
    """Submissions that the agent has left."""
    score: Score
    fraction: float
    """Tests passed of all tests, 0 to 1; 0 where nothing compiles, where an attack was seen, and where none are run."""
    reward: float

    def __str__(self) -> str:
        tests = f"{self.score.tests_passed}/{self.score.tests_total} tests"
        return f"submission {self.number}, {self.left} left: {tests}, reward {self.reward:+.3f}"


@dataclass(frozen=True)
class Submitted(CommandResult):
    """``submit`` as a command: exit code 0 where all checks pass, 1 where one fails, 2 where none is left."""

    submission: Submission | None = None
    """None where none was left."""


class Submissions:
    """The gradings of one episode: those that the agent asks for, and the last.

    Args:
        problem: What to solve.
        grader: Who scores the files.
        config: How many submissions there are, and what progress earns.
        seed: The episode's.
    """

    def __init__(self, problem: Problem, grader: Grader, config: EpisodeConfig, seed: int = 0) -> None:
        self._problem, self._grader, self._config, self._seed = problem, grader, config, seed
        self._best = 0.0
        self.used = 0

    def takes(self, command: str) -> bool:
        """Whether a command is a submission, and so none for the shell."""
        return self._config.harness_feedback > 0 and command.strip() == COMMAND

    def misplaced(self, command: str, result: CommandResult) -> bool:
        """Whether the shell was asked for a submission among other things, and knew no such program."""
        unknown = result.exit_code == 127 or f"{COMMAND}: command not found" in result.output
        return self._config.harness_feedback > 0 and unknown and _IN_A_LINE.search(command) is not None

    async def submit(self, read: Callable[[], Awaitable[tuple[dict[str, str | bytes], str]]]) -> Submitted:
        """Grade the files as they stand, or say that no submission is left.

        Args:
            read: Gives the files, and which ones were left out; see `Workspace.files`.

        Raises:
            SandboxError: The machine failed; the submission has no result.
        """
        total, begun = self._config.harness_feedback, time.monotonic()
        if self.used >= total:
            what = "the one submission is" if total == 1 else f"all {total} submissions are"
            return self._result(f"{what} used up; nothing was checked", 2, begun, None)
        self.used += 1
        score = await self.grade(*await read(), seed=stimuli_seed(self._problem, self._seed, self.used))
        reached = fraction(score)
        reward = self._config.progress_coef * max(0.0, reached - self._best)
        self._best = max(self._best, reached)
        submission = Submission(self.used, total - self.used, score, reached, reward)
        text = f"submission {self.used} of {total}: {verdict(score, tested=self._tested)}"
        await asyncio.sleep(answer_time(time.monotonic() - begun) - (time.monotonic() - begun))
        return self._result(text, 0 if all_pass(score, tested=self._tested) else 1, begun, submission)

    async def grade(self, files: dict[str, str | bytes], notes: str = "", *, seed: int | None = None) -> Score:
        """The score of files, with `notes` added to its reason.

        Args:
            files: What to grade.
            notes: What the files do not say, such as which ones were left out.
            seed: Of the tests' random stimuli; None for the official grading.

        Raises:
            SandboxError: The machine failed; there is no score.
        """
        options = {} if seed is None else {"seed": seed}
        score = await self._grader.score(self._problem, files, timeout=self._config.scoring_timeout, **options)
        if notes:
            score = score.model_copy(update={"reason": "; ".join(part for part in (score.reason, notes) if part)})
        return score

    @property
    def _tested(self) -> bool:
        """Whether the hidden tests are run at all."""
        weights = getattr(self._grader, "weights", None)
        return not isinstance(weights, RewardWeights) or weights.simulate

    def _result(self, text: str, code: int, begun: float, submission: Submission | None) -> Submitted:
        data = f"{text}\n".encode()
        shown, shortened = cut(data, len(data), len(text) + 1, self._config.max_output)
        return Submitted(
            output=shown,
            exit_code=code,
            truncated=shortened,
            output_chars=len(text) + 1,
            seconds=time.monotonic() - begun,
            submission=submission,
        )


def fraction(score: Score) -> float:
    """The share of the tests that pass, 0 where nothing compiles or the checker was attacked."""
    if score.violations or not score.tests_total or not (score.compile or score.passed):
        return 0.0
    return score.tests_passed / score.tests_total


def all_pass(score: Score, *, tested: bool = True) -> bool:
    """Whether there is nothing left to tell."""
    return score.passed if tested else not (score.violations or failing(score, tested=False))


def verdict(score: Score, *, tested: bool = True) -> str:
    """What the agent reads about a grading: names alone.

    Args:
        score: The grading.
        tested: Whether the hidden tests were run.
    """
    if score.violations:
        return (
            "refused. Something in the files reaches for the checks instead of passing them, so none counts as passed"
        )
    if all_pass(score, tested=tested):
        return "all checks pass" if tested else "syntax and interface are right; nothing else is checked here"
    names = failing(score, tested=tested)
    return "\n".join(["these checks fail:", *(f"- {name}" for name in names)]) if names else "it does not pass"


def failing(score: Score, *, tested: bool = True) -> list[str]:
    """The names of what fails: stages first, then tests. Of a test with parameters, in how many of its runs."""
    stages = {"files (one is missing or empty)": score.format, "syntax": score.syntax, "interface": score.interface}
    if not tested:
        return [name for name, share in stages.items() if share < 1]
    stages["compile"] = score.compile
    runs = Counter(plain_name(test.name) for test in score.tests if test.outcome != "skipped")
    failed = Counter(plain_name(test.name) for test in score.tests if test.outcome not in ("passed", "skipped"))
    tests = [
        name if count == runs[name] else f"{name} (in {count} of {runs[name]} runs)" for name, count in failed.items()
    ]
    return [*(name for name, share in stages.items() if share < 1), *tests]


def plain_name(name: str) -> str:
    """A test's own name, and before it its service where there are several.

    Left out are the test's file and module, and its parameters, which are values of the hidden tests: of
    ``direct: test_runner.py::test_top[8-255]/test_top.counts/step=3`` stays ``direct: counts``.
    """
    service = re.match(r"[\w.-]+: ", name)
    rest = name[service.end() :] if service else name
    rest = re.sub(r"\[.*\]", "", rest, flags=re.DOTALL).rpartition("]")[2]
    parts = [part for part in rest.split("/") if part and "=" not in part]
    own = parts[-1].rpartition("::")[2] if parts else ""
    own = own.removesuffix(".py").rpartition(".")[2]
    shown = "".join(letter for letter in own if letter.isprintable()).strip() or "a test"
    return (service[0] if service else "") + shown[:_LONGEST_NAME]


def stimuli_seed(problem: Problem, episode_seed: int, number: int) -> int:
    """The seed of one submission's stimuli. The problem's digest is in it, which no agent knows."""
    name = f"{problem.digest} {episode_seed} {number}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big")


def answer_time(seconds: float) -> float:
    """When a submission is answered that took so many seconds: the first of 1, 2, 4, 8, … that is not earlier."""
    answer = FIRST_ANSWER
    while answer < seconds:
        answer *= 2
    return answer
