"""The disk of a run is full: episodes and results wait for room, and what was written can be read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import SandboxError, most_telling
from rtl_agent_gym.evaluation import read_results
from rtl_agent_gym.evaluation.results import ResultsFile
from tests.arbiter import ARBITER
from tests.evaluation.test_results import CONFIG, result

from .moments import Moment
from .processes import EVAL, lines, started, transcripts, wait_for

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="to mount a small file system takes root"),
]
SIZE = 540 << 20
"""Bytes of the file system: a little more than episodes want to be free."""
OPTIONS = ["--problem", ARBITER, "--policy", "random", "--weights", "proxy", "-n", "6", "--max-turns", "3"]
AT_ONCE = 2
OPTIONS += ["--command-timeout", "5", "--concurrency", str(AT_ONCE), "--json"]


@contextlib.contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """A file system of some bytes."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(file: Path) -> None:
    """Take all room that is left."""
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(1 << 20))
    with file.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x")


@pytest.mark.docker
@pytest.mark.slow
def test_an_evaluation_waits_for_room_and_goes_on(tmp_path: Path, moment: Moment) -> None:
    """Results of running episodes may still fit into the last page of the file; no other episode begins."""
    results, pause, full = moment.number(0, 4), moment.within(0, 1), moment.within(3, 12)
    log = tmp_path / "log"
    with small_disk(tmp_path / "disk", SIZE) as disk:
        folder = disk / "run"
        file = folder / "results.jsonl"
        command = [*EVAL, "--out", str(folder), *OPTIONS]
        with started(command, log) as process:
            wait_for(lambda: lines(file) >= results and any(folder.glob("transcripts/*")), process=process)
            time.sleep(pause)
            fill(disk / "other")
            met = lines(file)
            written = b"".join(file.read_bytes().splitlines(keepends=True)[:met])
            time.sleep(full)
            over = process.poll() is not None
            fitted = lines(file)
            assert met <= fitted <= met + AT_ONCE
            assert not over or fitted == 6, log.read_text()
            (disk / "other").unlink()
            ended = process.wait(400)
        print(f"filled with {met} of 6 results, for {full:.0f} s, when {fitted} had been written; exit code {ended}")
        assert file.read_bytes().startswith(written)
        found = read_results(folder)
        assert transcripts(folder)
        if ended:  # all results had fitted, and the summary had not
            assert f"the results: {folder} cannot be written: No space left" in log.read_text()
            with started(command, log) as process:
                assert process.wait(400) == 0, log.read_text()
        assert json.loads((folder / "summary.json").read_text())
    assert len(found) == 6
    assert all(result.score is not None for result in found), [result.fault for result in found]


def test_a_result_is_written_once_and_whole_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 << 10) as disk, ResultsFile(disk / "run", CONFIG) as file:
        file.append(result("a"))
        fill(disk / "other")
        try:
            for number in range(200):
                file.append(result(f"b{number}"))
        except SandboxError as error:
            assert "No space left" in str(error)  # noqa: PT017 - which of them does not fit is not known
        else:
            pytest.fail("everything fitted")
        known = sorted(file.done)
        assert sorted(one.key for one in read_results(disk / "run")) == known
        assert (disk / "run" / "results.jsonl").read_bytes().endswith(b"\n")
        (disk / "other").unlink()
        file.append(result("c"))
        assert len(read_results(disk / "run")) == len(known) + 1


@pytest.mark.slow
async def test_a_trainer_whose_disk_fills_goes_on_from_its_last_checkpoint(
    tmp_path: Path, toy: Any, toy_models: Path, moment: Moment
) -> None:
    """Its checkpoints fill the disk; with more room, the same command gives the weights of an undisturbed run."""
    arguments = ("num_steps=6", "group_size=4", "baseline=running", "reward_coef=1", "save_every=1")
    for name in ("student", "teacher"):
        (tmp_path / name).symlink_to(toy_models / name)
    whole = await toy.run(tmp_path, *arguments, f"log_path={tmp_path / 'whole'}")
    used = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    size = int(used * moment.within(0.3, 0.8))
    with small_disk(tmp_path / "disk", size) as disk:
        cut = (*arguments, f"log_path={disk / 'run'}")
        with pytest.raises((SandboxError, ExceptionGroup)) as caught:
            await toy.run(tmp_path, *cut)
        fault = most_telling(caught.value)
        print(f"{size} of {used} bytes: {fault}")
        assert isinstance(fault, SandboxError)
        assert not list((disk / "run" / "checkpoints").glob(".*"))
        subprocess.run(["mount", "-o", f"remount,size={4 * used}", disk], check=True)
        again = await toy.run(tmp_path, *cut)
        assert max(float((again.weights[name] - whole.weights[name]).abs().max()) for name in whole.weights) < 1e-6
        assert [row["teacher_kl"] for row in again.folder.metrics()] == pytest.approx(
            [row["teacher_kl"] for row in whole.folder.metrics()], abs=1e-6
        )
