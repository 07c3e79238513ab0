"""The commands for many machines, on one real node: this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.sandboxes.choice import made_by, resolved_kind
from rtl_agent_gym.sandboxes.client import OWNER_LABEL
from rtl_agent_gym.sandboxes.daemon import daemon_host
from tests.arbiter import ARBITER
from tests.sandboxes.providers import owned

pytest.importorskip("ray")

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

SLOTS = 3


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Node:
    """This machine as a node."""

    def __init__(self, folder: Path) -> None:
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "DOCKER_HOST": daemon_host()}
        self.environment["RAY_AUTH_MODE"] = "disabled"  # whatever token this user has
        self.port = free_port()
        self.up = self.run("cluster", "up", "--slots", str(SLOTS), "--port", str(self.port))
        self.address = f"127.0.0.1:{self.port}"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rtl_agent_gym", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=self.environment)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, error = process.communicate(timeout=400)
        return subprocess.CompletedProcess(arguments, process.returncode, out, error)

    def machine_owners(self) -> list[str]:
        """The owners of running sandboxes that are one of its machines, or gone (of containers)."""
        if resolved_kind() == "namespaces":
            found = [path.name for path in Path("/proc").glob("[0-9]*") if is_machine(path.name, self.port)]
            return [pid for pid in found if owned(int(pid))]
        owners = subprocess.run(
            ["docker", "ps", "--filter", f"label={OWNER_LABEL}", "--format", f'{{{{.Label "{OWNER_LABEL}"}}}}'],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        return [owner for owner in owners if is_machine(owner, self.port)]

    def status(self) -> dict[str, Any]:
        done = self.run("cluster", "status", self.address, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("node"))
    try:
        assert made.up.returncode == 0, made.up.stderr
        yield made
    finally:
        down = made.run("cluster", "down")
    assert down.stdout == "this machine is no longer a node\n", down.stderr
    assert made.run("cluster", "down").stdout == "this machine is not a node\n"


def test_up_says_how_others_join_and_how_it_is_used(node: Node) -> None:
    assert f"this machine is a node with {SLOTS} slots" in node.up.stderr
    assert f":{node.port}\n" in node.up.stdout
    assert "eval --ray" in node.up.stdout
    again = node.run("cluster", "up")
    assert again.returncode == 2
    assert "is a node already" in again.stderr


def test_an_evaluation_on_the_node(node: Node, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["--policy", "golden", "--problem", ARBITER, "-n", "6", "--concurrency", "3", "--no-cache", "--json"]
    done = node.run("eval", "--ray", node.address, *asked, "--out", str(out))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["passed"], summary["faults"]) == (6, 0)
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert sorted(row["sample"] for row in rows) == list(range(6))


def test_status_shows_nodes_and_runs_and_starts_no_machine(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from rtl_agent_gym.cluster.machine import Machine
    from rtl_agent_gym.cluster.machines import NAME, NAMESPACE
    from rtl_agent_gym.cluster.ray_cluster import connect
    from rtl_agent_gym.sandboxes import SandboxSpec

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    connect(node.address)
    try:
        [here] = [one for one in ray.nodes() if one["Alive"]]
        name = f"{NAME}{here['NodeID'][:8]}-test"
        actor: Any = ray.remote(Machine).options(name=name, namespace=NAMESPACE, max_concurrency=4).remote()
        with pytest.raises(ray.exceptions.RayTaskError):
            ray.get(actor.create.remote("x", SandboxSpec(image="rtl-gym-no-such-image")))
        asking = node.start("cluster", "status", node.address)
        machines: set[str] = set()
        while asking.poll() is None:
            machines |= {one["name"] for one in ray.util.list_named_actors(all_namespaces=True)}
            time.sleep(0.05)
        shown, _ = asking.communicate()
        found = node.status()
        ray.kill(actor)
    finally:
        ray.shutdown()
    [one] = found["nodes"]
    assert (one["slots"], one["free"], one["daemon"], one["unusable"]) == (SLOTS, SLOTS, made_by(), "")
    assert one["image"].startswith("sha256:")
    [run] = one["runs"]
    assert run["faults"] == {"sandbox: ImageError": 1}
    assert (run["canaries"], run["last_canary"]) == ({"right": 0, "wrong": 0}, None)
    assert "3 slots, 3 free" in shown
    assert "canaries: 0 right, 0 wrong, faults: sandbox: ImageError 1" in shown
    assert machines == {name}, "asking has started another machine"
    assert node.status()["nodes"][0]["runs"] == []
    assert "no run uses it" in node.run("cluster", "status", node.address).stdout


def test_training_on_the_node(node: Node, tmp_path: Path) -> None:
    options = {
        "ray_address": node.address, "num_steps": 1, "batch_size": 1, "group_size": 2, "max_turns": 2, "max_tokens": 48,
        "held_out": "none", "problem_ids": ARBITER, "log_path": tmp_path / "run", "eval_every": 0,
    }  # fmt: skip
    done = node.run("train", "rl", *(f"{name}={value}" for name, value in options.items()), "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["steps"] == 1
    [row] = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert row["rollouts/faults"] == 0
    assert not node.machine_owners(), "a container of the run is left"


def is_machine(owner: str, port: int) -> bool:
    """Whether an owner of sandboxes is a machine of the cluster at this port, or gone."""
    process = Path("/proc", owner.rpartition(":")[2])
    try:
        if not (process / "cmdline").read_bytes().startswith(b"ray::Machine"):
            return False
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        command = Path("/proc", parent, "cmdline").read_bytes()
    except OSError:
        return True
    return b"raylet" not in command or f":{port}".encode() in command  # other tests may have a cluster meanwhile
