"""What the runs of a submitted program may print, of which this process keeps all that a round needs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import CommandResult, SandboxProvider
from rtl_agent_gym.scoring.submission import SubmittedFiles
from rtl_agent_gym.scoring.trials import FOUND, IN_A_ROUND, LONGEST, PROGRAM, with_trials

RUNS = 32


class Prints:
    """In place of sandboxes whose programs print these texts, one a run."""

    def __init__(self, texts: list[str]) -> None:
        self.texts, self.ran = iter(texts), 0

    async def create(self, spec: object = None) -> Prints:
        return self

    async def write_files(self, files: object, root: str = "") -> None: ...

    async def run(self, command: str, **limits: object) -> CommandResult:
        self.ran += 1
        return CommandResult(next(self.texts), 0)

    async def lacked_memory(self) -> bool:
        return False

    async def close(self) -> None: ...


async def outputs(problem: Problem, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """What the harness's program gets of one round, and how many runs there were."""
    rounds: list[Mapping[str, Any]] = []

    async def ask(_submission: object, _provider: object, known: Mapping[str, Any]) -> dict[str, Any]:
        rounds.append(known)
        runs = {f"mutant_{number}": {"run.py": ""} for number in range(RUNS)}
        return {"runs": runs, "state": {}} if len(rounds) == 1 else {"found": {}}

    monkeypatch.setattr("rtl_agent_gym.scoring.trials._ask", ask)
    changed = problem.model_copy(update={"harness": {**problem.harness, PROGRAM: ""}})
    provider = Prints(texts)
    tried, late = await with_trials(SubmittedFiles(changed, {}), cast(SandboxProvider, provider))
    assert (tried.problem.harness[FOUND], late) == ("{}", False)
    results = rounds[1]["results"]
    assert len(results) == RUNS
    return sorted(result["output"] for result in results.values()), provider.ran


async def test_a_line_that_is_not_ascii_counts_as_empty(arbiter: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a text needs four times the memory, and twelve times in JSON."""
    line = json.dumps({"verdict": "accepted", "steps": "eJw="})
    texts = ["\n\U0001f600" + "A" * 1000 + "\n", *[f"\U0001f600\n{line}\n"] * (RUNS - 1)]
    assert await outputs(arbiter, texts, monkeypatch) == (["", *[line] * (RUNS - 1)], RUNS)


async def test_the_lines_of_a_round_are_limited_together(arbiter: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them are long: which runs come first is drawn by chance."""
    most = IN_A_ROUND // RUNS
    assert await outputs(arbiter, ["A" * most] * RUNS, monkeypatch) == (["A" * most] * RUNS, RUNS)
    assert await outputs(arbiter, ["A" * (most + 1)] * RUNS, monkeypatch) == ([""] * RUNS, RUNS)
    longest = "\n" + "A" * (LONGEST - 10) + "\n"
    assert await outputs(arbiter, [longest] * RUNS, monkeypatch) == ([""] * RUNS, IN_A_ROUND // LONGEST + 1)
    short = ["{}"] * (RUNS - 10)
    assert await outputs(arbiter, [*short, *[longest] * 10], monkeypatch) == ([""] * RUNS, RUNS - 1)


@pytest.mark.parametrize(("seconds", "late"), [(0.001, False), (0.5, True)])
async def test_the_time_of_all_runs_is_that_of_their_sandboxes(
    seconds: float, late: bool, arbiter: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of this process, which may be stopped while a program runs."""

    class Stopped(Prints):
        async def run(self, command: str, **limits: object) -> CommandResult:
            time.sleep(0.1)
            return CommandResult(next(self.texts), 0, seconds=seconds)

    async def ask(_submission: object, _provider: object, known: Mapping[str, Any]) -> dict[str, Any]:
        return {"found": {}} if known["results"] else {"runs": {str(number): {} for number in range(4)}, "state": {}}

    monkeypatch.setattr("rtl_agent_gym.scoring.trials._ask", ask)
    monkeypatch.setattr("rtl_agent_gym.scoring.trials.IN_ALL", 0.2)
    changed = arbiter.model_copy(update={"harness": {**arbiter.harness, PROGRAM: ""}})
    provider = cast(SandboxProvider, Stopped(["{}"] * 4))
    assert (await with_trials(SubmittedFiles(changed, {}), provider))[1] == late
