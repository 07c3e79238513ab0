#!/usr/bin/env python3
"""How long one ``echo hi`` takes by each way into a container, and how fast output is read. All in one run.

    .venv/bin/python benchmarks/step_latency.py [--runs 200] [--json]

Ways: ``env.step`` (parsing, the shell, the transcript's line and the observation), the bare shell of the sandbox,
``docker exec`` per command, docker-py's ``exec_run``, and pexpect over ``docker exec -it``. Times are wall
milliseconds; ratios are of medians in the same run, as machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import docker
import gymnasium as gym
import pexpect

import rtl_agent_gym  # noqa: F401 - registers the environment
from rtl_agent_gym.episodes.runtime import run_sync
from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.renderers import get_renderer

MEGABYTES = 20


def timed(work: Callable[[], object], runs: int) -> list[float]:
    """Milliseconds of each run."""
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begun))
    return times


def measure_env(runs: int) -> tuple[dict[str, list[float]], float]:
    """env.step, the bare shell under it, and MB/s of reading output through it."""
    with tempfile.TemporaryDirectory() as folder:
        env = gym.make("CVDPAgentic-v0", max_turns=10 * runs + 100, transcript_dir=folder)
        env.reset(seed=0)
        say = write_turn(get_renderer("qwen3"), "", ["echo hi"])
        step = lambda: env.step(say)  # noqa: E731
        timed(step, 20)
        found = {"env.step": timed(step, runs)}
        sandbox = env.unwrapped.episode.sandbox  # type: ignore[attr-defined]
        bare = lambda: run_sync(sandbox.run("echo hi"))  # noqa: E731
        found["shell (from a thread)"] = timed(bare, runs)

        async def awaited() -> list[float]:
            times = []
            for _ in range(runs):
                begun = time.perf_counter()
                await sandbox.run("echo hi")
                times.append(1e3 * (time.perf_counter() - begun))
            return times

        found["shell (awaited)"] = run_sync(awaited())
        size = MEGABYTES * 1_000_000
        run_sync(sandbox.run(f"head -c {size} /dev/urandom | base64 -w 76 | head -c {size} > /tmp/big"))
        begun = time.perf_counter()
        result = run_sync(sandbox.run("cat /tmp/big", timeout=60))
        speed = MEGABYTES / (time.perf_counter() - begun)
        assert result.output_chars == size, result.output_chars
        env.close()
    return found, speed


def measure_others(runs: int) -> dict[str, list[float]]:
    """The ways of other systems, in a container of the same image."""
    from rtl_agent_gym.sandboxes.image import inspect

    client: Any = docker.from_env()
    container = client.containers.run(inspect()["id"], ["sleep", "600"], detach=True, network_mode="none", init=True)
    try:
        command = ["docker", "exec", container.id, "bash", "-c", "echo hi"]
        found = {
            "docker exec": timed(lambda: subprocess.run(command, capture_output=True, check=True), runs // 4),
            "docker-py exec_run": timed(lambda: container.exec_run(["bash", "-c", "echo hi"]), runs // 4),
        }
        for name, delay in (("pexpect, no delay", None), ("pexpect, its default delay", 0.05)):
            child = pexpect.spawn("docker", ["exec", "-it", container.id, "bash", "--norc"], encoding="utf-8")
            child.delaybeforesend = delay
            child.sendline("PS1='@''@@'; stty -echo")
            child.expect_exact("@@@")

            def ask(child: Any = child) -> None:
                child.sendline("echo hi")
                child.expect_exact("@@@")

            found[name] = timed(ask, runs if delay is None else runs // 4)
            child.close(force=True)
        return found
    finally:
        container.remove(force=True)
        client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found, speed = measure_env(options.runs)
    found |= measure_others(options.runs)
    base = statistics.median(found["env.step"])
    rows = {
        name: {
            "median_ms": round(statistics.median(times), 3),
            "p95_ms": round(statistics.quantiles(times, n=20)[-1], 3),
            "ratio_to_env_step": round(statistics.median(times) / base, 2),
        }
        for name, times in found.items()
    }
    if options.json:
        print(json.dumps({"latency": rows, "read_mb_per_s": round(speed, 1)}))
        return
    print(f"{'way':28}{'median ms':>12}{'p95 ms':>10}{'ratio':>9}")
    for name, row in rows.items():
        print(f"{name:28}{row['median_ms']:12.3f}{row['p95_ms']:10.3f}{row['ratio_to_env_step']:9.2f}")
    print(f"{MEGABYTES} MB of output read at {speed:.0f} MB/s")


if __name__ == "__main__":
    main()
