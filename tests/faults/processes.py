"""Evaluations that a fault hits: in processes of their own, which a test kills, or in this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from rtl_agent_gym import evaluate
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.evaluation import Evaluation, EvaluationConfig, Observer
from rtl_agent_gym.transcripts import read_transcript
from tests.sandboxes.providers import owned, running

ROOT = Path(__file__).resolve().parents[2]
EVAL = [sys.executable, "-c", "from rtl_agent_gym.cli import main; main()", "eval"]


@contextlib.contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end, if it still runs. Its output goes to `log`."""
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=stream, stderr=stream, stdin=-3, env=os.environ | environment
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_for(condition: object, seconds: float = 120.0, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for a condition, and fail if the process ends before it holds."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process is None or process.poll() is None, "the process ended before"
        time.sleep(0.02)


def killed(process: subprocess.Popen[bytes]) -> None:
    """Kill a process; none of its sandboxes may run a minute later."""
    before = owned(process.pid)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it had ended by itself"
    wait_for(lambda: not owned(process.pid) and not running(before), 60.0)


def transcripts(folder: Path) -> list[Path]:
    """The transcripts of a run, each of which must be readable."""
    found = sorted((folder / "transcripts").rglob("*.jsonl"))
    for path in found:
        if path.stat().st_size and b"\n" in path.read_bytes():  # else its first line was being written
            read_transcript(path)
    return found


def lines(path: Path) -> int:
    """The complete lines of a file; 0 if there is none."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextlib.asynccontextmanager
async def playing(
    config: EvaluationConfig, episodes: int, pause: float
) -> AsyncIterator[tuple[asyncio.Task[Evaluation], list[SandboxError]]]:
    """An evaluation of which some episodes ended some seconds ago, and the faults of its episodes."""
    faults: list[SandboxError] = []
    finished = asyncio.Semaphore(0)
    observer = Observer(
        faulted=lambda problem, sample, error: faults.append(error), finished=lambda _: finished.release()
    )
    task = asyncio.create_task(evaluate(config, observer=observer))
    try:
        for _ in range(episodes):
            await asyncio.wait_for(finished.acquire(), 600)
        await asyncio.sleep(pause)
        yield task, faults
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
