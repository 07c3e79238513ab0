"""Grading before the end: the command ``submit``, its answer to the agent, and its reward.

``submit`` is not a program in the sandbox: the episode handles the command before the shell sees it. The files are
graded as at the end, in a fresh sandbox. The agent reads only the names of what fails: no message, value, path or
parameter of a hidden test, and of an attack only that it was detected.

Timing must not reveal the hidden stimuli, so answers come 1, 2, 4, 8, … seconds after the command started. Nor may the
stimuli of one submission help with the next one, or with another episode: each submission draws new ones from the
episode's seed wherever the official run draws random ones. The final grading uses the problem's own seed.

A submission earns ``progress_coef * max(0, fraction - best)``, where ``best`` is the highest fraction of tests that an
earlier submission passed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..problems import Problem
from ..sandboxes import CommandResult
from ..sandboxes.results import cut
from ..scoring import RewardWeights
from ..scoring.score import Score
from .rules import EpisodeConfig, Grader

COMMAND = "submit"
MISPLACED = f"{COMMAND} must be a command of its own: nothing before it, nothing after it. Nothing was checked"
"""The note for a command that contains ``submit`` together with something else."""

FIRST_ANSWER = 1.0
"""Minimum seconds until a submission is answered; see `answer_time`."""

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
    """Remaining submissions."""
    score: Score
    fraction: float
    """Share of the tests that pass; 0 if nothing compiles, an attack was found, or no tests are run."""
    reward: float

    def __str__(self) -> str:
        tests = f"{self.score.tests_passed}/{self.score.tests_total} tests"
        return f"submission {self.number}, {self.left} left: {tests}, reward {self.reward:+.3f}"


@dataclass(frozen=True)
class Submitted(CommandResult):
    """The result of ``submit``: exit code 0 if all checks pass, 1 if one fails, 2 if no submission is left."""

    submission: Submission | None = None
    """None if no submission was left."""


@dataclass
class Submissions:
    """The gradings of one episode: those that the agent requests, and the final one."""

    problem: Problem
    grader: Grader
    config: EpisodeConfig
    seed: int = 0
    """The episode's seed."""
    used: int = field(default=0, init=False)
    _best: float = field(default=0.0, init=False)

    def is_submission(self, command: str) -> bool:
        """Whether a command is a submission, which is not passed to the shell."""
        return self.available and command.strip() == COMMAND

    @property
    def available(self) -> bool:
        """Whether the episode allows submissions; never if the answer is text."""
        return self.config.harness_feedback > 0 and not self.problem.asks_text

    def misplaced(self, command: str, result: CommandResult) -> bool:
        """Whether the shell did not find ``submit``, because the command contained something else, too."""
        unknown = result.exit_code == 127 or f"{COMMAND}: command not found" in result.output
        return self.available and unknown and _IN_A_LINE.search(command) is not None

    async def submit(self, read: Callable[[], Awaitable[tuple[dict[str, str | bytes], str]]]) -> Submitted:
        """Grade the current files, which `read` reads (`ShellWorkspace.files`), or answer that no submission is left.

        Raises `SandboxError` if the machine failed; the submission then has no result.
        """
        total, begun = self.config.harness_feedback, time.monotonic()
        if self.used >= total:
            what = "the one submission is" if total == 1 else f"all {total} submissions are"
            return self._result(f"{what} used up; nothing was checked", 2, begun, None)
        self.used += 1
        score = await self.grade(*await read(), seed=stimuli_seed(self.problem, self.seed, self.used))
        reached = fraction(score)
        reward = self.config.progress_coef * max(0.0, reached - self._best)
        self._best = max(self._best, reached)
        submission = Submission(self.used, total - self.used, score, reached, reward)
        text = f"submission {self.used} of {total}: {verdict(score, tested=self._tested)}"
        await asyncio.sleep(answer_time(time.monotonic() - begun) - (time.monotonic() - begun))
        return self._result(text, 0 if all_pass(score, tested=self._tested) else 1, begun, submission)

    async def grade(self, files: dict[str, str | bytes], notes: str = "", *, seed: int | None = None) -> Score:
        """The score of files, with `notes` added to its reason. `seed` is that of the stimuli; None: the official one.

        Raises `SandboxError` if the machine failed.
        """
        score = await self.grader.score(self.problem, files, timeout=self.config.scoring_timeout, seed=seed)
        if notes:
            score = score.model_copy(update={"reason": "; ".join(part for part in (score.reason, notes) if part)})
        return score

    @property
    def _tested(self) -> bool:
        weights = getattr(self.grader, "weights", None)
        return not isinstance(weights, RewardWeights) or weights.simulate

    def _result(self, text: str, code: int, begun: float, submission: Submission | None) -> Submitted:
        data = f"{text}\n".encode()
        shown, shortened = cut(data, len(data), len(text) + 1, self.config.max_output)
        return Submitted(
            output=shown,
            exit_code=code,
            truncated=shortened,
            output_chars=len(text) + 1,
            seconds=time.monotonic() - begun,
            submission=submission,
        )


def fraction(score: Score) -> float:
    """The share of the tests that pass; 0 if nothing compiles or the grader was attacked.

    At most the partial credit, so that a design that ends the tests early does not gain from uncounted tests.
    """
    if score.violations or not score.tests_total or not (score.compile or score.passed):
        return 0.0
    return min(score.tests_passed / score.tests_total, score.credit)


def all_pass(score: Score, *, tested: bool = True) -> bool:
    """Whether every check that was run passes."""
    return score.passed if tested else not (score.violations or failing(score, tested=False))


def verdict(score: Score, *, tested: bool = True) -> str:
    """The agent's view of a grading: names only. `tested` is whether the hidden tests were run."""
    if score.violations:
        return (
            "refused. Something in the files reaches for the checks instead of passing them, so none counts as passed"
        )
    if all_pass(score, tested=tested):
        return "all checks pass" if tested else "syntax and interface are right; nothing else is checked here"
    names = failing(score, tested=tested)
    return "\n".join(["these checks fail:", *(f"- {name}" for name in names)]) if names else "it does not pass"


def failing(score: Score, *, tested: bool = True) -> list[str]:
    """The names of what fails: stages, then tests. For a test with parameters, also how many of its runs fail."""
    stages = {"files (one is missing or empty)": score.format, "syntax": score.syntax, "interface": score.interface}
    if not tested:
        return [name for name, share in stages.items() if share < 1]
    stages["compile"] = score.compile
    runs = Counter(plain_name(test.name) for test in score.tests if test.outcome != "skipped")
    failed = Counter(plain_name(test.name) for test in score.tests if test.outcome not in ("passed", "skipped"))
    tests = [  # not in the order of the failures, which would reveal which runs fail
        f"{name} (in {failed[name]} of {total} runs)" if failed[name] < total else name
        for name, total in runs.items()
        if failed[name]
    ]
    return [*(name for name, share in stages.items() if share < 1), *tests]


def plain_name(name: str) -> str:
    """A test's own name, after its service if there are several.

    The file, the module and the parameters, which are values of the hidden tests, are left out:
    ``direct: test_runner.py::test_top[8-255]/test_top.counts/step=3`` becomes ``direct: counts``.
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
    """The seed of one submission's stimuli. It depends on the problem's digest, which no agent knows."""
    name = f"{problem.digest} {episode_seed} {number}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big")


def answer_time(seconds: float) -> float:
    """Seconds after which to answer a submission that took `seconds`: the least of 1, 2, 4, 8, … that is enough."""
    answer = FIRST_ANSWER
    while answer < seconds:
        answer *= 2
    return answer
