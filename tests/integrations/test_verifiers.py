"""The scripted episodes through verifiers: its command, its traces, its retries, limits and time-outs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.demo.shipped import shipped
from rtl_agent_gym.renderers import ToolCall
from tests.integrations.conformance import EXPECTED, RULES, Script, solution
from tests.integrations.ecosystem import call
from tests.integrations.players import compared
from tests.integrations.table import recorded

pytestmark = [pytest.mark.ecosystem, pytest.mark.docker, pytest.mark.timeout(3600)]

SLEEP = (ToolCall.of("sleep 19"),)
CUT_OFF = Script("cut off", (solution(), *[SLEEP] * 4, "Done."), RULES.with_options(command_timeout=20.0))
"""Solved in its first turn; the others take longer than a time limit."""


async def test_scripts_get_the_verdicts_of_a_session(tmp_path: Path) -> None:
    with recorded("verifiers", EXPECTED) as notes:
        async for script, there, here in compared("verifiers", tmp_path):
            place = tmp_path / "tokens" / script.name
            place.mkdir(parents=True)
            exact = await call("verifiers", "play_tokens", script, place, str(shipped("student")))
            assert (exact["reward"], exact["turns"]) == (here.reward, script.fault_in or len(script.turns)), script.name
            assert exact["errors"] == ([] if here.reward is not None else ["SandboxError"])
            notes.add(script.name, there, observations=there.observations is not None, tokens=True)
            assert [path.suffix for path in (tmp_path / "there" / script.name).iterdir()] == [".jsonl"]


async def test_a_machine_fault_is_retried_if_asked_for(tmp_path: Path) -> None:
    fault = Script("fault", (solution(), (ToolCall.of("ls"),), "Done."), fault_in=2)
    trace = await call("verifiers", "retried", fault, tmp_path)
    assert trace["ok"]
    assert [error["type"] for error in trace["errors"]] == ["SandboxError"] * 2
    assert trace["rewards"]["hidden_tests"] == {"score": 1.4, "weight": 1.0}
    assert trace["metrics"] | {"tests_passed": 1.0, "turns": 3.0, "stop/completed": 1.0} == trace["metrics"]
    assert trace["info"]["score"]["passed"]


@pytest.mark.parametrize(
    ("option", "value", "stop"), [("timeout.rollout", "12", "agent_timeout"), ("max-turns", "1", "max_turns")]
)
async def test_what_verifiers_cuts_off_is_graded(tmp_path: Path, option: str, value: str, stop: str) -> None:
    trace = await call("verifiers", "limited", CUT_OFF, tmp_path, f"--env.agent.{option}", value)
    assert (trace["ok"], trace["stop_condition"], trace["errors"]) == (True, stop, [])
    assert (trace["metrics"]["tests_passed"], trace["metrics"]["stop/max_turns"]) == (1.0, 1.0)


async def test_a_full_context_is_graded(tmp_path: Path) -> None:
    trace = await call("verifiers", "overflowing", CUT_OFF, tmp_path)
    assert (trace["ok"], trace["stop_condition"], trace["errors"]) == (True, "max_total_tokens", [])
    assert (trace["metrics"]["tests_passed"], trace["metrics"]["stop/max_tokens"]) == (1.0, 1.0)


async def test_another_harness_is_refused(tmp_path: Path) -> None:
    trace = await call("verifiers", "limited", CUT_OFF, tmp_path, "--env.agent.harness.id", "null")
    assert not trace["ok"]
    assert "played by their own harness" in trace["errors"][-1]["message"]


async def test_bad_options_are_refused_before_the_first_episode() -> None:
    wrong: dict[str, dict[str, Any]] = {
        "there is no file or folder nosuch.jsonl": {"problems": "nosuch.jsonl"},
        "no selected problem is known to be fair": {"rows": "fair"},
        "max_turns must be greater than 0": {"task": {"max_turns": 0}},
    }
    found = await call("verifiers", "refusals", [*wrong.values(), {}])
    for words, line in zip(wrong, found, strict=False):
        assert line.startswith(f"UsageError: {words}")
    assert found[-1] == "fine"
