"""The loop on the local engine: what affects the gradient, what is saved, what a crash costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.errors import SandboxLost, UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.training import launch, run_folder
from rtl_agent_gym.training.run_folder import RunFolder

torch = pytest.importorskip("torch")
pytest.importorskip("tinker_cookbook")

from tests.training.common import begun, differs, weights_of  # noqa: E402
from tests.training.scripted_run import make_plan  # noqa: E402


@contextlib.contextmanager
def losing_an_evaluation(toy: Any, name: str) -> Iterator[None]:
    """The run in the block ends with a fault in the evaluation of this folder."""
    play = toy.ToyEvaluator.play

    async def fails(self: Any, problems: Any, sampler: Any, samples: int, folder: Path) -> Any:
        if folder.name == name:
            raise SandboxLost("pulled the plug")
        return await play(self, problems, sampler, samples, folder)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(toy.ToyEvaluator, "play", fails)
        with pytest.raises(SandboxLost):
            yield


def lines_of(log: Path) -> int:
    """How many episodes have been played."""
    return log.read_text().count("\n") if log.exists() else 0


def kill_after(process: BaseProcess, home: Path, episodes: int) -> None:
    """Kill a toy run once so many episodes have been played, unless it ends before."""
    deadline = time.monotonic() + 120
    while process.is_alive() and time.monotonic() < deadline and lines_of(home / "played.log") < episodes:
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), (home / "errors.log").read_text()


REWARD_ONLY = ("kl_penalty_coef=0", "teacher_model=none", "reward_coef=1")


@pytest.mark.parametrize(
    ("baseline", "problems", "steps", "learns"),
    [("none", 1, 4, True), ("running", 1, 4, True), ("group", 1, 4, False), ("batch", 6, 1, True)],
)
async def test_at_group_size_1_the_reward_reaches_the_gradient(
    toy: Any, home: Path, baseline: str, problems: int, steps: int, learns: bool
) -> None:
    sizes = ("group_size=1", f"batch_size={problems}", f"num_steps={steps}")
    ran = await toy.run(home, *REWARD_ONLY, *sizes, f"baseline={baseline}", problems=problems)
    assert any(row["env/all/reward/total"] for row in ran.folder.metrics())
    assert (differs(ran.weights, weights_of(home / "student")) > 1e-4) == learns


@pytest.mark.parametrize(("coefficient", "learns"), [(1.0, True), (0.0, False)])
async def test_the_reward_of_a_row_with_a_blind_spot_may_be_left_out_of_the_gradient(
    toy: Any, home: Path, cvdp_data: Path, monkeypatch: pytest.MonkeyPatch, coefficient: float, learns: bool
) -> None:
    source = cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
    rows = load_problems(source, ids="cvdp_agentic_cont_adder_0001")
    monkeypatch.setattr(toy, "load_problems", lambda _: rows)
    ran = await toy.run(home, *REWARD_ONLY, "baseline=none", f"weak_coef={coefficient}", "num_steps=2")
    assert any(row["env/all/reward/total"] for row in ran.folder.metrics())
    assert (differs(ran.weights, weights_of(home / "student")) > 1e-4) == learns


@pytest.mark.slow  # benchmarks/learning.py shows it on a larger model
async def test_reward_alone_improves_and_permuted_rewards_do_not(toy: Any, home: Path) -> None:
    arguments = (*REWARD_ONLY, "group_size=8", "batch_size=2", "num_steps=15")
    learned, control = [
        (await toy.run(home, *arguments, *more, f"log_path={home / folder}", problems=2)).folder.metrics()
        for folder, more in (("a", ()), ("b", ("control=permuted_rewards",)))
    ]

    def mean(rows: list[dict[str, Any]]) -> float:
        return sum(row["pass_rate"] for row in rows) / len(rows)

    assert mean(learned[-4:]) > mean(learned[:4]) + 0.2
    assert mean(control[-4:]) < mean(control[:4]) + 0.1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("learning", ["kl_clip=1.0", "kl_top_k=24"])
async def test_distillation_brings_the_kl_down(toy: Any, home: Path, learning: str) -> None:
    ran = await toy.run(
        home, "kl_penalty_coef=1", "reward_coef=0", "group_size=16", "num_steps=25", "resume_every=25", learning
    )
    rows = ran.folder.metrics()
    assert all(abs(row["optim/kl_sample_train_v1"]) < 1e-4 for row in rows), "the trained tokens are the sampled ones"
    assert ("advantage/abs_token" in rows[0]) == (learning == "kl_clip=1.0")  # with targets, there are no advantages
    kl = [row["teacher_kl"] for row in rows]
    assert sum(kl[-5:]) / 5 < 0.4 * sum(kl[:3]) / 3, kl


async def test_the_folder_of_a_run(toy: Any, home: Path) -> None:
    from rtl_agent_gym.evaluation.report import write_report

    ran = await toy.run(home, "num_steps=3", "save_every=2", "eval_episodes=4")
    write_report([ran.folder.path], ran.folder.path / "report.html", episodes=False)
    names = {path.name for path in ran.folder.path.iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints.jsonl", "logs.log", "code.diff", "report.html"} <= names
    rows = ran.folder.metrics()
    assert [row["step"] for row in rows] == [0, 1, 2]
    for name in ("env/all/reward/total", "env/all/ac_tokens_per_turn", "teacher_kl", "optim/entropy", "time/sample"):
        assert all(name in row for row in rows), name
    assert all(row["time/total"] >= row["time/train"] for row in rows)
    assert "train_before/pass_rate" in rows[0]
    assert "train/pass_rate" in rows[-1]
    assert "<svg" in (ran.folder.path / "report.html").read_text()
    assert not list(ran.folder.episodes.glob("step-00000[0-2]-0*.json"))  # a checkpoint holds them
    kept = [record for record in ran.folder.checkpoints() if not record["rolling"]]
    assert [record["name"] for record in kept] == ["000002", "final"]
    assert all(Path(record["state_path"]).is_dir() and Path(record["sampler_path"]).is_dir() for record in kept)


async def test_the_queues_of_an_evaluation_are_in_the_row_of_its_step(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = toy.ToyEvaluator.played
    queues = SimpleNamespace(since=lambda: {"queue/agent/waits": float(len(played))})
    monkeypatch.setattr("rtl_agent_gym.training.loop.QueueMetrics", lambda: queues)
    ran = await toy.run(home, "num_steps=1", "eval_episodes=1")
    assert [row["queue/agent/waits"] for row in ran.folder.metrics()] == [2]  # before the step, and after it


def test_a_run_that_was_killed_after_its_last_step_gets_its_report(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, load_problems("bundled")[:1], "num_steps=1")
    begun(tmp_path, plan.record(), steps=1)
    assert launch.launch(plan).steps == 1
    assert (tmp_path / "report.html").exists()


async def test_a_machines_fault_is_retried_and_a_lost_group_counted(toy: Any, home: Path) -> None:
    faults = toy.Faults(broken={1, 4}, cancelled={2})  # two members of the group, and a retry
    ran = await toy.run(home, "num_steps=1", "group_size=4", faults=faults)
    [row] = ran.folder.metrics()
    assert (row["rollouts/faults"], row["env/all/total_episodes"]) == (3, 4)

    faults = toy.Faults(broken={0})  # the first group
    ran = await toy.run(
        home, "num_steps=1", "batch_size=2", "group_size=1", "rollout_retries=0", f"log_path={home / 'lost'}",
        faults=faults, problems=2,
    )  # fmt: skip
    [row] = ran.folder.metrics()
    assert (row["rollouts/groups_dropped"], row["env/all/total_episodes"]) == (1, 1)


STEPS = 6
"""Of a run that is killed again and again."""


@pytest.mark.parametrize("pipeline", ["false", "true"])
@pytest.mark.slow  # many sittings; one resumption is tested below
async def test_a_killed_run_goes_on_to_the_same_weights(toy: Any, start_toy: Any, home: Path, pipeline: str) -> None:
    arguments = (f"num_steps={STEPS}", "group_size=4", "reward_coef=1", "baseline=running", f"pipeline={pipeline}")
    whole = await toy.run(home, *arguments, f"log_path={home / 'whole'}")
    log, folder = home / "played.log", home / "killed"
    sittings = 0
    while sittings < STEPS:
        sittings += 1
        before = lines_of(log)
        process = start_toy(home, *arguments, f"log_path={folder}")
        kill_after(process, home, before + 9 + sittings)  # in the midst of a step, and another place each time
        if process.exitcode == 0:
            break
    assert sittings > 2
    again = await toy.run(home, *arguments, f"log_path={folder}")  # nothing is left to do
    rows = again.folder.metrics()
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert differs(again.weights, whole.weights) < 1e-6
    compared = ("pass_rate", "teacher_kl", "progress/lag")
    assert [[row[name] for name in compared] for row in rows] == [
        [pytest.approx(row[name], abs=1e-6) for name in compared] for row in whole.folder.metrics()
    ]
    # Played again is at most what was under way when the process died, never what was graded and kept.
    assert len(log.read_text().splitlines()) <= STEPS * 4 + 8 * (sittings - 1)


LAGGING = ("num_steps=6", "baseline=running", "reward_coef=1", "max_lag=2")
LAGS = [0, 1, 2, 2, 2, 2]


async def test_the_lag_is_bounded(toy: Any, home: Path) -> None:
    ran = await toy.run(home, *LAGGING, f"log_path={home / 'whole'}")
    assert [row["progress/lag"] for row in ran.folder.metrics()] == LAGS
    lines = (ran.folder.path / "checkpoints.jsonl").read_text().splitlines()
    last = json.loads(lines[2])["loop"]["pending"]  # behind step 3
    assert [one["version"] for one in last] == [1, 2]
    assert all(Path(one["weights"]).name.startswith("behind-") for one in last)


@pytest.mark.slow
async def test_a_resumed_run_keeps_the_lag(toy: Any, start_toy: Any, home: Path) -> None:
    whole = await toy.run(home, *LAGGING, f"log_path={home / 'whole'}")
    folder = home / "killed"
    kill_after(start_toy(home, *LAGGING, f"log_path={folder}"), home, 18)
    again = await toy.run(home, *LAGGING, f"log_path={folder}")
    assert differs(again.weights, whole.weights) < 1e-6
    assert [row["progress/lag"] for row in again.folder.metrics()] == LAGS
    left = {path.name for path in (folder / "checkpoints").rglob("*") if path.name.startswith("behind-")}
    assert len(left) <= 3  # weights that no checkpoint needs any more are deleted


@pytest.mark.slow
async def test_the_self_teacher_is_as_far_behind_as_it_should_be(toy: Any, home: Path) -> None:
    async def kl(name: str, *arguments: str) -> list[float]:
        more = ("teacher_model=self", "kl_penalty_coef=0.1", "reward_coef=1", *arguments)
        ran = await toy.run(home, "num_steps=4", *more, f"log_path={home / name}")
        return [row["teacher_kl"] for row in ran.folder.metrics()]

    frozen, far = await kl("frozen"), await kl("far", "teacher_lag=4")
    assert frozen == far  # no step is so late
    assert frozen[0] == pytest.approx(0, abs=1e-6)  # the student's own weights
    assert abs(frozen[1]) > 1e-4
    one = await kl("one", "teacher_lag=1")
    assert one[:2] == frozen[:2]
    assert abs(one[3]) > 1e-4
    assert one[2:] != frozen[2:]
    assert await kl("none", "teacher_lag=0") == pytest.approx([0] * 4, abs=1e-6)


@pytest.mark.parametrize("more", [(), pytest.param(("max_lag=1", "resume_every=2"), marks=pytest.mark.slow)])
async def test_a_resumed_run_has_the_same_self_teacher(
    toy: Any, start_toy: Any, home: Path, more: tuple[str, ...]
) -> None:
    arguments = ("num_steps=7", "teacher_model=self", "teacher_lag=2", "kl_penalty_coef=0.5", "reward_coef=1", *more)
    whole = await toy.run(home, *arguments, f"log_path={home / 'whole'}")
    folder = home / "killed"
    kill_after(start_toy(home, *arguments, f"log_path={folder}"), home, 22)
    last = json.loads((folder / "checkpoints.jsonl").read_text().splitlines()[-1])
    assert 2 <= last["batch"] < 7
    assert {one["version"] for one in last["loop"]["teacher"]} == {last["batch"] - 2, last["batch"] - 1} - {0}
    again = await toy.run(home, *arguments, f"log_path={folder}")
    assert differs(again.weights, whole.weights) < 1e-6
    assert [row["teacher_kl"] for row in again.folder.metrics()] == pytest.approx(
        [row["teacher_kl"] for row in whole.folder.metrics()], abs=1e-6
    )
    for run in (whole, again):
        left = {path.name for path in (run.folder.path / "checkpoints").rglob("behind-*")}
        assert left <= {"behind-000003", "behind-000004", "behind-000005"}  # others are deleted when nothing needs them


async def test_a_resumed_run_has_learned_as_much_of_its_problems(toy: Any, home: Path) -> None:
    """The run fails in the evaluation after step 4, and resumes before that step, whose episodes it has."""
    options = ("num_steps=5", "curriculum=edge", "batch_size=2", "baseline=running", "eval_every=4")
    arguments, problems = (*REWARD_ONLY, *options), {"problems": 4, "held_out": 1}
    whole = await toy.run(home, *arguments, f"log_path={home / 'whole'}", **problems)
    with losing_an_evaluation(toy, "000004-test"):
        await toy.run(home, *arguments, **problems)
    again = await toy.run(home, *arguments, **problems)
    assert again.faults.problems == whole.faults.problems[-8:]  # of the last step only
    assert differs(again.weights, whole.weights) < 1e-6
    first, second = (ran.folder.checkpoints()[-1]["loop"] for ran in (whole, again))
    assert all(first[name] == second[name] for name in ("running", "problem_sampler"))
    assert first["running"].keys() == first["problem_sampler"]["played"].keys() == set(whole.faults.problems)


async def test_a_pipelined_run_of_an_earlier_version_goes_on(toy: Any, home: Path) -> None:
    arguments = ("num_steps=4", "pipeline=true", "baseline=running", "reward_coef=1")
    whole = await toy.run(home, *arguments, f"log_path={home / 'whole'}")
    old = home / "old"
    shutil.copytree(home / "whole", old)
    record = json.loads((old / "checkpoints.jsonl").read_text().splitlines()[2])  # the next ones are not deleted yet
    [pending] = record["loop"].pop("pending")
    record["loop"] |= {"next": pending["problems"], "behind": pending["weights"], "totals": {"episode_faults": 0}}
    (old / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")
    shutil.rmtree(old / "episodes")
    again = await toy.run(home, *arguments, f"log_path={old}")
    assert differs(again.weights, whole.weights) < 1e-6
    for ran in (whole, again):
        assert [row["progress/lag"] for row in ran.folder.metrics()] == [0, 1, 1, 1]


async def test_held_out_problems_are_evaluated_and_never_trained_on(toy: Any, home: Path) -> None:
    ran = await toy.run(home, "num_steps=5", "eval_every=2", "batch_size=2", problems=2, held_out=2)
    trained, held_out = (
        {problem.id for problem in found} for found in (load_problems("bundled")[:2], load_problems("bundled")[2:4])
    )
    assert set(ran.faults.problems) == trained
    assert [(set(ids), samples) for ids, samples, _ in toy.ToyEvaluator.played] == [(held_out, 1)] * 4
    assert [folder for *_, folder in toy.ToyEvaluator.played] == [f"{version:06d}-test" for version in (0, 2, 4, 5)]
    records = ran.folder.checkpoints()[-2:]
    for sampler, record in zip(toy.ToyEvaluator.samplers[-2:], records, strict=True):
        evaluated = sampler._client._weights.module.state_dict()
        assert differs(weights_of(record["state_path"]), evaluated) == 0, "the weights after the step, not before it"
    rows = ran.folder.metrics()
    assert rows[0]["test_before/pass_rate"] == 1.0
    assert 0 < rows[0]["test_before/pass_rate_low"] < rows[0]["test_before/pass_rate_high"] == 1.0
    assert [row["step"] for row in rows if "test_before/pass_rate" in row] == [0]
    assert [row["step"] for row in rows if "test/pass_rate" in row] == [1, 3, 4]
    assert not any(name.startswith("train") for row in rows for name in row)


async def test_the_best_checkpoint_by_held_out_problems_is_kept(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights after steps 2 and 3 are best. The run fails while those of step 4 are evaluated, and is resumed."""
    monkeypatch.setattr(toy.ToyEvaluator, "rates", {done: done in (2, 3) for done in range(8)})
    arguments = ("num_steps=7", "eval_every=1", "save_every=0")
    with losing_an_evaluation(toy, "000004-test"):
        await toy.run(home, *arguments, held_out=2)
    ran = await toy.run(home, *arguments, held_out=2)
    assert [folder for *_, folder in toy.ToyEvaluator.played] == [f"{done:06d}-test" for done in range(4, 8)]
    records = ran.folder.checkpoints()
    assert [one["best"] for one in records] == [True, True, True, False, False, False, False]
    best = ran.folder.best_checkpoint()
    assert best == records[2]
    assert (best["name"], best["test_pass_rate"], best["rolling"]) == ("000003", 1.0, False)
    for path in ("state_path", "sampler_path"):
        there = [one["name"] for one in records if one[path] and Path(one[path]).is_dir()]
        assert there == ["000003", "000006", "final"]  # the last two, to resume from, and the best


async def test_a_kept_checkpoint_stays_if_save_every_changes_and_a_better_one_follows(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights after step 2 are kept and the best until those after step 6."""
    monkeypatch.setattr(toy.ToyEvaluator, "rates", {done: done in (2, 6) for done in range(9)})
    arguments = ("num_steps=8", "eval_every=1")
    with losing_an_evaluation(toy, "000005-test"):
        await toy.run(home, *arguments, "save_every=2", held_out=2)
    ran = await toy.run(home, *arguments, "save_every=0", held_out=2)
    there = [one["name"] for one in ran.folder.checkpoints() if Path(one["state_path"]).is_dir()]
    assert there == ["000002", "000004", "000006", "000007", "final"]


async def test_a_run_that_fails_ends_the_episodes_of_later_steps(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = toy.ToyEpisodes.__call__

    async def endless(self: Any, problem: Any, policy: Any) -> Any:
        if self.faults.begun == 4:  # all of the first step
            await asyncio.Event().wait()
        return await play(self, problem, policy)

    monkeypatch.setattr(toy.ToyEpisodes, "__call__", endless)
    with losing_an_evaluation(toy, "000001-test"):
        await toy.run(home, "eval_every=1", "max_lag=1", held_out=1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def weights_in(folder: Path) -> set[str]:
    """The saved weights of a run, below the folder of its checkpoints."""
    checkpoints = folder / "checkpoints"
    return {str(path.relative_to(checkpoints)) for path in checkpoints.glob("local-*/*/*")}


async def test_weights_of_steps_that_did_not_count_are_deleted(toy: Any, home: Path) -> None:
    arguments = ("num_steps=5", "eval_every=1", "save_every=2", "max_lag=1")
    whole = await toy.run(home, *arguments, f"log_path={home / 'whole'}", held_out=2)
    with losing_an_evaluation(toy, "000004-test"):
        await toy.run(home, *arguments, held_out=2)
    saved = weights_in(home / "run")
    [first] = {name.partition("/")[0] for name in saved}
    names = ("weights/000004", "sampler_weights/000004", "sampler_weights/behind-000003")
    dropped = {f"{first}/{name}" for name in names}
    assert dropped < saved  # saved before the evaluation
    scratch = f"{first}/weights/.000005.1234"
    (home / "run/checkpoints" / scratch).mkdir()
    (home / "run/checkpoints/notes").mkdir()
    (home / "shared").mkdir()
    for name in ("copy", "linked"):
        shutil.copytree(home / "run", home / name)
    (home / "linked/checkpoints").rename(home / "shared/checkpoints")
    (home / "linked/checkpoints").symlink_to(home / "shared/checkpoints")
    again = await toy.run(home, *arguments, f"log_path={home / 'copy'}", held_out=2)
    assert weights_in(home / "run") == saved | {scratch}
    assert differs(again.weights, whole.weights) < 1e-6

    run = RunFolder(home / "run")
    run.repair()
    kept = weights_in(home / "run")
    assert kept == saved - dropped
    assert (home / "run/checkpoints/notes").is_dir()
    RunFolder(home / "linked").repair()
    assert weights_in(home / "linked") == saved | {scratch}  # another run may have its weights there, too
    rows = run.metrics()
    (home / "run/checkpoints.jsonl").unlink()
    for _ in range(2):  # the run does not begin again by itself, neither at once nor later
        with pytest.raises(UsageError, match=r"^log_path: .*metrics of 3 step\(s\), but checkpoints.jsonl is missing"):
            run.repair()
        assert (weights_in(home / "run"), run.metrics()) == (kept, rows)
    (home / "run/metrics.jsonl").unlink()
    run.repair()
    assert weights_in(home / "run") == set()  # no step has counted


@pytest.mark.parametrize("held_out", [0, 2])  # with held-out problems, each checkpoint is the best so far
async def test_weights_are_deleted_whose_deletion_was_cut_off(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch, held_out: int
) -> None:
    from rtl_agent_gym.engines.connect import Engine

    async def killed(self: Engine, path: str) -> None:
        raise SandboxLost("pulled the plug")

    monkeypatch.setattr(Engine, "delete", killed)
    with pytest.raises(SandboxLost):
        await toy.run(home, "num_steps=5", "eval_every=1", held_out=held_out)
    folder = RunFolder(home / "run")
    names = [f"{name:06d}" for name in ((1, 2, 3, 4) if held_out else (1, 2, 3))]
    assert [record["name"] for record in folder.checkpoints()] == names
    assert sorted({Path(name).name for name in weights_in(home / "run")}) == names
    folder.repair()
    assert sorted({Path(name).name for name in weights_in(home / "run")}) == names[1:]  # those of the last two commits


async def test_a_run_whose_last_weights_are_missing_is_one_clear_error(toy: Any, home: Path) -> None:
    with losing_an_evaluation(toy, "000002-test"):
        await toy.run(home, "eval_every=1", held_out=1)
    shutil.rmtree(RunFolder(home / "run").checkpoints()[-1]["state_path"])
    with pytest.raises(UsageError, match=r"^log_path: there is no checkpoint at .*/weights/000001"):
        await toy.run(home, "eval_every=1", held_out=1)


def test_only_a_few_checkpoints_hold_the_state_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``baseline=running`` it has numbers of all problems."""
    monkeypatch.setattr(run_folder, "COMPACT_EVERY", 5)
    folder, loop = RunFolder(tmp_path), {"running": {f"problem_{number}": [0.5, 3] for number in range(1000)}}
    for step in range(12):
        folder.add_checkpoint({"batch": step + 1, "state_path": "x", "loop": loop}, [{"step": step, "loss": 0.5}])
    lines = (tmp_path / "checkpoints.jsonl").read_text().splitlines()
    assert [number for number, line in enumerate(lines) if len(line) > 1000] == [9, 10, 11]  # since the tenth
    records = folder.checkpoints()
    assert [record["batch"] for record in records] == list(range(1, 13))
    assert ["loop" in record or "metrics" in record for record in records] == [False] * 11 + [True]
    assert records[-1]["loop"] == loop
    rows, metrics = folder.metrics(), tmp_path / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-2]))  # a crash lost them
    assert folder.repair() == records[-1]
    assert folder.metrics() == rows
    assert folder.checkpoints() == records


def test_a_resumed_run_removes_temporary_files_of_a_killed_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_checkpoint({"batch": 1, "state_path": "x"}, [{"step": 0, "loss": 0.5}])
    folder.episodes.mkdir()
    folder.transcripts.mkdir()
    killed = "import os, signal, sys; os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL); "
    killed += (
        "from pathlib import Path; from rtl_agent_gym.files import replace_file; replace_file(Path(sys.argv[1]), '')"
    )
    for name in ("config.json", "metrics.jsonl", "episodes/step-000000-000-000.json", "transcripts/a.jsonl"):
        assert subprocess.run([sys.executable, "-c", killed, tmp_path / name]).returncode == -signal.SIGKILL
    report = tmp_path / ".full_report.html.0000abcd.new"  # another process may be writing it
    report.touch()
    assert len(list(tmp_path.rglob("*.new"))) == 5
    folder.repair()
    assert list(tmp_path.rglob("*.new")) == [report]


async def test_a_finished_run_is_not_begun_with_other_options(toy: Any, home: Path) -> None:
    await toy.run(home, "num_steps=1")
    with pytest.raises(UsageError, match="learning_rate"):
        await toy.run(home, "num_steps=1", "learning_rate=0.5")
