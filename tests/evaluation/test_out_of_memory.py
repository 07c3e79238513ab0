"""Agents whose processes run out of memory: counted, no fault of the machine, and without effect on the score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from rtl_agent_gym.cli.eval import print_summary
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.policies import ScriptedPolicy, heredoc
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import SandboxSpec
from rtl_agent_gym.transcripts import read_transcript
from tests.counters import counted

HUNGRY = """python3 -c 'b"x" * (1 << 30)'"""


@pytest.mark.docker
@pytest.mark.daemon  # without a control group, so large a request is refused and ends nothing
async def test_processes_that_ran_out_of_memory_are_counted_and_change_nothing(
    tmp_path: Path, arbiter: Problem
) -> None:
    solution = [heredoc(path, text) for path, text in (arbiter.golden or {}).items()]
    script, folder = tmp_path / "script.yaml", tmp_path / "run"
    script.write_text(yaml.safe_dump([{"run": [HUNGRY, *solution]}, {"run": HUNGRY}]))
    before = counted("command_ooms")
    rules = EpisodeConfig(sandbox=SandboxSpec(memory=256 << 20))
    config = EvaluationConfig(problems=[arbiter], folder=folder, episode=rules)
    found = await evaluate(config, ScriptedPolicy(script))
    [result] = found.results
    assert (result.passed, result.stop_reason, result.fault, result.retries) == (True, "completed", None, 0)
    assert result.oom_kills == 2
    transcript = read_transcript(folder / str(result.transcript))
    assert [ran.exit_code for turn in transcript.turns for ran in turn.commands if ran.command == HUNGRY] == [137, 137]
    assert EpisodeResult.of_transcript(transcript).oom_kills == 2
    assert json.loads((folder / "summary.json").read_text())["oom_kills"] == 2
    assert counted("command_ooms") == before + 2
    console = Console(record=True, width=200)
    print_summary(console, found.summary)
    assert "processes of agents that ran out of memory: 2" in console.export_text()
