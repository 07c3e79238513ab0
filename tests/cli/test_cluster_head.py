"""The head of a cluster is lost during an evaluation."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.arbiter import ARBITER
from tests.cli.test_cluster_command import Node
from tests.waiting import until

pytest.importorskip("ray")

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

EPISODES = 120
PATIENCE = 300.0
"""Seconds for what ends by itself: Ray looks for a lost head for one minute."""


def control_service(port: int) -> int:
    """The process of the head's control service, which knows the nodes and actors."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"gcs_server") and f"--gcs_server_port={port}".encode() in words:
                return int(folder.name)
    raise AssertionError(f"no head listens at port {port}")


def results(out: Path) -> list[dict[str, Any]]:
    """The results so far."""
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_lost_head_ends_the_run_and_another_one_finishes_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    # More than can be played while Ray looks for the head.
    asked = ["eval", "--policy", "golden", "--problem", ARBITER, "-n", str(EPISODES), "--no-cache", "--json"]
    node = Node(tmp_path)
    try:
        assert node.up.returncode == 0, node.up.stderr
        playing = node.start(*asked, "--concurrency", "1", "--out", str(out), "--ray", node.address)
        until(lambda: results(out), PATIENCE)
        os.kill(control_service(node.port), signal.SIGKILL)
        lost = time.monotonic()
        printed, error = playing.communicate(timeout=PATIENCE)
        took = time.monotonic() - lost
        assert playing.returncode != 0, printed
        assert until(lambda: not node.machine_owners(), PATIENCE - took), "a container of the run is left"
    finally:
        node.run("cluster", "down")
    kept = [row["score"] for row in results(out) if row["score"]]  # without one: an episode that a fault ended
    assert 0 < len(kept) < EPISODES
    assert all(score["passed"] for score in kept), "the lost head became a verdict"
    print(f"ended after {took:.0f} s with status {playing.returncode}: {error[-800:]}")
    (tmp_path / "again").mkdir()
    again = Node(tmp_path / "again")
    try:
        done = again.run(*asked, "--concurrency", "4", "--out", str(out), "--ray", again.address)
        assert done.returncode == 0, done.stderr
        assert (json.loads(done.stdout)["passed"], json.loads(done.stdout)["faults"]) == (EPISODES, 0)
    finally:
        again.run("cluster", "down")
