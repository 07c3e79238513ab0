"""Harbor's verifier with the exact score: grades on the host, with the `Scorer` that the whole package uses.

harbor run -p TASKS -a oracle --verifier rtl_agent_gym.integrations.harbor.verifier:RTLVerifier
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harbor.models.verifier.result import VerifierResult
from harbor.verifier.base import BaseVerifier

from ...episodes.runtime import acquire
from ...episodes.turns import score_numbers
from ...errors import ProblemError
from ...problems import Problem
from ...scoring import RewardWeights
from .collect import TARGET
from .grade import read_collected


class RTLVerifier(BaseVerifier):  # type: ignore[misc,unused-ignore] # without Harbor its base is unknown
    """Grades the files that a task's collect hook has copied.

    A machine fault is an exception, so the trial has no reward, and Harbor repeats it with ``--max-retries``.

    Args:
        reward: A preset of `RewardWeights`; ``--verifier-kwarg reward=dense``.
        cache: Folder of cached gradings; ``--verifier-kwarg cache=FOLDER``. None for no cache.
        harbor: Harbor's own arguments.
    """

    def __init__(self, *, reward: str = "default", cache: str | None = None, **harbor: Any) -> None:
        super().__init__(**harbor)
        self._weights = RewardWeights.preset(reward)
        self._cache = None if cache is None else Path(cache)

    async def verify(self) -> VerifierResult:
        """Grade, and return the numbers of `score_numbers`; ``reward`` is what Harbor averages.

        Raises:
            SandboxError: The machine failed: the agent's files were lost, or no grading succeeded.
            ProblemError: The task was not written by this package.
        """
        problem, seed = _read_problem(self.task.paths.tests_dir / "problem.json")
        files: dict[str, str | bytes] = {**read_collected(self.trial_paths.artifacts_dir / TARGET.removeprefix("/"))}
        async with acquire() as lease:
            score = await lease.runtime.scorer(self._weights, self._cache).score(problem, files, seed=seed)
        self.logger.info("%s: %s", problem.id, score.reason)
        (self.trial_paths.verifier_dir / "score.json").write_text(score.model_dump_json(indent=1), encoding="utf-8")
        return VerifierResult(rewards=dict(score_numbers(score)))


def _read_problem(path: Path) -> tuple[Problem, int]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return Problem.model_validate(read["problem"]), int(read["seed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProblemError(
            f"this is not a problem: {error}; write the task with: rtl-agent-gym problems export", source=str(path)
        ) from error
