"""The scripted episodes through inspect_ai: its samples, its retries, limits and time-outs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.renderers import ToolCall
from tests.integrations.conformance import EXPECTED, Script, solution
from tests.integrations.ecosystem import call
from tests.integrations.players import BY_NAME, compared
from tests.integrations.table import recorded
from tests.integrations.test_verifiers import CUT_OFF

pytestmark = [pytest.mark.ecosystem, pytest.mark.docker, pytest.mark.timeout(3600)]


def vocabulary() -> dict[str, str]:
    """Environment variables with which tiktoken finds its vocabulary in litellm, and needs no network."""
    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    return {"TIKTOKEN_CACHE_DIR": str(Path(spec.origin).parent / "litellm_core_utils" / "tokenizers")}


async def test_scripts_get_the_verdicts_of_a_session(tmp_path: Path) -> None:
    with recorded("inspect_ai", EXPECTED) as notes:
        async for script, there, _ in compared("inspect", tmp_path, **vocabulary()):
            notes.add(script.name, there, observations=True)
            assert [path.suffix for path in (tmp_path / "there" / script.name).iterdir()] == [".jsonl"]


async def test_a_machine_fault_is_retried_if_asked_for(tmp_path: Path) -> None:
    fault = Script("fault", (solution(), (ToolCall.of("ls"),), "Done."), fault_in=2)
    assert await call("inspect", "retried", fault, tmp_path, **vocabulary()) == {
        "error": None,
        "attempts": 3,
        "passed": 1.0,
    }


async def test_a_machine_fault_is_no_score_and_not_shown(tmp_path: Path) -> None:
    fault = Script("fault", ((ToolCall.of("ls"),), "Done."), fault_in=1)
    seen = await call("inspect", "scored_on_error", fault, tmp_path, **vocabulary())
    assert seen == {"error": True, "scores": {}, "last read": "assistant"}


@pytest.mark.parametrize(("limit", "value"), [("time", 60), ("message", 4)])
async def test_what_inspect_cuts_off_is_graded(tmp_path: Path, limit: str, value: int) -> None:
    sample: dict[str, Any] = await call("inspect", "limited", CUT_OFF, tmp_path, limit, value, **vocabulary())
    assert (sample["limit"], sample["value"]) == (limit, {"passed": 1.0, "reward": 1.4})
    assert sample["metadata"]["stop_reason"] == "max_turns"


async def test_the_rewards_of_turns_are_in_the_metadata(tmp_path: Path) -> None:
    assert await call("inspect", "rewarded_turns", BY_NAME["solved"], tmp_path, **vocabulary()) == [0.0, 1.4, 0.0]


async def test_other_solvers_can_use_the_sandbox(tmp_path: Path) -> None:
    found = await call("inspect", "sandbox_methods", tmp_path, **vocabulary())
    assert found == {
        "pwd": [True, 0, "/code\n"],
        "stdin, folder and variable": [True, 0, "/code/rtl seven given"],
        "status": [False, 3, "both\nstreams\n"],
        "timeout": "SandboxTimeoutError",
        "no timeout": "the command ran for more than 2 s",
        "user": "SandboxUserUnsupportedError",
        "round trip": True,
        "missing": "FileNotFoundError",
        "folder": "IsADirectoryError",
        "large": "OutputLimitExceededError",
        "endless": "OutputLimitExceededError",
        "largest": 10_000,
        "forbidden": "PermissionError",
        "passed": 1.0,
    }


async def test_bad_arguments_are_refused_before_the_first_sample() -> None:
    wrong: dict[str, dict[str, Any]] = {
        "there is no file or folder nosuch.jsonl": {"problems": "nosuch.jsonl"},
        "there is no problem 'nosuch'": {"ids": "nosuch"},
        "rows is 'good'": {"rows": "good"},
        "unknown option 'turns'": {"turns": 3},
        "max_turns must be greater than 0": {"max_turns": 0},
        "tool calls need the workspace 'shell', not 'answer'": {"workspace": "answer"},
    }
    found = await call("inspect", "refusals", [*wrong.values(), {}], **vocabulary())
    for words, line in zip(wrong, found, strict=False):
        assert line.startswith(f"UsageError: {words}")
    assert found[-1] == "fine"
