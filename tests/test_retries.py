"""The table of retries: how often, how long, and what is raised at last."""

from __future__ import annotations

import pytest

from rtl_agent_gym import retries
from rtl_agent_gym.errors import SandboxLost, UsageError
from rtl_agent_gym.retries import EPISODE, GRADING, REQUEST, START, STEP, STEP_EPISODES, Retries, Retry, retrying


@pytest.mark.parametrize(
    ("row", "longest"),
    [
        (REQUEST, [1, 2, 4, 8]),
        (START, [0.5, 1]),
        (GRADING, [0.5, 1, 2]),
        (EPISODE, [1, 2]),
        (STEP_EPISODES, [5, 10, 20, 40, 80, 160]),
        (STEP, [2, 10, 30]),
    ],
)
def test_the_pauses_of_each_level(row: Retry, longest: list[float]) -> None:
    assert row.attempts == len(longest) + 1
    for failures, most in enumerate(longest, 1):
        drawn = {row.pause(failures) for _ in range(50)}
        assert all((1 - row.spread) * most <= pause <= most for pause in drawn)
        assert (len(drawn) > 1) == (row.spread > 0)
    assert row.pause(10_000) <= row.longest


async def test_the_last_error_is_raised_and_a_permanent_one_at_once() -> None:
    tried: list[str] = []

    async def work(error: Exception) -> None:
        tried.append(str(error))
        raise error

    row = Retry(attempts=3, first=0.0, longest=0.0)
    with pytest.raises(OSError, match="again"):
        await row.retrying(lambda error: isinstance(error, OSError))(work, OSError("again"))
    with pytest.raises(ValueError, match="never"):
        await row.retrying(lambda error: isinstance(error, OSError))(work, ValueError("never"))
    assert tried == ["again"] * 3 + ["never"]


async def test_a_grading_is_repeated_for_the_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "GRADING", GRADING._replace(first=0.0))
    tried: list[str] = []

    async def work(error: Exception) -> None:
        tried.append(str(error))
        raise error

    with pytest.raises(SandboxLost) as caught:
        await retrying(lambda: work(SandboxLost("gone")), Retries(attempts=3))
    assert caught.value.retries == 2
    with pytest.raises(UsageError):
        await retrying(lambda: work(UsageError("wrong")))
    assert tried == ["gone"] * 3 + ["wrong"]
