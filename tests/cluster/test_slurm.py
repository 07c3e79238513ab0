"""Jobs of Slurm: what they may use, and `cluster up` in them, on a real Slurm cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rtl_agent_gym.cluster import node as node_module
from rtl_agent_gym.cluster import ray_cluster
from rtl_agent_gym.cluster import slurm as slurm_module
from rtl_agent_gym.cluster.node import refuse_without_token, start_apart, start_node, stop_node, wait_for
from rtl_agent_gym.cluster.slurm import start_job
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.sandboxes.admission import MEMORY_SHARE, Limits
from rtl_agent_gym.sandboxes.cgroups import job_cpus, job_memory
from tests.cli import in_process
from tests.cluster.slurm import ROOT, Slurm, slurm_cluster
from tests.waiting import until

PAGE = ROOT / "docs" / "howto" / "cluster.md"
SIZE = ("--cpus-per-task=2", "--mem=5000")
PROBLEMS = [f"cvdp_agentic_rtlgym_{name}_0001" for name in ("fixed_priority_arbiter", "gray_counter")]
SAMPLES = 8
INFO = {"MemTotal": 64 << 30, "NCPU": 64}


@pytest.mark.parametrize(
    ("variables", "memory", "cpus"),
    [
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "4096"}, 4 << 30, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_CPU": "1024"}, 8 << 30, 8),
        ({"SLURM_CPUS_ON_NODE": "8"}, 0, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "0"}, 0, 8),  # --mem=0: all that the node has
    ],
)
def test_sandboxes_use_what_their_job_has(
    variables: dict[str, str], memory: int, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtl_agent_gym.sandboxes.admission.group_memory", lambda: 0)
    monkeypatch.setattr("rtl_agent_gym.sandboxes.admission.group_cpus", lambda: 0.0)
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (job_memory(), job_cpus()) == (0, 0)  # what a shell has exported is no job
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert (job_memory(), job_cpus()) == (memory, cpus)
    here, elsewhere = (Limits.of(INFO, local=local) for local in (True, False))
    assert (here.memory, here.cpus) == (int(MEMORY_SHARE * (memory or INFO["MemTotal"])), cpus)
    assert elsewhere.cpus == INFO["NCPU"]
    assert Limits.of(INFO, local=True, given={"cpus": 3.0}).cpus == 3.0


def test_a_variable_of_the_jobs_that_is_no_number_is_named() -> None:
    with pytest.raises(UsageError, match="SLURM_MEM_PER_NODE: '4G' is not a number"):
        job_memory({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "4G"})


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a job that this process seems to be in."""
    monkeypatch.setenv("SLURM_JOB_ID", f"{os.getpid()}0")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    folder = ray_cluster.job_folder()
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_up_needs_a_node_of_the_job(job: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = in_process.call("cluster", "up")
    assert done.returncode == 2
    assert "this is not a node of the job: run it in the script of sbatch" in done.stderr
    monkeypatch.setenv("SLURMD_NODENAME", "one")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Slurm's program srun is not in PATH" in in_process.call("cluster", "up").stderr
    monkeypatch.delenv("SLURM_JOB_ID")
    assert "the nodes of a Slurm job" in in_process.call("cluster", "part", "127.0.0.1:1", "one").stderr


@pytest.mark.parametrize("in_job", [False, True])
def test_a_head_without_a_token_is_refused(
    job: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_job: bool
) -> None:
    pytest.importorskip("ray")
    (tmp_path / "srun").write_text("#!/bin/sh\necho started\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURMD_NODENAME", "one")
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # whatever token this user has, Ray would ask for none
    said: list[str] = []
    with pytest.raises(UsageError, match=r"without a token, every host that reaches port 4711 .*--generate"):
        start_job(1, said.append, 4711) if in_job else start_node("", 1, said.append, 4711)
    assert not (job / "one.log").exists(), "something was started"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    refuse_without_token(4711, said.append)
    assert said == ["WARNING: without a token, every host that reaches port 4711 of this machine can run code on it"]


@pytest.mark.usefixtures("job")
def test_a_node_says_at_once_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")

    def refuse(*_: object) -> Path:
        raise SandboxError("nothing is started here")

    monkeypatch.setattr(node_module, "start_apart", refuse)
    said: list[str] = []
    with pytest.raises(SandboxError):
        start_node("wronghost:6379", 1, said.append)
    assert said == ["starting Ray as a node of wronghost:6379, which has 120 s to answer"]


@pytest.mark.usefixtures("job")
def test_what_has_just_been_started_runs() -> None:
    """Right after it was started, a process has no command line yet, as here that of its program."""
    program = shlex.join([sys.executable, "-c", "import time; time.sleep(60)", "--block"])
    answers = [False, True]
    log = start_apart(["sh", "-c", f"sleep 0.3; exec {program}"])
    wait_for(log, partial(answers.pop, 0))
    assert stop_node()


SRUN = """#!/bin/sh
while [ "$1" != --label ]; do echo "option $1" >&2; shift; done; shift
for node in one two; do
    SLURMD_NODENAME=$node "$@" 2>&1 | sed "s/^/$([ $node = one ] && echo 0 || echo 1): /" &
done
wait
"""


def test_what_the_nodes_lack_is_reported_at_once(job: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    values = {"SLURMD_NODENAME": "one", "SLURM_JOB_NUM_NODES": "2", "RTL_GYM_SANDBOX": "namespaces"}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    for name, value in {**values, "RTL_GYM_ROOTS": str(tmp_path), "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    done = in_process.call("cluster", "up")
    assert done.returncode == 3
    message = done.stderr.replace("\n", " ")
    assert re.search(rf"Ray does not start: the simulation image .* is not in {tmp_path}", message)
    given = [line.split()[1] for line in (job / "one.log").read_text().splitlines() if line.startswith("option ")]
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--no-kill", "--overlap", "--wait=0"} <= set(given)


def test_auto_is_the_head_of_the_job(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    assert ray_cluster.job_head() == ""
    ray_cluster.node_files()[0].with_suffix(".head").write_text("127.0.0.1:1")
    with pytest.raises(UsageError, match=r"no Ray cluster answers at '127\.0\.0\.1:1'"):
        ray_cluster.connect("auto")
    job.chmod(0o755)
    with pytest.raises(UsageError, match="belongs to another user, or others have access"):
        ray_cluster.connect("auto")


def test_a_runtime_folder_that_is_not_there_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert ray_cluster.node_files()[0].parent == tmp_path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert ray_cluster.node_files()[0].parent.is_dir()


def test_a_node_that_another_shell_has_started_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After `su`, XDG_RUNTIME_DIR is not set, and the file is in the temporary folder."""
    alive, folders = {4711}, (tmp_path / "run", tmp_path / "tmp")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders[0]))
    monkeypatch.setattr(tempfile, "tempdir", str(folders[1]))
    for folder in folders:
        folder.mkdir()
    files = [file for file in ray_cluster.node_files() if file.parent in folders]  # none of this machine's own
    for file, process in zip(files, ("4712", "4711"), strict=True):  # the first has ended
        file.write_text(process)
    monkeypatch.setattr(node_module, "node_files", lambda: files)
    monkeypatch.setattr(node_module, "_is_ours", alive.__contains__)
    monkeypatch.setattr(os, "kill", lambda pid, _: alive.remove(pid))
    with pytest.raises(UsageError, match=r"is a node already \(process 4711\)"):
        start_apart([])
    assert stop_node()
    assert not alive
    assert not list(tmp_path.rglob("*.pid"))
    assert not stop_node()


@pytest.mark.parametrize("grpc", [True, False])
def test_a_heads_port_for_rays_client_is_a_free_one(grpc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without grpc Ray has no such client, and refuses the option."""
    monkeypatch.setattr(node_module, "_ray", lambda: "ray")
    monkeypatch.setattr(node_module, "free_port", lambda: 4711)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if grpc else None)
    head, other = (" ".join(node_module.ray_start([word], 1)) for word in ("--head", "--address"))
    assert ("--ray-client-server-port 4711" in head) == ("client" in head) == grpc
    assert "client" not in other


def test_rays_files_are_this_users_on_every_node(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray makes its folder where the head has its own, for all users."""
    job.rmdir()
    started: list[Sequence[str]] = []
    for name in ("prepare", "_wait_for"):
        monkeypatch.setattr(slurm_module, name, lambda *_: None)
    monkeypatch.setattr(slurm_module, "ray_start", lambda where, slots: ["ray", *where])
    monkeypatch.setenv("SLURMD_NODENAME", "two")

    def execv(program: str, command: Sequence[str]) -> None:
        started.append(command)
        raise SystemExit

    monkeypatch.setattr("os.execv", execv)
    with pytest.raises(SystemExit):
        slurm_module.become_part("127.0.0.1:1", "one", 1, lambda line: None)
    assert started[0][:3] == ["ray", "--address", "127.0.0.1:1"]
    assert job.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("numbers", "code", "queued"),
    [
        ([signal.SIGUSR1], 0, "requeue 7\n"),
        ([signal.SIGTERM], 143, ""),
        ([signal.SIGUSR1, signal.SIGTERM], 0, "requeue 7\n"),  # the time limit comes before the evaluation has ended
    ],
)
def test_the_script_queues_its_job_again_only_before_the_time_limit(
    numbers: Sequence[signal.Signals], code: int, queued: str, tmp_path: Path
) -> None:
    """Not after `scancel`, which sends SIGTERM. Each signal ends the evaluation, which waits for `gate` first."""
    began, ending, gate, calls, bin_ = (tmp_path / name for name in ("began", "ending", "gate", "calls", "bin"))
    evaluation = f"""
        [ "$1" = eval ] || exit 0
        sleep 60 &
        trap 'trap "" TERM; kill $!; wait; : > {ending}; read word < {gate}; exit 0' TERM
        echo $$ > {began}.new; mv {began}.new {began}
        wait
    """
    os.mkfifo(gate)
    calls.touch()
    bin_.mkdir()
    for name, does in {"ray": "", "scontrol": f'echo "$@" >> {calls}', "rtl-agent-gym": evaluation}.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{does}\n")
        (bin_ / name).chmod(0o755)
    (bin_ / "activate").write_text(f"PATH={bin_}:$PATH\n")
    values = {"RTL_GYM_VENV": str(tmp_path), "RTL_GYM_ROOTS": str(tmp_path), "SLURM_JOB_ID": "7", "HOME": str(tmp_path)}
    script = subprocess.Popen(["bash", str(ROOT / "examples/slurm/eval.sbatch")], env={**os.environ, **values})
    try:
        assert until(began.exists)
        for number in numbers:
            script.send_signal(number)
            assert until(ending.exists)
        gate.write_text("end\n")
        assert script.wait(30) == code
    finally:
        script.kill()
    assert calls.read_text() == queued
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text()), 0)


@pytest.fixture(scope="module")
def cluster(root_folder: Path) -> Iterator[Slurm]:
    pytest.importorskip("ray")
    with slurm_cluster() as made:
        yield made


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """The cluster, with both nodes and without a job."""
    cluster.start_nodes()
    yield cluster
    cluster.cancel()


def results(out: Path) -> list[dict[str, Any]]:
    """The results so far."""
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def shown(begin: str, values: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The words of the page's only command that begins so, with values in the place of some of its text."""
    [line] = [line for line in PAGE.read_text().splitlines() if line.startswith(begin)]
    for text, value in {**values, "$RTL_GYM_VENV": sys.prefix}.items():
        line = line.replace(text, value)
    return shlex.split(line)


def evaluate(slurm: Slurm, out: Path) -> str:
    """Submit the evaluation that the page shows, with `PROBLEMS`, each `SAMPLES` times; the job's id."""
    slurm.run(*shown("$RTL_GYM_VENV/bin/rtl-agent-gym"))  # unpacks the image
    values = {"examples/": f"{ROOT}/examples/", "$SHARED/runs/golden": str(out), "--nodes=4": "--nodes=2"}
    _, *words = shown("sbatch", values)
    problems = [word for problem in PROBLEMS for word in ("--problem", problem)]
    return slurm.submit(*SIZE, *words, *problems, "-n", str(SAMPLES), "--no-cache")


def log_of(slurm: Slurm) -> str:
    return (slurm.shared / "job.log").read_text()


def is_complete(slurm: Slurm, job: str, out: Path) -> None:
    """The job has ended well, each episode has one verdict and none is wrong, and nothing of the job runs on."""
    assert until(lambda: slurm.state(job) not in ("RUNNING", "PENDING", "COMPLETING"), 300.0), log_of(slurm)
    assert slurm.state(job) == "COMPLETED", log_of(slurm)
    rows = results(out)
    assert sorted((row["problem_id"], row["sample"]) for row in rows) == sorted(
        (problem, sample) for problem in PROBLEMS for sample in range(SAMPLES)
    )
    assert all(row["score"]["passed"] for row in rows), "a fault of a machine became a verdict"
    assert json.loads((out / "summary.json").read_text())["faults"] == 0
    for node in ("one", "two"):
        assert until(partial(slurm.is_idle, node)), f"the job has left processes on node {node}"


# Slow: Ray starts on two nodes, and a lost one is noticed by Slurm after ten seconds.
@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(900)
class TestJobs:
    def test_an_evaluation_goes_on_when_slurm_loses_a_node(self, slurm: Slurm) -> None:
        out = slurm.new_folder()
        job = evaluate(slurm, out)
        assert until(lambda: len(results(out)) >= 2, 180.0), log_of(slurm)
        assert until(lambda: (out / "logs.log").read_text().count("is used, with") == 2), log_of(slurm)
        assert len(results(out)) < len(PROBLEMS) * SAMPLES
        status = slurm.run(*shown("srun --jobid", {"JOB": job}))
        assert status.count(" slots, ") == status.count("daemon namespaces") == 2
        slurm.lose("two")
        is_complete(slurm, job, out)
        assert "gets no more work" in (out / "logs.log").read_text()
        assert until(lambda: "down" in slurm.run("sinfo", "--noheader", "--nodes=two", "--format=%t"))

    def test_it_continues_after_the_signal_before_the_time_limit(self, slurm: Slurm) -> None:
        out = slurm.new_folder()
        job = evaluate(slurm, out)
        assert until(lambda: len(results(out)) >= 2, 180.0), log_of(slurm)
        slurm.run("scancel", "--batch", "--signal=USR1", job)
        before = len(results(out))
        assert until(lambda: slurm.state(job) == "PENDING", 60.0), log_of(slurm)
        assert before <= len(results(out)) < len(PROBLEMS) * SAMPLES
        is_complete(slurm, job, out)

    def test_a_job_that_is_cancelled_does_not_start_again(self, slurm: Slurm) -> None:
        out = slurm.new_folder()
        job = evaluate(slurm, out)
        assert until(lambda: len(results(out)) >= 2, 180.0), log_of(slurm)
        slurm.run("scancel", job)
        assert until(lambda: slurm.state(job) not in ("RUNNING", "COMPLETING"), 60.0), log_of(slurm)
        assert slurm.state(job) == "CANCELLED", log_of(slurm)
        assert len(results(out)) < len(PROBLEMS) * SAMPLES

    def test_status_and_down_in_a_job(self, slurm: Slurm) -> None:
        command = "python -m rtl_agent_gym cluster"
        script = f"""
            . {slurm.environment["RTL_GYM_VENV"]}/bin/activate; export RTL_GYM_SANDBOX=namespaces
            ray get-auth-token --generate > /dev/null
            RTL_GYM_ROOTS=/nowhere {command} up || echo refused with $?
            {command} up --slots 3 && {command} up; {command} status --json > status.json && {command} down
            {command} down
        """
        assert "everything required is here" in slurm.run(*shown("srun --nodes=1"))
        job = slurm.submit(
            "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--mem-per-cpu=1500", "--wrap", script
        )
        assert until(lambda: slurm.state(job) in ("COMPLETED", "FAILED"), 180.0), log_of(slurm)
        nodes = json.loads((slurm.shared / "status.json").read_text())["nodes"]
        assert [(node["slots"], node["free"], node["daemon"], node["unusable"]) for node in nodes] == [
            (3, 3, "namespaces", "")
        ] * 2
        assert {node["gradings"] for node in nodes} == {2}
        log = log_of(slurm)
        assert re.search(r"Ray does not start: the simulation image .* is not in /nowhere/.*\nrefused with 3\n", log)
        assert "2 of the job's 2 nodes are used" in log
        assert "is a node already" in log
        assert "this machine is no longer a node\nthis machine is not a node\n" in log
