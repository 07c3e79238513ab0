"""Episodes for verifiers 0.4 and prime-rl: a taskset, its task, the harness that plays it, and their environment.

``vf-eval rtl_agent_gym_verifiers`` runs them; that module exists because verifiers' ids have no dots.

::

    Task.setup ──► ToolSession ──► Harness.launch ──► Task.finalize ──► rewards, metrics ──► Harness.cleanup
                   starts          plays the turns    grades                                 closes

The session is in `CVDPState` of the trace. The harness asks verifiers' own endpoint for each turn, so traces, tokens,
limits and retries are those of verifiers. Messages are appended and never changed, the tool is declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

from ..episodes.rules import EpisodeConfig
from ..episodes.tools import tool_opening
from ..episodes.turns import StopReason
from ..errors import UsageError
from ..problems.cvdp_notes import Rows
from .lookup import choose_problems, find_problem
from .session import ToolSession
from .verifiers_harness import CVDPHarness, CVDPHarnessConfig, CVDPState, machine_faults

__all__ = [
    "CVDPData",
    "CVDPEnvironment",
    "CVDPEnvironmentConfig",
    "CVDPHarness",
    "CVDPTask",
    "CVDPTaskConfig",
    "CVDPTaskset",
    "CVDPTasksetConfig",
]


class CVDPData(vf.TaskData):
    """A problem as it travels in traces and to environment servers: without hidden tests and solution."""

    problems: str = "bundled"
    """Where `id` is found; see `load_problems`."""


class CVDPTaskConfig(vf.TaskConfig):
    """Rules of an episode, ``--env.taskset.task.…``; see `EpisodeConfig`."""

    max_turns: int = EpisodeConfig.max_turns
    max_malformed: int = EpisodeConfig.max_malformed
    command_timeout: float = EpisodeConfig.command_timeout
    max_output: int = EpisodeConfig.max_output
    scoring_timeout: float = EpisodeConfig.scoring_timeout
    harness_feedback: int = EpisodeConfig.harness_feedback
    progress_coef: float = EpisodeConfig.progress_coef
    transcript_dir: Path | None = None

    def rules(self) -> EpisodeConfig:
        """The rules. Raises `UsageError` if one is out of its range."""
        return EpisodeConfig.from_record(self.model_dump(), transcript_dir=self.transcript_dir)


class CVDPTasksetConfig(vf.TasksetConfig):
    """Which problems to load, ``--env.taskset.…``. ``--select.include.ids`` chooses among them by id."""

    problems: str = "bundled"
    """A path, a Hugging Face id, or ``"bundled"``."""
    categories: list[str] | None = None
    difficulties: list[str] | None = None
    rows: Rows = "all"
    """``fair``, ``partial`` or ``sound`` keeps the rows of CVDP that are known to be so, or better."""
    task: CVDPTaskConfig = CVDPTaskConfig()


class CVDPTask(vf.Task[CVDPData, CVDPState, CVDPTaskConfig]):
    """A problem: its setup, its grading, its reward."""

    @property
    def key(self) -> str:
        return str(self.data.id)

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if not isinstance(trace.agent.config.harness, CVDPHarnessConfig):
            raise UsageError("these tasks are played by their own harness; leave out --env.agent.harness.id")
        problem = await asyncio.to_thread(find_problem, self.data.problems, self.key)
        trace.state._session = session = ToolSession(problem, self.config.rules())
        with machine_faults():
            await session.start()

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Grade what is there; a limit of verifiers, or its time-out, may have ended the episode."""
        reason: StopReason = "max_tokens" if "token" in str(trace.stop_condition) else "max_turns"
        with machine_faults():
            result = await trace.state.session.finish(reason)
        trace.state.numbers = result.numbers
        trace.info |= {"stop_reason": result.stop_reason, "score": result.score.model_dump(mode="json")}

    @vf.reward
    async def hidden_tests(self, trace: vf.Trace) -> float:
        """The reward of the episode."""
        return float(trace.state.numbers["reward"])

    @vf.metric
    async def outcome(self, trace: vf.Trace) -> dict[str, float]:
        """All numbers of the episode but the reward."""
        return {name: value for name, value in trace.state.numbers.items() if name != "reward"}


class CVDPTaskset(vf.Taskset[CVDPTask, CVDPTasksetConfig]):
    """The problems that can be scored here."""

    def load(self) -> Iterator[CVDPTask]:
        config = self.config
        chosen = {"categories": config.categories, "difficulties": config.difficulties}
        rules = config.task.rules()
        source, found = choose_problems(config.problems, rows=config.rows, options=rules.grading, **chosen)
        for problem in found:
            *system, user = (message["content"] for message in tool_opening(problem, rules).messages)
            data = CVDPData(
                id=problem.id,
                name=problem.id,
                description=f"{problem.category}, {problem.difficulty}",
                prompt=user,
                system_prompt=system[0] if system else None,
                problems=source,
            )
            yield CVDPTask(data, config.task)


class CVDPEnvironmentConfig(vf.EnvConfig):
    """One agent. Its runtime, where nothing runs, is a folder of this machine; verifiers' default is a cloud."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class CVDPEnvironment(vf.Env[CVDPEnvironmentConfig]):
    """One agent plays each task once."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)
