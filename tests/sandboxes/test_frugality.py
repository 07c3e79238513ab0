"""What a command costs: round trips, frames, looks at /proc, processes. Counted, since times depend on the machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig
from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes, ReadRequest, SandboxSpec, WaitingSandboxes, channel
from rtl_agent_gym.sandboxes.channel import Channel, Request
from rtl_agent_gym.sandboxes.warden import files, memory, program
from rtl_agent_gym.sandboxes.warden.frames import Output, pack
from rtl_agent_gym.transcripts import read_transcript

IN_SANDBOX = """
import collections, json, os, subprocess, sys
name = "rtl_agent_gym.sandboxes.warden."
shells, processes, frames = (sys.modules[name + part] for part in ("shell", "processes", "frames"))
seen, replies = collections.Counter(), []

def counted(kind, function):
    def call(*arguments):
        seen[kind] += 1
        return function(*arguments)
    return call

shells.processes = counted("looks at all processes", shells.processes)
frames.os = type(sys)("os")
vars(frames.os).update(vars(os), write=counted("writes to bash", os.write))
shells.reply = lambda kind, header, body=b"": replies.append([kind.decode(), header["exit_code"], body.decode()])
watcher = frames.Watcher()
shell = shells.Shell(watcher, lambda: None, ())
shell.start()
found = {}
for command in ("true", "true", "echo hi; echo ho >&2", "sleep 60 & true"):
    while shell.starting:
        watcher.turn(None)
    seen.clear(), replies.clear()
    shell.run(shells.Job({"id": 1, "timeout": 30, "limit": 100}), command.encode())
    while shell.job:
        watcher.turn(None)
    found[command] = {**seen, "replies": list(replies), "busy": shell.busy}
CODE = "import subprocess, threading; threading.Thread(target=lambda: "
CODE += "subprocess.run(['sh', '-c', 'echo ready; sleep 60'])).start()"
processes.signal_all([shell.pid], 9)
os.waitpid(shell.pid, 0)
threaded = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE)
threaded.stdout.readline()
found["alone with a thread's child"] = processes.alone(threaded.pid)
single = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
found["alone beside another child"] = processes.alone(single.pid)
print(json.dumps(found))
processes.signal_all([-1], 9)
"""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to wardens and frames from them, from now on."""
    found: Counter[str] = Counter()
    take = Channel._take

    def packed(kind: bytes, header: Any, body: bytes = b"") -> bytes:
        found["requests"] += 1
        return pack(kind, header, body)

    def taken(self: Channel, kind: bytes, header: dict[str, Any], body: bytes) -> None:
        found["frames"] += kind != b"m"
        take(self, kind, header, body)

    monkeypatch.setattr(channel, "pack", packed)
    monkeypatch.setattr(Channel, "_take", taken)
    return found


@pytest.mark.docker
async def test_a_step_is_one_round_trip_and_its_transcript_has_the_files(
    provider: DockerSandboxes, counts: Counter[str], arbiter: Problem, tmp_path: Path
) -> None:
    renderer = get_renderer("qwen3")
    config = EpisodeConfig(transcript_dir=tmp_path)
    grader: Any = None
    async with Episode(arbiter, provider=provider, grader=grader, renderer=renderer, config=config) as episode:
        await episode.start()
        for commands in (["true"], ["echo hi; echo word > rtl/new.sv"], ["false", "rm rtl/new.sv"]):
            counts.clear()
            turn = await episode.step(write_turn(renderer, "", commands))
            assert len(turn.results) == len(commands)
            assert counts == {"requests": len(commands), "frames": len(commands)}
        episode.abandon(RuntimeError("enough"))
        assert episode.transcript_path is not None
        turns = read_transcript(episode.transcript_path).turns
    assert [turn.files for turn in turns] == [{}, {"rtl/new.sv": "word\n"}, {"rtl/new.sv": None}]
    assert "hi" in turns[1].observation


@pytest.mark.docker
async def test_files_of_a_command_are_those_that_reading_finds(sandbox: DockerSandbox) -> None:
    await sandbox.write_files({"rtl/a": "1\n", "rtl/big": b"x" * 300_000, "docs/b": b"\xff\0"}, folders=["verif/empty"])
    wanted = ReadRequest(["rtl", "docs"], ["docs/b"], max_file=1000, max_total=2000)
    result = await sandbox.run(
        "head -c 100000 /dev/zero | tr '\\0' y; echo end >> rtl/a; mkfifo rtl/fifo", then_read=wanted
    )
    alone = await sandbox.read_files(["rtl", "docs"], first=["docs/b"], max_file=1000, max_total=2000)
    assert result.files is not None
    assert dict(result.files) == dict(alone) == {"rtl/a": b"1\nend\n", "docs/b": b"\xff\0"}
    assert result.files.left_out == alone.left_out == (("rtl/big", "300000 bytes; at most 1000 a file are read"),)
    assert (result.output_chars, result.output[-10:]) == (100_000, "y" * 10)
    assert (await sandbox.run("ls verif")).output == "empty\n"


@pytest.mark.parametrize(
    ("depth", "reason"), [(60, "its path is longer than 4096 bytes"), (14, "nothing is read from")]
)
def test_long_paths_take_little_memory(
    depth: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 reads an agent's names, which must not fill the memory. One rare character makes each name larger."""
    monkeypatch.setattr(files, "MOST_CHARACTERS", 1 << 20)
    name = os.fsdecode("\N{GRINNING FACE}".encode() + b"\xff" * 251)
    (tmp_path / "rtl").mkdir()
    (tmp_path / "rtl/a.sv").write_text("module a; endmodule\n")
    folder = files._open_folder(str(tmp_path), ["rtl", *[name] * depth], make=True)
    try:
        for number in range(2000):
            os.mknod(f"{number:04}{name[4:]}", dir_fd=folder)
        tracemalloc.start()
        request = {"root": str(tmp_path), "paths": ["rtl"], "first": [], "max_file": 1 << 20, "max_total": 1 << 20}
        found = files.read_files(request, lambda data: None)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        os.close(folder)
        shutil.rmtree(tmp_path / "rtl")
    assert ("rtl/a.sv", 20) in found["files"]
    assert any(why.startswith(reason) for _, why in found["left_out"])
    assert all(len(path) <= 200 for path, _ in found["left_out"])
    assert most < 16 << 20


def test_the_files_together_have_a_limit(tmp_path: Path) -> None:
    for name in ("a.sv", "b.sv", "c.sv"):
        (tmp_path / name).write_text("0123456789")
    request = {"root": str(tmp_path), "paths": ["."], "first": [], "max_file": 100, "max_total": 25}
    found = files.read_files(request, lambda data: None)
    assert found["files"] == [("a.sv", 10), ("b.sv", 10)]
    assert found["left_out"] == [("c.sv", "10 bytes; at most 25 are read in all")]


def _read(root: Path, paths: list[str], **more: Any) -> dict[str, Any]:
    request = {"root": str(root), "paths": paths, "first": [], "max_file": 10, "max_total": 1000, **more}
    return files.read_files(request, lambda data: None)


def test_files_that_are_not_read_are_counted_and_the_first_of_them_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.sv").write_text("0123456789")
    for number in range(30):
        (tmp_path / f"b{number}").write_text("0123456789+")
    found = _read(tmp_path, ["."])
    assert found["files"] == [("a.sv", 10)]
    assert (len(found["left_out"]), found["left_out_count"]) == (20, 30)
    monkeypatch.setattr(files, "MOST_ENTRIES", 2)  # the folder and a file
    found = _read(tmp_path, ["."])
    assert found["files"] == [("a.sv", 10)]
    assert "more than 2 entries" in found["left_out"][0][1]


def test_files_are_read_once_unless_they_are_skipped_and_links_only_reported_where_asked_for(tmp_path: Path) -> None:
    (tmp_path / "rtl/lib").mkdir(parents=True)
    for name in ("rtl/a.sv", "rtl/b.sv", "rtl/lib/c.sv"):
        (tmp_path / name).touch()
    (tmp_path / "rtl/link.sv").symlink_to("a.sv")
    (tmp_path / "rtl/other.sv").symlink_to("a.sv")
    asked = ["rtl/b.sv", "rtl/link.sv", "rtl/missing.sv"]
    found = _read(tmp_path, ["rtl", "rtl/a.sv", "rtl/lib/c.sv"], first=asked, skip=["rtl/lib"])
    assert found["files"] == [("rtl/b.sv", 0), ("rtl/a.sv", 0)]
    assert [path for path, _ in found["left_out"]] == ["rtl/link.sv"]


def test_without_a_control_group_the_largest_processes_of_the_commands_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: dict[int, int] = {}
    by_kernel, killed = [3], list[tuple[int, int]]()
    monkeypatch.setattr(memory, "_process_sizes", lambda: dict(sizes))
    monkeypatch.setattr(memory, "_bytes_in_folders", lambda: 10)
    monkeypatch.setattr(memory, "_oom_kills", lambda path: by_kernel[0])
    monkeypatch.setattr(os, "kill", lambda *call: killed.append(call))
    watch, mine = memory.MemoryWatch(limit=100), os.getpid()
    for size, changed, full in ((29, False, False), (30, True, True), (21, False, True), (19, True, False)):
        sizes.update({1: 5, mine: 5, 20: size})
        assert (watch.look(), watch.full) == (changed, full), size
    assert (killed, watch.oom_kills()) == ([], None)
    sizes.update({20: 30, 21: 60})
    watch.look()
    assert (killed, watch.oom_kills()) == ([(21, signal.SIGKILL)], 1)
    sizes.update({1: 60, mine: 60, 20: 10, 21: 20})  # never the wardens
    watch.look()
    assert [pid for pid, _ in killed] == [21, 21, 20]
    assert watch.oom_kills() == 3
    by_kernel[0] += 1  # of which sandbox is unknown
    assert watch.oom_kills() is None


def test_output_that_is_dropped_takes_no_memory() -> None:
    head = bytearray()
    output = Output(100, head.extend)
    for number in range(1000):
        output.feed(f"{number:100}".encode())
    assert len(output.tail) <= 200
    assert (bytes(head), output.rest()) == (b" " * 50, f"{999:50}".encode())


def test_files_in_many_folders_are_read_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 0

    class Counted(set[str]):
        def __or__(self, other: Any) -> Any:
            nonlocal copied
            copied += len(self) + len(other)
            return Counted(set(self) | other)

    for number in range(100):
        (tmp_path / f"rtl/{number}").mkdir(parents=True)
        (tmp_path / f"rtl/{number}/a.sv").touch()
    monkeypatch.setattr(files, "set", Counted, raising=False)
    request = {"root": str(tmp_path), "paths": ["rtl"], "first": [], "max_file": 1, "max_total": 1}
    assert len(files.read_files(request, lambda data: None)["files"]) == 100
    assert copied < 1000
    monkeypatch.setattr(files, "MOST_FILES", 100)
    assert len(files.read_files(request, lambda data: None)["files"]) == 99, "rtl is a folder, too"


@pytest.mark.daemon  # runs a warden inside, for which a sandbox without a control group has too few system calls
async def test_a_command_that_leaves_nothing_running_needs_no_look_at_all_processes(sandbox: DockerSandbox) -> None:
    *head, _ = program().rstrip().splitlines()
    result = await sandbox.exec(["python3", "-c", "\n".join(head) + IN_SANDBOX])
    found = json.loads(result.output.splitlines()[-1])
    assert found["true"] == {"writes to bash": 1, "replies": [["d", 0, ""]], "busy": False}
    hi = found["echo hi; echo ho >&2"]
    assert hi == {"writes to bash": 1, "replies": [["d", 0, "hi\nho\n"]], "busy": False}
    background = found["sleep 60 & true"]
    assert background["busy"]
    assert background["looks at all processes"] == 1
    assert found["alone with a thread's child"] is False
    assert found["alone beside another child"] is False


@pytest.mark.docker
async def test_an_episode_begins_with_three_round_trips_and_no_process(
    provider: DockerSandboxes, counts: Counter[str], arbiter: Problem
) -> None:
    grader: Any = None
    async with WaitingSandboxes(provider, size=1) as pool:
        await pool.prepare(EpisodeConfig().sandbox)
        counts.clear()
        async with Episode(arbiter, provider=pool, grader=grader, renderer=get_renderer("qwen3")) as episode:
            await episode.start()
            assert counts["requests"] == 3, "ping, files, seed"
            shell, process = await episode.sandbox.run("echo $$"), await episode.sandbox.exec(["sh", "-c", "echo $$"])
            assert int(process.output) == int(shell.output) + 1, "the numbers of processes are given in order"
            listed = await episode.sandbox.run("ls -d */")
    assert listed.output == "docs/\nrtl/\nrundir/\nverif/\n"


@pytest.mark.docker
async def test_the_next_sandbox_starts_after_the_first_requests_to_the_one_handed_out(
    provider: DockerSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()
    create = provider.create_ahead

    async def noted(spec: SandboxSpec) -> DockerSandbox:
        started.set()
        return await create(spec)

    async with WaitingSandboxes(provider, size=1) as pool:
        await pool.prepare(SandboxSpec())
        monkeypatch.setattr(provider, "create_ahead", noted)
        monkeypatch.setattr("rtl_agent_gym.sandboxes.pool.PAUSE", 1.0)
        sandbox = await pool.create()
        await sandbox.ping()
        assert not started.is_set()
        await asyncio.wait_for(started.wait(), 30)


async def test_a_reply_wakes_its_waiter_in_the_loops_next_round() -> None:
    request = Request(1, None)
    waiting = asyncio.ensure_future(request.settled(10.0))
    await asyncio.sleep(0)
    request.succeed(({}, b""))
    await asyncio.sleep(0)
    assert waiting.done()
    assert await waiting
    assert await request.settled(None)


async def test_who_waits_for_a_reply_can_give_up_alone() -> None:
    request = Request(1, None)
    gives_up, waits = (asyncio.ensure_future(request.settled(10.0)) for _ in range(2))
    assert not await request.settled(0.01)
    gives_up.cancel()
    await asyncio.gather(gives_up, return_exceptions=True)
    request.fail(OSError("no"))
    assert await waits
    assert gives_up.cancelled()
