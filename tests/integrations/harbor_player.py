"""Plays scripts as trials of Harbor's, with the command ``harbor run``."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtl_agent_gym.integrations.harbor.tasks import write_task
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes.client import OWNER_LABEL, owner_label
from rtl_agent_gym.sandboxes.daemon import connect
from rtl_agent_gym.sandboxes.image import image_tag
from tests.integrations.compose import compose_variables
from tests.integrations.conformance import Played, Script, gray
from tests.integrations.ecosystem import ROOT, clean, environment

VERIFIER = "rtl_agent_gym.integrations.harbor.verifier:RTLVerifier"


@dataclass(frozen=True)
class Trial:
    """How a trial ended."""

    rewards: dict[str, float] | None
    """None without a verdict."""
    exception: str | None
    """The type of its exception."""
    message: str
    folder: Path


def run_trial(folder: Path, problem: Problem, *options: str, exact: bool = True) -> Trial:
    """Run one trial of a problem's task, and read how it ended.

    Args:
        folder: An empty one for the task and the job.
        problem: What is exported.
        options: Of ``harbor run``, such as the agent.
        exact: Whether our class verifies; otherwise the task's ``test.sh``.
    """
    task = write_task(problem, folder / "tasks", image_tag())
    command = [str(environment("harbor")), "-m", "harbor.cli.main", "run", "--path", str(task), "--yes", "--quiet"]
    command += ["--jobs-dir", str(folder / "jobs"), "--job-name", "job", *options]
    command += ["--verifier", VERIFIER] if exact else []
    variables = clean() | {"PYTHONPATH": str(ROOT), "HARBOR_TELEMETRY": "0", "DOCKER_BUILDKIT": "1"}
    variables |= compose_variables()
    harbor = subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output, _ = harbor.communicate()
    assert not owned(harbor.pid)
    (result,) = (folder / "jobs" / "job").glob("*/result.json")
    read: dict[str, Any] = json.loads(result.read_text())
    assert harbor.returncode == 0, output
    error, verdict = read["exception_info"] or {}, read["verifier_result"]
    return Trial(
        None if verdict is None else verdict["rewards"],
        error.get("exception_type"),
        error.get("exception_message", ""),
        result.parent,
    )


def scripted(script: Script, folder: Path, *options: str) -> list[str]:
    """The options for an agent that plays a script."""
    file = folder / "script.pickle"
    file.write_bytes(pickle.dumps(script))
    return ["--agent", "tests.integrations.harbor_agent:ScriptedAgent", "--agent-kwarg", f"script={file}", *options]


class HarborPlayer:
    """Harbor shows no observations of ours: each agent has a shell tool of its own."""

    name = "Harbor 0.26"
    left_out = frozenset({"submissions"})
    """Scripts that it cannot play: nothing grades a submission during a trial."""

    async def play(self, script: Script, folder: Path) -> Played:
        trial = await asyncio.to_thread(run_trial, folder, gray(), *scripted(script, folder))
        if trial.rewards is None:
            assert trial.exception == "SandboxError", trial
            return Played(None, None)
        assert trial.exception is None, trial
        return Played(trial.rewards["reward"], bool(trial.rewards["tests_passed"]))


def containers() -> set[str | None]:
    """The containers of all trials that there are."""
    return _labelled("com.docker.compose.service=main")


def owned(process: int) -> set[str | None]:
    """The containers that our package has started in a process of this machine."""
    return _labelled(f"{OWNER_LABEL}={owner_label(process)}")


def _labelled(label: str) -> set[str | None]:
    with closing(connect()) as client:
        return {container.id for container in client.containers.list(all=True, filters={"label": label})}
