#!/usr/bin/env python3
"""How many episodes one machine can play at once: 20 turns each, all live at the same time, each graded at its end.

    .venv/bin/python benchmarks/scale.py [--sandbox docker namespaces] [--sizes 8 32 128 256] [...]
    .venv/bin/python benchmarks/scale.py --steps-only [--output 16000] [...]
    .venv/bin/python benchmarks/scale.py --idle 1000 --sandbox namespaces

With ``--steps-only`` nothing is started, graded or ended while steps are measured: every episode takes its steps, waits
for all others, and ends without a grading. If step latency then grows with the number of episodes, only the steps are
the cause; without the option, gradings and ends of episodes contribute.

With ``--idle N`` there are no episodes: some sandboxes are started one after another, then N at once. Each runs a
command that does nothing; the N sandboxes stay until all of them have run it.

Each size and kind of sandbox is measured in a separate process. Its episodes start together, write the reference
solution with a unique comment, so that no grading is cached, and wait for each other. Then, before each turn, they
pause as long as a model would think (``--think``, seconds, exponentially distributed), and run a command that does
nothing or prints ``--output`` characters, most of them outside ASCII. Only these steps are measured. Latencies are
wall-clock milliseconds. The client's memory is the largest growth of its resident set up to the last step. A sandbox's
memory is the decrease in the machine's available memory when all are live, without the client's; so it includes what
the kernel and a daemon need for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rtl_agent_gym import Episode, EpisodeConfig, load_problems
from rtl_agent_gym.episodes.runtime import acquire
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.options import SANDBOXES
from rtl_agent_gym.policies import heredoc, write_turn
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.sandboxes.admission import set_limits, usage
from rtl_agent_gym.sandboxes.cgroups import free_memory
from rtl_agent_gym.sandboxes.choice import make_provider, set_kind

PROBLEM = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
PAGE = resource.getpagesize()
WIDE = "🙂漢é."


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def available() -> int:
    """Available memory of the machine in bytes."""
    return free_memory() or 0


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


ALL_LIVE = 900
"""Seconds within which all episodes must be live; with too little memory, they never are."""


class Crowd:
    """Some episodes that are live at the same time.

    Args:
        size: Number of episodes.
        turns: Number of turns of each, including the last one.
        think: Mean pause before a turn, in seconds.
        folder: Folder for the transcripts.
        steps_only: Whether the episodes end together, without a grading.
        output: Characters that each command prints.
    """

    def __init__(
        self, size: int, turns: int, think: float, folder: Path, *, steps_only: bool = False, output: int = 0
    ) -> None:
        self.steps_only = steps_only
        self.command = f"yes '{WIDE}' | head -c {output * len(WIDE.encode()) // len(WIDE)}" if output else "true"
        self.size, self.turns, self.think = size, turns, think
        self.config = EpisodeConfig(transcript_dir=folder, max_turns=turns)
        self.resets: list[float] = []
        self.steps: list[float] = []
        self.faults: list[str] = []
        self.passed = 0
        self.live = asyncio.Barrier(size)
        self.memory: dict[str, float] = {}
        self.before = self.most = self.free = 0
        self.began = self.started = self.stepping = self.stepped = 0.0
        self.processor = 0.0
        """CPU seconds of the client while episodes took their steps and were graded."""

    async def play(self) -> dict[str, Any]:
        """Play the episodes, and return what was measured."""
        [problem] = load_problems("bundled", ids=[PROBLEM])
        async with acquire() as lease:
            scorer = lease.runtime.scorer(None)
            await (await lease.runtime.provider.create()).close()  # connects
            self.before, self.free, self.began = resident(), available(), time.monotonic()
            renderer = get_renderer("qwen3")
            async with asyncio.TaskGroup() as tasks:
                for number in range(self.size):
                    episode = Episode(
                        problem,
                        provider=lease.runtime.provider,
                        grader=scorer,
                        renderer=renderer,
                        config=self.config,
                        seed=number,
                    )
                    tasks.create_task(self._episode(episode, number))
            seconds = time.monotonic() - self.began
            if not self.steps_only:
                self.processor += time.process_time()
            return self._result(seconds)

    async def _episode(self, episode: Episode, number: int) -> None:
        rng = random.Random(number)
        async with episode:
            try:
                begun = time.perf_counter()
                await episode.start()
                self.resets.append(1e3 * (time.perf_counter() - begun))
                await episode.step(self._design(episode, number))
                async with asyncio.timeout(ALL_LIVE):
                    first = await self.live.wait() == 0
                if first:
                    self.started = time.monotonic()
                    taken = self.free - available() - (resident() - self.before)
                    self.memory = {"sandbox": taken / self.size / 1e6}
                await self.live.wait()
                if not self.stepping:
                    self.stepping, self.processor = time.monotonic(), -time.process_time()
                completion = write_turn(episode.renderer, "", [self.command])
                for _ in range(self.turns - 2):  # without the first turn, and the one that would end the episode
                    await asyncio.sleep(rng.expovariate(1 / self.think) if self.think else 0)
                    begun = time.perf_counter()
                    await episode.step(completion)
                    self.steps.append(1e3 * (time.perf_counter() - begun))
                self.stepped = time.monotonic()
                self.most = max(self.most, resident())
                if self.steps_only:
                    if await self.live.wait() == 0:
                        self.processor += time.process_time()
                    await self.live.wait()
                    episode.abandon(asyncio.CancelledError("enough was measured"))
                    self.passed += 1
                else:
                    score = await episode.finish("completed")
                    self.passed += score.passed
            except SandboxError as error:
                self.faults.append(f"{type(error).__name__}: {error}")
                await self.live.abort()
            except TimeoutError:
                self.faults.append(f"{self.size} episodes were not live at once within {ALL_LIVE} s; is memory short?")
                await self.live.abort()
            except asyncio.BrokenBarrierError:  # another episode has recorded the reason
                pass

    def _design(self, episode: Episode, number: int) -> str:
        """The turn that writes the reference solution, with a unique comment."""
        [(path, text)] = (episode.problem.golden or {}).items()
        return write_turn(episode.renderer, "", [heredoc(path, f"{text}\n// {number} {time.time_ns()}\n")])

    def _result(self, seconds: float) -> dict[str, Any]:
        queues = usage()
        kinds = ("agent", "start", "grading")
        waited = {kind: queues[f"{kind}/seconds"] / max(1.0, queues[f"{kind}/granted"]) for kind in kinds}
        return {
            "size": self.size,
            "turns": self.turns,
            "client CPU ms a step": 1e3 * self.processor / max(1, len(self.steps)),
            "failures": self.size - self.passed,
            "faults": self.faults[:3],
            "seconds": seconds,
            "steps only": self.steps_only,
            "episodes/min": 0.0 if self.steps_only else 60 * self.size / seconds,
            "steps/s": len(self.steps) / max(1e-9, self.stepped - self.stepping),
            "starts/s": self.size / max(1e-9, self.started - self.began),
            "step p50": statistics.median(self.steps) if self.steps else math.nan,
            "step p95": quantile(self.steps, 0.95) if self.steps else math.nan,
            "reset p50": statistics.median(self.resets) if self.resets else math.nan,
            "reset p95": quantile(self.resets, 0.95) if self.resets else math.nan,
            "memory": self.memory | {"client": (self.most - self.before) / self.size / 1e6},
            "queue": waited,
        }


async def first_command(provider: SandboxProvider) -> float:
    """Seconds until a new sandbox has run a command that does nothing."""
    begun = time.monotonic()
    sandbox = await provider.create()
    await sandbox.run("true")
    seconds = time.monotonic() - begun
    await sandbox.close()
    return seconds


async def idle(size: int) -> dict[str, Any]:
    """Start `size` sandboxes at once, and measure their memory when all are live."""
    set_limits(f"memory={max(size * 96, 4096)}M")  # more than they need, since none of them works
    async with make_provider() as provider:
        await (await provider.create()).close()
        alone = [await first_command(provider) for _ in range(20)]
        before, free, begun = resident(), available(), time.monotonic()
        first: list[float] = []
        turn = asyncio.Semaphore(64)  # the budget reserves more for a starting sandbox than it takes

        async def one() -> None:
            async with turn:
                sandbox = await provider.create()
            await sandbox.run("true")
            first.append(time.monotonic() - begun)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(size):
                tasks.create_task(one())
        client = resident() - before
        taken = free - available() - client
        return {
            "live at once": size,
            "ms to the first command, one at a time": 1e3 * statistics.median(alone),
            "starts/s": size / max(first),
            "MB a sandbox": taken / size / 1e6,
            "MB a sandbox of the client": client / size / 1e6,
            "GiB in all": (taken + client) / 2**30,
        }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table in Markdown. Rows of the second and further kinds of sandboxes have ratios to the first kind."""
    first = {row["size"]: row for row in rows if row["sandbox"] == rows[0]["sandbox"]}

    def compared(name: str, digits: int) -> Callable[[dict[str, Any]], str]:
        def text(row: dict[str, Any]) -> str:
            base = first[row["size"]]
            ratio = f" ({row[name] / base[name]:.2g}x)" if row is not base and base[name] else ""
            return f"{row[name]:.{digits}f}{ratio}"

        return text

    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "sandboxes": lambda row: str(row["sandbox"]),
        "live at once": lambda row: str(row["size"]),
        "failures": lambda row: str(row["failures"]),
        "client CPU, ms a step": compared("client CPU ms a step", 2),
        "steps/s": compared("steps/s", 1),
        "episodes/min": lambda row: "" if row["steps only"] else compared("episodes/min", 1)(row),
        "step p50, ms": compared("step p50", 2),
        "p95": compared("step p95", 2),
        "reset p50, ms": compared("reset p50", 0),
        "p95 ": compared("reset p95", 0),
        "starts/s": compared("starts/s", 1),
        "MB an episode: client, sandbox": lambda row: (
            f"{row['memory'].get('client', math.nan):.2f}, {row['memory'].get('sandbox', math.nan):.1f}"
        ),
        "s in the queue: agent, start, grading": lambda row: ", ".join(
            f"{seconds:.1f}" for seconds in row["queue"].values()
        ),
    }
    print("| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), sep="\n")
    for row in rows:
        print("| " + " | ".join(value(row) for value in columns.values()) + " |")


def main() -> int:
    """Measure each size in a separate process, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", choices=SANDBOXES, nargs="+", default=["auto"], help="kinds to compare")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 32, 128, 256])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--think", type=float, default=2.0, help="mean pause before a turn, in seconds")
    parser.add_argument("--folder", type=Path, help="folder for the transcripts; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="print one JSON line for each size")
    parser.add_argument("--steps-only", action="store_true", help="measure while nothing is started or graded")
    parser.add_argument("--output", type=int, default=0, help="characters that each command prints; default: none")
    parser.add_argument("--idle", type=int, default=0, help="measure this many sandboxes without episodes")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        set_kind(options.sandbox[0])
        if options.idle:
            print(json.dumps(asyncio.run(idle(options.idle))))
            return 0
        with tempfile.TemporaryDirectory() as made:
            folder = options.folder or Path(made)
            own = {"steps_only": options.steps_only, "output": options.output}
            crowd = Crowd(options.sizes[0], options.turns, options.think, folder, **own)
            print(json.dumps(asyncio.run(crowd.play())))
        return 0
    rows: list[dict[str, Any]] = []
    for size in [0] if options.idle else options.sizes:
        for kind in options.sandbox:
            again = [sys.executable, __file__, "--one", "--sizes", str(size), "--turns", str(options.turns)]
            again += ["--sandbox", kind, "--idle", str(options.idle)]
            again += ["--steps-only"] * options.steps_only + ["--output", str(options.output)]
            again += ["--think", str(options.think), *(["--folder", str(options.folder)] if options.folder else [])]
            done = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                if rows and not options.json:
                    show(rows)
                return done.returncode
            found = {"sandbox": kind, **json.loads(done.stdout.splitlines()[-1])}
            if options.idle:
                print(
                    ", ".join(
                        f"{name}: {value if name == 'sandbox' else round(value, 2)}" for name, value in found.items()
                    )
                )
                continue
            rows.append(found)
            for fault in found["faults"]:
                print(f"{size} episodes, {kind}: {fault}", file=sys.stderr)
            if options.json:
                print(json.dumps(found), flush=True)
    if rows and not options.json:
        show(rows)
    return 1 if any(row["failures"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
