"""The options of a cluster, from the commands to the cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.cluster import CANARY_SECONDS, ClusterRuntime, runtime_at
from rtl_agent_gym.cluster.remote import RemoteGrader, RemoteSandboxes
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation import EvaluationConfig, Observer, evaluate
from rtl_agent_gym.policies.harness import HarnessPolicy
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.training import launch
from rtl_agent_gym.training.options import TrainOptions
from tests.arbiter import ARBITER
from tests.cli import in_process
from tests.cluster.actors import Actor, cluster_of


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ClusterRuntime]:
    """The runtimes that an evaluation would use. Each evaluation ends there."""
    made: list[ClusterRuntime] = []

    def using(make: Callable[[], Any]) -> Any:
        made.append(make())
        raise UsageError("enough")

    monkeypatch.setattr("rtl_agent_gym.cli.eval.using", using)
    return made


def options_of(runtime: Any) -> tuple[float, int, str]:
    cluster = runtime.cluster
    return cluster._canary_seconds, cluster._most, cluster._limits


def test_an_evaluation_passes_its_options_on(asked: list[ClusterRuntime]) -> None:
    common = ("eval", "--policy", "golden", "--ray", "here", "--concurrency", "7")
    in_process.call(*common)
    in_process.call(*common, "--canary-seconds", "120", "--ray-slots", "3", "--sandbox-limits", "cpus=1")
    assert [options_of(runtime) for runtime in asked] == [(CANARY_SECONDS, 7, ""), (120.0, 3, "cpus=1")]


@pytest.mark.parametrize(
    ("before", "after", "option"),
    [
        ((), ("--sandbox", "namespaces"), "--sandbox namespaces"),
        (("--sandbox", "namespaces"), (), "--sandbox namespaces"),
        (("--allow-weak-limits",), (), "--allow-weak-limits"),
    ],
)
def test_what_only_the_nodes_can_choose_is_refused(
    before: tuple[str, ...], after: tuple[str, ...], option: str, asked: list[ClusterRuntime], tmp_path: Path
) -> None:
    """The variables may be set: a node that is started by the same shell takes them."""
    run = tmp_path / "run"
    calls = [("eval", "--policy", "golden", "--ray", "here", *after)]
    calls += [("train", "rl", "ray_address=here", f"log_path={run}")] if before else []
    for call in calls:
        done = in_process.call(*before, *call)
        assert done.returncode == 2
        assert f"`rtl-agent-gym {option} cluster up`" in done.stderr
    assert not asked
    assert not run.exists()
    in_process.call(*calls[0][:5], RTL_GYM_SANDBOX="namespaces", RTL_GYM_ALLOW_WEAK_LIMITS="1")
    assert len(asked) == 1


@pytest.mark.parametrize("value", ["-1", "3601", "nan", "soon"])
def test_a_time_that_makes_no_sense_is_refused(value: str, asked: list[ClusterRuntime]) -> None:
    done = in_process.call("eval", "--policy", "golden", "--ray", "here", "--canary-seconds", value)
    assert done.returncode == 2
    assert "--canary-seconds" in done.stderr
    assert not asked
    with pytest.raises(UsageError, match="canary_seconds"):
        TrainOptions.build({"canary_seconds": value})


def test_training_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("rtl_agent_gym.episodes.runtime.using", lambda make: made.append(make()))
    for given in ({}, {"canary_seconds": "0", "ray_slots": "5"}):
        options = TrainOptions.build({"ray_address": "here", "max_concurrent": "9", **given})
        launch._machines(options, runtime_at)
    assert [options_of(runtime) for runtime in made] == [(CANARY_SECONDS, 9, ""), (0.0, 5, "")]
    options = TrainOptions.build({"ray_address": "here", "sandbox": "namespaces"})
    with pytest.raises(UsageError, match=r"^sandbox: .*`rtl-agent-gym --sandbox namespaces cluster up`"):
        launch._machines(options, runtime_at)


async def test_an_agent_inside_its_sandbox_is_refused_before_any_episode() -> None:
    class Full:
        async def create(self, *_: object) -> None:
            raise UsageError("an episode has begun")

        async def close_sandbox(self, *_: object) -> None: ...

    sampler: Any = None
    agent = HarnessPolicy({"name": "mine", "argv": ["true"]}, TokenSamplerPolicy(sampler, name="m"))
    cluster = cluster_of(Actor(Full()))
    config = EvaluationConfig(ids=(ARBITER,), keep=False)
    begun: list[str] = []
    observer = Observer(begun=lambda problem, sample: begun.append(problem.id))
    with pytest.raises(UsageError, match=r"^harness:mine m works inside the sandbox, which .* of a cluster"):
        await evaluate(
            config, agent, observer=observer, provider=RemoteSandboxes(cluster), grader=RemoteGrader(cluster)
        )
    assert begun == []
