#!/usr/bin/env python3
"""How long a step and a reset take, how long the parts of a step take, and how fast output is read. All in one run.

    .venv/bin/python benchmarks/step_latency.py [--sandbox docker namespaces] [--runs 200] [--resets 20] [--json]

The parts of a step are measured in turn, one of each per round, so that other load affects all of them alike. Each part
contains the one above it, except that only `env.step` contains the hop: a hop between two threads; a ping (the socket,
Docker's daemon and shim, if any, and the warden); a command that does nothing (bash, and its socket in both
directions); `Episode.step` (parsing, counting, the observation); `env.step` from another thread; the same with a
transcript, which reads the files after each command. ``bare bash`` is an ``echo`` in a bash without a warden on the
same kind of socket: attached to a container, or of a socket pair. The table is followed by the number of requests and
reply frames per step, and the processor time per step of this process, the warden and bash.

Resets are measured without waiting sandboxes, and with ``--ready`` of them waiting before each; the first kind includes
the start of a sandbox. For comparison, commands are also run with ``docker exec``, docker-py's ``exec_run``, and
pexpect over ``docker exec -it``. Each kind of sandbox is measured in a separate process. Times are wall-clock
milliseconds; ratios are of medians in the same run, since machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import gymnasium as gym
import pexpect

import rtl_agent_gym  # noqa: F401 - registers the environment
from rtl_agent_gym.episodes.runtime import acquire, background_loop, run_sync
from rtl_agent_gym.options import SANDBOXES, WITHOUT_DAEMON
from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import NamespaceSandbox, channel
from rtl_agent_gym.sandboxes.admission import set_limits
from rtl_agent_gym.sandboxes.channel import Channel
from rtl_agent_gym.sandboxes.choice import resolved_kind, set_kind
from rtl_agent_gym.sandboxes.daemon import attach

MEGABYTES = 20
WARM_UP = 20
PARTS = (
    "hop between threads",
    "bare bash",
    "ping",
    "Sandbox.run",
    "Episode.step",
    "env.step",
    "env.step with transcript",
)


def timed(work: Callable[[], object], runs: int) -> list[float]:
    """Milliseconds of each run."""
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begun))
    return times


async def nothing() -> None:
    """Return at once."""


async def awaited(work: Callable[[], Coroutine[Any, Any, object]]) -> float:
    """Milliseconds of one call, without the hop to the event loop."""
    begun = time.perf_counter()
    await work()
    return 1e3 * (time.perf_counter() - begun)


@contextmanager
def local_bash() -> Iterator[Callable[[], None]]:
    """A function that gets a line from a local bash, whose stdin and stdout are one end of a socket pair."""
    near, far = socket.socketpair()
    with near, subprocess.Popen(["bash"], stdin=far.fileno(), stdout=far.fileno()):
        far.close()

        def ask() -> None:
            near.sendall(b"echo hi\n")
            assert near.recv(100).endswith(b"hi\n")

        yield ask
        near.shutdown(socket.SHUT_RDWR)


@contextmanager
def container_bash() -> Iterator[Callable[[], None]]:
    """The same for a bash in a container, whose stdin and stdout are one attached socket."""
    from rtl_agent_gym.sandboxes.image import inspect

    client: Any = docker.from_env()
    container = client.containers.create(inspect()["id"], ["bash"], network_mode="none", stdin_open=True)
    try:
        stream = attach(client, container.id)
        container.start()

        def ask() -> None:
            stream.sendall(b"echo hi\n")
            assert stream.recv(100).endswith(b"hi\n")

        yield ask
        stream.close()
    finally:
        container.remove(force=True)
        client.close()


def processor_ms(pids: list[str]) -> list[float] | None:
    """Processor time of processes so far; None if they cannot be seen, for example on another machine."""
    try:
        return [int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6 for pid in pids]
    except (OSError, ValueError):
        return None


def sandbox_pids(sandbox: Any) -> list[str]:
    """The warden's and its bash's process ids on the sandbox's machine."""
    if isinstance(sandbox, NamespaceSandbox):
        below = Path(f"/proc/{sandbox.pid}/task/{sandbox.pid}/children").read_text().split()
        return [str(sandbox.pid), *below]
    client: Any = docker.from_env()
    try:
        return [row[1] for row in client.api.top(sandbox.id)["Processes"]]
    finally:
        client.close()


def measure_parts(runs: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Times of the parts of a step, and what a step costs in messages and processor time."""
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    renderer = get_renderer("qwen3")
    say, limit = write_turn(renderer, "", ["true"]), 10 * runs + 100
    bare_bash = local_bash if resolved_kind() in WITHOUT_DAEMON else container_bash
    with tempfile.TemporaryDirectory() as folder, bare_bash() as ask:
        plain = gym.make("CVDPAgentic-v0", max_turns=limit)
        recorded = gym.make("CVDPAgentic-v0", max_turns=limit, transcript_dir=folder)
        plain.reset(seed=0)
        recorded.reset(seed=0)
        episode: Any = plain.unwrapped.episode  # type: ignore[attr-defined]
        sandbox = episode.sandbox
        for _ in range(WARM_UP + runs):
            found["hop between threads"] += timed(lambda: run_sync(nothing()), 1)
            found["bare bash"] += timed(ask, 1)
            found["ping"].append(run_sync(awaited(sandbox.ping)))
            found["Sandbox.run"].append(run_sync(awaited(lambda: sandbox.run("true"))))
            found["Episode.step"].append(run_sync(awaited(lambda: episode.step(say))))
            found["env.step"] += timed(lambda: plain.step(say), 1)
            found["env.step with transcript"] += timed(lambda: recorded.step(say), 1)
        costs = measure_costs(lambda: recorded.step(say), recorded.unwrapped.episode.sandbox, runs)  # type: ignore[attr-defined]
        recorded.close()
        plain.close()
    return {name: times[WARM_UP:] for name, times in found.items()}, costs


def measure_costs(step: Callable[[], object], sandbox: Any, runs: int) -> dict[str, float]:
    """Requests, reply frames, and milliseconds of processor time per step."""
    counts: Counter[str] = Counter()
    pack: Any = vars(channel)["pack"]
    take = Channel._take

    def packed(*arguments: Any) -> Any:
        counts["requests"] += 1
        return pack(*arguments)

    def taken(self: Channel, *arguments: Any) -> None:
        counts["frames"] += 1
        take(self, *arguments)

    setattr(channel, "pack", packed)  # noqa: B010 - the module does not export it
    setattr(Channel, "_take", taken)  # noqa: B010
    pids = sandbox_pids(getattr(sandbox, "_sandbox", sandbox))
    before, client = processor_ms(pids), time.process_time()
    try:
        for _ in range(runs):
            step()
    finally:
        setattr(channel, "pack", pack)  # noqa: B010
        setattr(Channel, "_take", take)  # noqa: B010
    client, after = 1e3 * (time.process_time() - client), processor_ms(pids)
    found = {kind: counts[kind] / runs for kind in ("requests", "frames")} | {"client CPU ms": client / runs}
    if before and after and len(pids) == 2:
        spent = [(last - first) / runs for first, last in zip(before, after, strict=True)]
        found |= dict(zip(("warden CPU ms", "bash CPU ms"), spent, strict=True))
    return found


def measure_fresh_resets(resets: int) -> list[float]:
    """Resets that start a sandbox."""
    env = gym.make("CVDPAgentic-v0")
    times = timed(lambda: env.reset(seed=0), resets + 1)
    env.close()
    return times[1:]


def measure_resets(resets: int) -> list[float]:
    """Resets while sandboxes are waiting, as many as the limit ``ready`` keeps."""
    lease = acquire(background_loop())
    env = gym.make("CVDPAgentic-v0")
    spec = env.unwrapped.config.sandbox  # type: ignore[attr-defined]
    times = []
    for _ in range(resets + 1):
        run_sync(lease.runtime.agents.prepare(spec))
        times += timed(lambda: env.reset(seed=0), 1)
    env.close()
    run_sync(lease.release())
    return times[1:]


def measure_speed() -> float:
    """MB/s of reading output through `env.step`'s sandbox."""
    env = gym.make("CVDPAgentic-v0")
    env.reset(seed=0)
    sandbox = env.unwrapped.episode.sandbox  # type: ignore[attr-defined]
    size = MEGABYTES * 1_000_000
    run_sync(sandbox.run(f"head -c {size} /dev/urandom | base64 -w 76 | head -c {size} > /tmp/big"))
    begun = time.perf_counter()
    result = run_sync(sandbox.run("cat /tmp/big", timeout=60))
    speed = MEGABYTES / (time.perf_counter() - begun)
    assert result.output_chars == size, result.output_chars
    env.close()
    return speed


def measure_others(runs: int) -> dict[str, list[float]]:
    """Commands run by the methods of other systems, in a container of the same image."""
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


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything with one kind of sandboxes."""
    found, costs = measure_parts(options.runs)
    speed = measure_speed()
    if not options.steps_only:
        found["env.reset, none waiting"] = measure_fresh_resets(options.resets)
        set_limits(f"ready={options.ready}")
        found["env.reset"] = measure_resets(options.resets)
        if resolved_kind() == "docker":
            found |= measure_others(options.runs)
    base, bare = (statistics.median(found[name]) for name in ("env.step", "bare bash"))
    rows = {
        name: {
            "median_ms": round(statistics.median(times), 3),
            "p10_ms": round(statistics.quantiles(times, n=10, method="inclusive")[0], 3),
            "p95_ms": round(statistics.quantiles(times, n=20, method="inclusive")[-1], 3),
            "ratio_to_env_step": round(statistics.median(times) / base, 2),
            "ratio_to_bare_bash": round(statistics.median(times) / bare, 2),
        }
        for name, times in found.items()
    }
    return {"latency": rows, "costs": costs, "read_mb_per_s": round(speed, 1)}


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print the results of all kinds of sandboxes."""
    first = next(iter(found))
    for kind, result in found.items():
        print(f"\n{kind:28}{'median ms':>12}{'p10 ms':>10}{'p95 ms':>10}{'/ env.step':>12}{'/ bare bash':>12}", end="")
        print(f"{'/ ' + first:>14}" if kind != first else "")
        for name, row in result["latency"].items():
            median, low, high, step, bare = row.values()
            print(f"{name:28}{median:12.3f}{low:10.3f}{high:10.3f}{step:12.2f}{bare:12.2f}", end="")
            base = found[first]["latency"].get(name)
            print(f"{median / base['median_ms']:14.2f}" if kind != first and base else "")
        print("a step with transcript:", ", ".join(f"{value:.2f} {name}" for name, value in result["costs"].items()))
        print(f"{MEGABYTES} MB of output read at {result['read_mb_per_s']:.0f} MB/s")


def main() -> None:
    """Measure, and print a table or a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sandbox", choices=SANDBOXES, nargs="+", default=["auto"], help="kinds to compare")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--resets", type=int, default=20)
    parser.add_argument("--ready", type=int, default=2, help="sandboxes that wait before each reset")
    parser.add_argument("--steps-only", action="store_true", help="measure no resets, and no other methods")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.runs // 4, options.resets) < 2:
        parser.error("--runs must be at least 8, and --resets at least 2")
    if options.one:
        set_kind(options.sandbox[0])
        print(json.dumps(measure(options)))
        return
    found = {}
    for kind in options.sandbox:
        again = [sys.executable, __file__, "--one", "--sandbox", kind, "--runs", str(options.runs)]
        again += ["--resets", str(options.resets), "--ready", str(options.ready)]
        again += ["--steps-only"] * options.steps_only
        done = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=True)
        found[kind] = json.loads(done.stdout.splitlines()[-1])
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
